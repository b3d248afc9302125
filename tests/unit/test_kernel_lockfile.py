"""The lock that one process a file has."""

from __future__ import annotations

from pathlib import Path

import pytest

from haywain.errors import SettingsError
from haywain.lockfile import held


def test_a_second_holder_is_refused(tmp_path: Path) -> None:
    """While the lock is held, another holder is told so; afterwards it can have it."""
    with held(tmp_path / "lock", "taken"):  # noqa: SIM117 - one inside the other is what is tested
        with pytest.raises(SettingsError, match="taken"), held(tmp_path / "lock", "taken"):
            pass
    with held(tmp_path / "lock", "taken"):
        pass

"""The points where a test can make a process die: all of them are in the kill matrix, and cost nothing else."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from crash_cases import CASES

from haywain import crash

ROOT = Path(__file__).parent.parent.parent
POINT = re.compile(r"""crash\.point\((.*?)\)""")


def points() -> list[str]:
    """Find every point in the code, once for each time that it is there."""
    files = [file for part in ("haywain", "services", "gateway", "engine") for file in (ROOT / part).rglob("*.py")]
    return [word for file in files for word in POINT.findall(file.read_text("utf-8"))]


def test_the_matrix_has_every_point_and_no_other() -> None:
    """Each point in the code has a name of its own, written out, and a scene in the matrix; and the reverse."""
    names = Counter(word.strip('"') for word in points())
    assert all(re.fullmatch(r'"(files|batches|scheduler|engine|gateway):[a-z-]+"', word) for word in points())
    assert [name for name, times in names.items() if times > 1] == []
    assert set(names) == {case.point for case in CASES}


def test_no_case_comes_twice() -> None:
    """The names of the cases differ."""
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("passing", [1, 3])
def test_a_process_dies_at_the_passing_that_was_ordered(tmp_path: Path, passing: int) -> None:
    """It dies by SIGKILL, the order is gone with it, and other points and the next life are passed unharmed."""
    (tmp_path / "files:here").write_text(str(passing))
    turn = "crash.point('files:there'); print(n, flush=True); crash.point('files:here')"
    code = f"from haywain import crash\nfor n in range(1, 9): {turn}"
    command, environment = [sys.executable, "-c", code], {crash.VARIABLE: str(tmp_path), "PYTHONPATH": str(ROOT)}
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert first.returncode == -signal.SIGKILL
    assert first.stdout.split() == [str(n) for n in range(1, passing + 1)]
    assert list(tmp_path.iterdir()) == []
    assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


def test_points_are_off_by_default() -> None:
    """Without the variable nothing is looked at."""
    assert not crash.armed()
    crash.point("files:here")

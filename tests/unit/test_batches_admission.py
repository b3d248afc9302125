"""When to try again what the intake had no room for."""

from __future__ import annotations

import pytest

from services.batches.admission import until_free


@pytest.mark.parametrize(
    ("rows", "rate", "seconds"), [(100, 2.0, 50.0), (1, 100.0, 5.0), (1_000_000, 10.0, 300.0), (7, 0.0, 30.0), (1, 0.001, 300.0)]
)
def test_until_there_is_room(rows: int, rate: float, seconds: float) -> None:
    """As long as the rows that are too many take at the measured rate, within 5 to 300 seconds; without a rate, 30."""
    assert until_free(rows, rate) == seconds

"""How many requests a server gets at a time."""

from __future__ import annotations

import pytest

from engine.relay.width import Width


def test_a_place_more_for_every_round_of_answers_while_all_are_taken() -> None:
    """As many answers as there are places make one more, if all were taken; answers beside free places make none."""
    width = Width(10, 2)
    assert [width.answered(full=True) for _ in range(5)] == [False, True, False, False, True]
    assert width.limit == 4
    assert not any(width.answered(full=False) for _ in range(50))


def test_never_above_the_most() -> None:
    """However many answers come, there are no more places than allowed."""
    width = Width(3, 3)
    assert not any(width.answered(full=True) for _ in range(50))
    assert width.limit == 3


def test_of_requests_that_were_out_together_one_counts() -> None:
    """Refusals of one epoch take places away once; one of the next epoch does it again; half a round of answers is forgotten."""
    width = Width(64, 16)
    width.answered(full=True)
    assert [width.busy(0, 8), width.busy(0, 4), width.busy(1, 5.9)] == [True, False, True]
    assert (width.limit, width.epoch) == (5, 2)
    assert [width.answered(full=True) for _ in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize("left", [0, 0.3, -1])
def test_never_below_one(left: float) -> None:
    """One request is always tried."""
    width = Width(8, 8)
    width.busy(0, left)
    assert width.limit == 1

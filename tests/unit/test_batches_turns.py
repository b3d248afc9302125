"""Whom a poll asks for."""

from __future__ import annotations

from services.batches.turns import ASKED_MOST, TOGETHER, Turns


def begun() -> Turns:
    """Make turns that have asked for all once."""
    turns = Turns()
    turns.of(["first"])
    return turns


def test_a_few_are_all_asked_for_each_time() -> None:
    """A handful of waiting batches is asked for whole, in one call; for none no call is made."""
    turns = begun()
    assert [turns.of(["a", "b"]) for _ in range(2)] == [[["a", "b"]]] * 2
    assert turns.of([]) == []


def test_many_have_their_turn() -> None:
    """Of very many a poll asks for a bounded number, and each is asked for within so many polls as it takes."""
    turns, waiting = begun(), [str(number) for number in range(4 * ASKED_MOST + 1)]
    polls = [turns.of(waiting) for _ in range(5)]
    assert all(len(calls) == 1 and len(calls[0]) == ASKED_MOST for calls in polls)
    assert {batch_id for calls in polls for batch_id in calls[0]} == set(waiting)


def test_all_are_asked_for_when_news_may_be_lost() -> None:
    """At the start, and once after it was asked for, all have their turn, in calls of bounded size."""
    turns, waiting = Turns(), [str(number) for number in range(2 * TOGETHER + 1)]
    for _ in range(2):
        calls = turns.of(waiting)
        assert max(map(len, calls)) == TOGETHER
        assert [batch_id for call in calls for batch_id in call] == waiting
        assert len(turns.of(waiting)) == 1
        turns.ask_all()

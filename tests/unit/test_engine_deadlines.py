"""Deadlines: who is late, in which order, and what is forgotten."""

from __future__ import annotations

from engine.deadlines import Deadlines


def test_due_gives_the_living_in_order_of_their_deadlines() -> None:
    """Only what is alive and due comes out, earliest first, and once."""
    alive = {1, 2, 3, 4}
    deadlines = Deadlines(alive)
    for when, sequence_id in ((3.0, 1), (1.0, 2), (2.0, 3), (9.0, 4)):
        deadlines.add(when, sequence_id)
    alive.discard(3)
    assert deadlines.next() == 1.0
    assert deadlines.due(3.0) == [2, 1]
    assert deadlines.due(3.0) == []
    assert deadlines.next() == 9.0
    alive.clear()
    assert deadlines.next() is None


def test_the_ended_are_forgotten_though_their_deadline_is_far() -> None:
    """A hundred thousand sequences that end long before their deadline leave no more than a few thousand entries."""
    alive: set[int] = set()
    deadlines = Deadlines(alive)
    most = 0
    for sequence_id in range(100_000):
        alive.add(sequence_id)
        alive.discard(sequence_id - 100)
        deadlines.add(1e9 - sequence_id, sequence_id)  # each one earlier than all before: nothing is dropped at the top
        most = max(most, len(deadlines))
    assert most <= 1_024
    assert len(deadlines.due(2e9)) == 100

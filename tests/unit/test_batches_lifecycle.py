"""The transition table of batches, exhaustively."""

from __future__ import annotations

import itertools

import pytest

from services.batches.lifecycle import STAMPS, TERMINAL, TRANSITIONS, Status, can, sources
from services.batches.record import Record

ALLOWED = {
    "validating": {"in_progress", "failed", "cancelling"},
    "in_progress": {"finalizing", "failed", "cancelling"},
    "finalizing": {"completed", "expired"},
    "cancelling": {"cancelled"},
}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(Status, Status)))
def test_every_pair(old: Status, new: Status) -> None:
    """Exactly the arrows of the drawing are allowed."""
    assert can(old, new) == (new.value in ALLOWED.get(old.value, set()))


@pytest.mark.parametrize("new", Status)
def test_sources_are_the_table_read_backwards(new: Status) -> None:
    """The statement's `where status in` names exactly the statuses that may come before, never more than its two places."""
    assert set(sources(new)) == {old for old in Status if new in TRANSITIONS[old]}
    assert len(sources(new)) <= 2


def test_terminal_statuses() -> None:
    """Four statuses end a life, and nothing leaves them."""
    assert {"completed", "failed", "expired", "cancelled"} == TERMINAL


def test_every_status_can_end() -> None:
    """From every status there is a way to a terminal one."""
    for start in Status:
        reached = {start}
        for _ in Status:
            reached |= {new for old in reached for new in TRANSITIONS[old]}
        assert reached & TERMINAL


def test_stamps_are_columns_of_their_own() -> None:
    """Every status but in_progress sets a timestamp, each its own, and each is a field of the record."""
    assert set(Status) - set(STAMPS) == {Status.IN_PROGRESS}
    assert len(set(STAMPS.values())) == len(STAMPS)
    assert set(STAMPS.values()) <= set(Record.__struct_fields__)

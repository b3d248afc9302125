"""What is kept of progress, and how it is laid over a record."""

from __future__ import annotations

from typing import Any

from haywain.scheduler.v1 import scheduler_pb2
from services.batches.lifecycle import Status
from services.batches.progress import ProgressBook, without_counts
from services.batches.record import Counts, Record, Tokens
from services.batches.wire import batch_message

Progress = scheduler_pb2.Progress


def progress(
    completed: int = 0, failed: int = 0, *, state: Any = Progress.STATE_ACTIVE, start: int = 0, usage: int = 0
) -> Progress:
    """Make the progress of a batch of ten rows."""
    made = Progress(batch_id="b", state=state, counts=scheduler_pb2.RowCounts(total=10, completed=completed, failed=failed))
    if start:
        made.start_time.seconds = start
    if usage:
        made.usage.output_tokens = usage
    return made


def record(**fields: Any) -> Record:
    """Make a record."""
    made = {"endpoint": "/v1/chat/completions", "input_file_id": "f", "completion_window": "24h", "status": Status.IN_PROGRESS}
    return Record(batch_id="b", tenant="t", created_at=100.0, expires_at=200.0, **(made | fields))


def open_book() -> ProgressBook:
    """Make a book that keeps the batch."""
    book = ProgressBook()
    book.open("b")
    return book


def test_counts_never_go_back() -> None:
    """Older news is dropped, wherever it comes from."""
    book = open_book()
    book.note([progress(5)])
    book.note([progress(3)])
    assert book.newest(progress(4), "b") == book.get("b") == progress(5)
    assert book.newest(progress(6), "b") == progress(6)
    assert book.newest(None, "b") == progress(5)


def test_the_end_is_always_news() -> None:
    """A batch that has ended is told, whatever was counted before."""
    book = open_book()
    book.note([progress(5)])
    assert book.note([progress(4, state=Progress.STATE_ENDED)]) == ["b"]
    assert book.has_ended("b")


def test_strangers_and_closed_batches_are_not_kept() -> None:
    """The book is as large as what is open."""
    book = ProgressBook()
    assert book.note([progress(1, state=Progress.STATE_ENDED)]) == []
    book.open("b")
    book.note([progress(1)])
    book.close("b")
    assert book.get("b") is None
    assert book.take_changes() == {}


def test_changes_are_told_once() -> None:
    """Only what moved is written."""
    book = open_book()
    book.note([progress(1, usage=3)])
    assert book.take_changes() == {"b": (Counts(10, 1, 0), Tokens(output_tokens=3), None)}
    book.note([progress(1, usage=3)])
    assert book.take_changes() == {}
    book.note([progress(1, usage=3, start=7)])
    assert list(book.take_changes()) == ["b"]


def test_what_could_not_be_kept_is_kept_later() -> None:
    """Changes that are given back are told again, but not those of batches that are closed."""
    book = open_book()
    book.note([progress(1)])
    changes = book.take_changes()
    book.give_back([*changes, "closed"])
    assert book.take_changes() == changes


def test_what_is_not_kept_is_not_told() -> None:
    """Without its counts, progress says what waits and runs, and the record says what is done."""
    kept = record(counts=Counts(10, 4, 0), usage=Tokens(output_tokens=8))
    live = progress(6, usage=9, start=150)
    live.queued = 3
    told = batch_message(kept, without_counts(live))
    assert (told.counts.completed, told.usage.output_tokens, told.progress.queued) == (4, 8, 3)
    assert not told.HasField("in_progress_time")
    assert without_counts(None) is None


def test_a_lost_batch_is_void() -> None:
    """What was seen of a batch that the scheduler lost counts no more, until there is news."""
    book = open_book()
    book.note([progress(10, state=Progress.STATE_ENDED)])
    book.lose("b")
    assert book.is_lost("b")
    assert not book.has_ended("b")
    book.note([progress(0)])
    assert not book.is_lost("b")


def test_the_further_of_record_and_progress_is_shown() -> None:
    """Counts and usage are of one source, and the total is the record's."""
    kept = record(counts=Counts(10, 4, 0), usage=Tokens(output_tokens=8))
    assert batch_message(kept, progress(3, usage=6)).counts.completed == 4
    assert batch_message(kept, progress(3, usage=6)).usage.output_tokens == 8
    assert batch_message(kept, progress(5, usage=9)).usage.output_tokens == 9


def test_usage_is_unset_until_a_row_ended() -> None:
    """Zero tokens of nothing are no usage."""
    assert not batch_message(record(), progress(0)).HasField("usage")
    live = progress(0)
    live.usage.SetInParent()
    assert not batch_message(record(), live).HasField("usage")


def test_a_start_is_shown_before_it_is_kept() -> None:
    """in_progress_time is live, and not before the creation."""
    assert batch_message(record(), progress(start=150)).in_progress_time.seconds == 150
    assert batch_message(record(), progress(start=50)).in_progress_time.seconds == 100
    assert not batch_message(record(), progress()).HasField("in_progress_time")


def test_an_ended_batch_shows_its_record_only() -> None:
    """Progress that lags behind the end is not shown."""
    ended = record(status=Status.COMPLETED, counts=Counts(10, 10, 0))
    message = batch_message(ended, progress(5, state=Progress.STATE_ENDED))
    assert (message.counts.completed, message.HasField("progress")) == (10, False)

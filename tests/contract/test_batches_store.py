"""Batch records over a real database: every transition by compare-and-set, timestamps in order, leases, intents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import services.batches
from haywain import errors
from haywain.clock import FakeClock
from haywain.db import Database, open_database
from services.batches.lifecycle import STAMPS, Status, can
from services.batches.record import Counts, Defaults, Fault, OwnFile, Plan, Record, Shard, Tokens
from services.batches.store import LEASE_SECONDS, Admission, Answer, BatchStore, Key

FREE = Admission(intake_capacity=100, intake_rows=0, rows_per_second=0.0, one_active_per_file=False)
OWN = OwnFile(
    kind="input",
    file_id="file-1",
    blob_key="inline-batch_1",
    purpose="batch",
    size_bytes=1,
    line_count=2,
    sha256="ab",
    expires_after_seconds=3,
)
SQL = Path(services.batches.__file__).parent / "sql"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def database(database_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    database = await open_database(database_url, SQL, tmp_path / "batches.db")
    yield database
    await database.close()


@pytest.fixture
def store(database: Database, clock: FakeClock) -> BatchStore:
    return BatchStore(database, clock, "one")


def record_of(clock: FakeClock, batch_id: str = "batch_1", **fields: Any) -> Record:
    now = clock.now()
    made = {"endpoint": "/v1/chat/completions", "input_file_id": "file-1", "completion_window": "24h"}
    return Record(batch_id=batch_id, tenant="t", created_at=now, expires_at=now + 60, **(made | fields))


@pytest.mark.parametrize("new", [status for status in Status if status is not Status.VALIDATING])
@pytest.mark.parametrize("old", list(Status))
async def test_every_move(store: BatchStore, clock: FakeClock, old: Status, new: Status) -> None:
    """A move happens exactly when the table has it, sets its own timestamp and no other, and otherwise changes nothing."""
    before = record_of(clock, status=old)
    await store.add(before, FREE)
    clock.advance(5)
    moved = await store.move("batch_1", new, error=Fault("c", "m"))
    after = await store.find("batch_1")
    if not can(old, new):
        assert moved is None
        assert after == before
        return
    assert moved == after
    stamp = {STAMPS[new]: clock.now()} if new in STAMPS else {}
    assert after == replace(before, status=new, error=Fault("c", "m"), **stamp)


async def test_everything_comes_back(store: BatchStore, clock: FakeClock) -> None:
    """Every field survives the database."""
    full = record_of(
        clock,
        request_id="null",
        default_model="1",
        model="true",
        line_count=7,
        expedited=True,
        deterministic=True,
        defaults=Defaults(1, 2, 0.5, 0.25, 3),
        metadata={"a": "null", "b": "1", "c": "\u2028"},
        output_expires_after_seconds=1,
        outcome=Status.EXPIRED,
        plan=Plan(7, [Shard("m", 0, 7)]),
        errors=[Fault("code", "message", "param", 3)],
        error=Fault("code", "message"),
        counts=Counts(7, 4, 3),
        usage=Tokens(2**40, 1, 2, 3),
        output_file_id="o",
        error_file_id="e",
        reject=True,
        pack=True,
        own_files=[OWN],
        adopted=False,
        rows_left=3,
    )
    await store.add(full, FREE)
    assert await store.find("batch_1") == full


async def test_times_stay_in_order_when_the_clock_goes_back(store: BatchStore, clock: FakeClock) -> None:
    """No timestamp is before one that was set earlier, and the first row's start is between its neighbours."""
    await store.add(record_of(clock), FREE)
    created = clock.now()
    await store.move("batch_1", Status.IN_PROGRESS)
    clock.advance(-100)
    finalizing = await store.move("batch_1", Status.FINALIZING, outcome=Status.COMPLETED, in_progress_at=created - 50)
    assert finalizing is not None
    assert (finalizing.in_progress_at, finalizing.finalizing_at) == (created, created)
    clock.advance(-100)
    completed = await store.move("batch_1", Status.COMPLETED, in_progress_at=created + 10)
    assert completed is not None
    assert (completed.in_progress_at, completed.completed_at) == (created, created)


async def test_a_start_that_becomes_known_late(store: BatchStore, clock: FakeClock) -> None:
    """A first row that is told of after the cancellation began is not put behind it."""
    await store.add(record_of(clock, status=Status.IN_PROGRESS), FREE)
    await store.move("batch_1", Status.CANCELLING)
    cancelling_at = clock.now()
    clock.advance(10)
    cancelled = await store.move("batch_1", Status.CANCELLED, in_progress_at=cancelling_at + 5)
    assert cancelled is not None
    assert (cancelled.in_progress_at, cancelled.cancelled_at) == (cancelling_at, cancelling_at + 10)


@pytest.mark.parametrize("late", [False, True])
async def test_a_start_that_was_told_while_it_was_cancelled(store: BatchStore, clock: FakeClock, late: bool) -> None:
    """It is kept, as what was told is, and not behind the cancellation."""
    await store.add(record_of(clock, status=Status.IN_PROGRESS), FREE)
    clock.advance(10)
    await store.move("batch_1", Status.CANCELLING)
    started = clock.now() + (5 if late else -5)
    await store.set_progress({"batch_1": (Counts(9, 0, 0), None, started)})
    record = await store.find("batch_1")
    assert record is not None
    assert record.in_progress_at == min(started, clock.now())


async def test_the_first_plan_stays(store: BatchStore, clock: FakeClock) -> None:
    """A second validation doesn't change what may have been submitted."""
    await store.add(record_of(clock), FREE)
    plans = [Plan(1, [Shard("a", 0, 1)]), Plan(2, [Shard("b", 0, 2)])]
    for model, plan in zip("ab", plans, strict=True):
        await store.set_plan("batch_1", model, plan)
    record = await store.find("batch_1")
    assert record is not None
    assert (record.model, record.plan, record.counts.total) == ("a", plans[0], 1)


async def test_leases(database: Database, store: BatchStore, clock: FakeClock) -> None:
    """A batch is driven by one replica; when that stops renewing, by another; a restarted one takes its own back at once."""
    other = BatchStore(database, clock, "two")
    await store.add(record_of(clock), FREE)
    assert list(await store.claim()) == ["batch_1"]
    assert list(await other.claim()) == []
    clock.advance(LEASE_SECONDS - 1)
    assert list(await store.renew()) == ["batch_1"]
    clock.advance(LEASE_SECONDS - 1)
    assert list(await other.claim()) == []
    await store.drop_leases()
    assert list(await store.claim()) == ["batch_1"]
    clock.advance(LEASE_SECONDS + 1)
    assert list(await other.claim()) == ["batch_1"]
    assert list(await store.renew()) == []
    await store.settle("batch_1")
    clock.advance(LEASE_SECONDS + 1)
    assert list(await store.claim()) == []


async def test_what_another_replica_cancelled(database: Database, store: BatchStore, clock: FakeClock) -> None:
    """The one that drives the batch finds out."""
    await store.add(record_of(clock), FREE)
    await store.claim()
    await BatchStore(database, clock, "two").move("batch_1", Status.CANCELLING)
    assert await store.cancelling() == ["batch_1"]


async def test_a_batch_needs_its_intent(store: BatchStore, clock: FakeClock) -> None:
    """A creation whose hold was given up meanwhile makes no batch."""
    await store.intend("batch_1")
    clock.advance(100)
    assert await store.stale_intents(clock.now() - 60) == ["batch_1"]
    assert await store.doom_intent("batch_1")
    with pytest.raises(errors.Unavailable):
        await store.add(record_of(clock, input_blob_key="input-1"), FREE)
    await store.drop_intent("batch_1")
    assert await store.find("batch_1") is None
    await store.intend("batch_2")
    await store.add(record_of(clock, "batch_2", input_blob_key="input-1"), FREE)
    assert not await store.doom_intent("batch_2")
    assert await store.stale_intents(float("inf")) == []


async def test_pages_of_ties(store: BatchStore, clock: FakeClock) -> None:
    """Batches of one instant are in the order of their ids."""
    names = [f"batch_{n}" for n in range(7)]
    for name in names:
        await store.add(record_of(clock, name), FREE)
    found: list[str] = []
    while page := await store.page("t", after=found[-1] if found else "", size=2):
        found += [record.batch_id for record in page]
    assert found == names[::-1]


async def test_progress_after_the_end_changes_nothing(store: BatchStore, clock: FakeClock) -> None:
    """Late news of a batch that has ended, or whose rows haven't begun, is dropped."""
    for status in (Status.COMPLETED, Status.VALIDATING):
        name = f"batch_{status.value}"
        before = record_of(clock, name, status=status)
        await store.add(before, FREE)
        await store.set_progress({name: (Counts(9, 9, 0), Tokens(1), clock.now())})
        assert await store.find(name) == before


def fields_of(record: Record | None) -> tuple[int, bool]:
    """Tell what the intake and files are owed."""
    assert record is not None
    return record.rows_left, record.adopted


async def test_rows_that_may_still_come(store: BatchStore, clock: FakeClock) -> None:
    """A batch counts with its lines, then with the rows of its plan, then with what is left, and not at all once it has ended."""
    await store.add(record_of(clock, line_count=9, rows_left=9, adopted=False), FREE)
    assert fields_of(await store.find("batch_1")) == (9, False)
    await store.set_plan("batch_1", "m", Plan(7, [Shard("m", 0, 7)], 2))
    await store.set_adopted("batch_1")
    assert fields_of(await store.find("batch_1")) == (7, True)
    await store.move("batch_1", Status.IN_PROGRESS)
    await store.set_progress({"batch_1": (Counts(9, 3, 3), None, None)})
    assert fields_of(await store.find("batch_1")) == (3, True)
    await store.move("batch_1", Status.CANCELLING)
    assert fields_of(await store.find("batch_1")) == (3, True)
    await store.move("batch_1", Status.CANCELLED)
    assert fields_of(await store.find("batch_1")) == (0, True)


async def test_the_intake_is_counted_here_and_by_the_scheduler(store: BatchStore, clock: FakeClock) -> None:
    """What is taken in is the higher of what SQL has left and what the scheduler has; a batch between the two is never missed."""
    await store.add(record_of(clock, "batch_1", line_count=60, rows_left=60, status=Status.IN_PROGRESS), FREE)
    with pytest.raises(errors.CapacityExceeded, match="60 are waiting"):
        await store.add(record_of(clock, "batch_2", line_count=41, rows_left=41), FREE)
    busy = Admission(intake_capacity=100, intake_rows=70, rows_per_second=0.0, one_active_per_file=False)
    await store.add(record_of(clock, "batch_3", line_count=20, rows_left=20), busy)
    with pytest.raises(errors.CapacityExceeded, match="90 are waiting"):
        await store.add(record_of(clock, "batch_4", line_count=11, rows_left=11), busy)
    await store.add(record_of(clock, "batch_5", line_count=10, rows_left=10), busy)


async def test_rows_that_wait_are_counted_only_when_it_matters(store: BatchStore, clock: FakeClock) -> None:
    """What has ended makes room at once, though it isn't counted for every creation; what was taken in is never forgotten."""
    for number in range(10):
        await store.add(record_of(clock, f"batch_{number}", line_count=10, rows_left=10), FREE)
    with pytest.raises(errors.CapacityExceeded, match="100 are waiting"):
        await store.add(record_of(clock, "batch_10", line_count=1, rows_left=1), FREE)
    await store.move("batch_0", Status.FAILED)
    await store.add(record_of(clock, "batch_10", line_count=10, rows_left=10), FREE)
    with pytest.raises(errors.CapacityExceeded, match="100 are waiting"):
        await store.add(record_of(clock, "batch_11", line_count=1, rows_left=1), FREE)


async def test_an_answer_is_kept_for_a_day(store: BatchStore, clock: FakeClock) -> None:
    """The key finds the answer of the batch it was recorded with, in its tenant, for 24 hours; then the key is free."""
    key = Key("create", "k", "print")
    assert await store.add(record_of(clock, "batch_1", request_id="r1"), FREE, [key], "first") is None
    found = Answer("first", "r1")
    assert await store.add(record_of(clock, "batch_2"), FREE, [key], "second") == found
    assert await store.find("batch_2") is None
    assert await store.earlier("t", [key], "") == found
    assert await store.earlier("other", [key], "") is None
    assert await store.earlier("t", [Key("request", "k", "print")], "") is None
    with pytest.raises(errors.KeyReused):
        await store.earlier("t", [Key("create", "k", "other")], "")
    clock.advance(86_399)
    await store.forget_answers()
    assert await store.earlier("t", [key], "") == found
    clock.advance(1)
    assert await store.earlier("t", [Key("create", "k", "other")], "") is None
    assert await store.add(record_of(clock, "batch_3"), FREE, [key], "third") is None
    assert await store.earlier("t", [key], "") == Answer("third", "")

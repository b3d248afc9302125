"""What several schedulers share: a turn that can't come any more, news that could not be had, the order of commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from haywain import errors
from haywain.clock import FakeClock
from haywain.db import Database, Transaction, open_database
from haywain.engine.v1 import engine_pb2
from services.scheduler.batch import Batch, Held, Submission
from services.scheduler.checkpoints import Checkpoints
from services.scheduler.claims import Claims
from services.scheduler.engine_store import EngineStore
from services.scheduler.leases import Leases, Want
from services.scheduler.meter import Meter
from services.scheduler.news import News
from services.scheduler.replay import row_prefix
from services.scheduler.rows import Input, Lines
from services.scheduler.segment import Segment, Tally
from services.scheduler.segment_ledger import SegmentLedger
from services.scheduler.shared import Shared
from services.scheduler.store import ShardRow, Store

_SQL = Path("services/scheduler/sql").absolute()
_T = TypeVar("_T")


@pytest.fixture
async def database(database_url: str, data_dir: Path) -> AsyncIterator[Database]:
    """Give an empty database."""
    opened = await open_database(database_url, _SQL, data_dir / "scheduler.db")
    yield opened
    await opened.close()


class Failing:
    """A database whose reads wait for a word, and fail the first time."""

    def __init__(self, database: Database) -> None:
        """Reads pass through, but for the first."""
        self._database = database
        self.reads = 0
        self.go = asyncio.Event()

    async def read(self, work: Callable[[Transaction], _T]) -> _T:
        """Read."""
        self.reads += 1
        mine = self.reads
        await self.go.wait()
        if mine == 2:
            raise errors.Unavailable
        return await self._database.read(work)

    async def write(self, work: Callable[[Transaction], _T]) -> _T:
        """Write."""
        return await self._database.write(work)

    async def close(self) -> None:
        """Leave it open."""


async def test_a_batch_that_is_forgotten_has_no_turn(database: Database) -> None:
    """Who waits for the turn to seal a batch that is forgotten meanwhile is told, and doesn't wait for ever."""
    shared = Shared(database, "s0", 30, FakeClock())
    with pytest.raises(errors.BatchMissing):
        await shared.take_turn("batch_a", "")


async def test_nobody_seals_what_runs_again(database: Database, tmp_path: Path) -> None:
    """A turn that began before results were lost is in vain: what it sealed is without them."""
    clock = FakeClock()
    leases, shared = Leases(database, "s0", 30, clock), Shared(database, "s0", 30, clock)
    await stored_batch(database, tmp_path)
    [[claimed]] = await leases.claim([Want("batch_a", "m", 1)])
    whole = Segment(
        batch_id="batch_a", shard=0, epoch=claimed.epoch, seq=0, object="0-1.jsonl", start_byte=0, end_byte=9, tally=Tally(10),
        done=True,
    )  # fmt: skip
    assert await shared.commit([whole]) == []
    turn, _ = await shared.take_turn("batch_a", "")
    await shared.lose("batch_a", ["0-1.jsonl"])
    with pytest.raises(errors.Unavailable):
        await shared.seal("batch_a", turn, "without them")
    [[claimed]] = await leases.claim([Want("batch_a", "m", 1)])
    assert await shared.commit([msgspec.structs.replace(whole, epoch=claimed.epoch, object="0-2.jsonl")]) == []
    assert await shared.seal("batch_a", turn, "all") == "all"


async def test_who_seals_for_long_keeps_its_turn(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long sealing takes, nobody else begins meanwhile; once a turn isn't kept any more, the next one may be taken."""
    clock = FakeClock()
    one, other = Shared(database, "s0", 30, clock), Shared(database, "s1", 30, clock)
    batch = await stored_batch(database, tmp_path)
    turn, _ = await one.take_turn("batch_a", "")
    keep, kept = one.keep_turn, asyncio.Semaphore(0)

    async def counted(batch_id: str, number: int) -> None:
        await keep(batch_id, number)
        kept.release()

    monkeypatch.setattr(one, "keep_turn", counted)
    keeping = asyncio.create_task(SegmentLedger(one, tmp_path, 0.03).keep_turn(batch, turn))
    for _ in range(3):
        clock.advance(25)
        while not kept.locked():  # those before the clock went on
            await kept.acquire()
        await kept.acquire()
        await kept.acquire()  # the one before may have looked at the clock earlier
        assert await other.take_turn("batch_a", "") == (0, "")
    keeping.cancel()
    clock.advance(31)
    assert await other.take_turn("batch_a", "") == (turn + 1, "")


async def test_nobody_shares_news_that_could_not_be_had(database: Database) -> None:
    """Of those who ask together each is answered by a look that went well, or told that there was none."""
    failing = Failing(database)
    news = News(Shared(failing, "s0", 30, FakeClock()), {}, FakeClock())
    under_way = asyncio.create_task(news.look())
    while not failing.reads:  # noqa: ASYNC110 - it has no bell
        await asyncio.sleep(0)
    together = [asyncio.create_task(news.look()) for _ in range(3)]
    await asyncio.sleep(0)
    failing.go.set()
    await under_way
    outcomes: Sequence[Any] = await asyncio.gather(*together, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [errors.Unavailable, type(None), type(None)]
    assert failing.reads == 3


async def test_who_works_on_a_batch_is_known_while_the_leases_last(database: Database, tmp_path: Path) -> None:
    """Leases that are renewed keep it known that others have the rows; once they end, it is known that nobody has."""
    clock = FakeClock()
    other, shared = Leases(database, "s1", 30, clock), Shared(database, "s0", 30, clock)
    batch = await stored_batch(database, tmp_path)
    [[claimed]] = await other.claim([Want("batch_a", "m", 1, first=True)])
    news = News(shared, {"batch_a": batch}, clock)
    await news.look()
    assert batch.elsewhere == 1
    for _ in range(2):
        clock.advance(20)
        await other.renew([("batch_a", 0, claimed.epoch)])
        await news.look_elsewhere()
        assert batch.elsewhere == 1
    clock.advance(31)
    await news.look_elsewhere()
    assert batch.elsewhere == 0


async def test_engines_that_are_gone_are_forgotten(database: Database) -> None:
    """A drained engine is remembered until it is forgotten. What was added stays, and what was removed and is heard of."""
    clock = FakeClock()
    store = EngineStore(database, clock)
    await store.add(engine_pb2.Engine(engine_id="e2", address="h:1"))
    for name in ("e0", "e1"):
        await store.drain(engine_pb2.Engine(engine_id=name, incarnation="1"))
    await store.remove(engine_pb2.Engine(engine_id="e3", incarnation="1"))
    clock.advance(10)
    await store.keep({"e3"})
    await store.put(engine_pb2.Engine(engine_id="e1", incarnation="1", slots=2))
    await store.drop(clock.now() - 5)
    known = [(one.engine.engine_id, one.engine.slots, one.drained, one.removed) for one in await store.all()]
    assert known == [("e1", 2, "1", None), ("e2", 0, "", None), ("e3", 0, "", "1")]


async def test_the_end_of_a_shard_is_committed_last(database: Database, tmp_path: Path) -> None:
    """Rows whose commit is being tried again are in before those that end their shard, which would shut them out."""
    clock, flaky = FakeClock(), Flaky(database)
    shared, leases = Shared(flaky, "s0", 30, clock), Leases(database, "s0", 30, clock)
    held = await held_shard(database, leases, tmp_path)
    ledger = SegmentLedger(shared, tmp_path, 30)
    checkpoints = Checkpoints(ledger, Claims(leases, ledger, 30, {}), 1.0)

    def synced(rows: int) -> None:
        held.delta.add(Tally(completed=rows))
        held.unrecorded -= rows
        held.journal.end += rows
        checkpoints.touch(held.batch, soon=False)

    synced(4)
    first = asyncio.create_task(checkpoints.commit())
    await flaky.failed.wait()
    synced(6)
    await asyncio.gather(first, checkpoints.commit())
    assert not held.lost
    [stored] = await Store(database).load()
    assert (stored.tally.completed, stored.shards[0].state) == (10, 2)


class Flaky:
    """A database whose first write fails."""

    def __init__(self, database: Database) -> None:
        """Everything else passes through."""
        self._database = database
        self.failed = asyncio.Event()

    async def read(self, work: Callable[[Transaction], _T]) -> _T:
        """Read."""
        return await self._database.read(work)

    async def write(self, work: Callable[[Transaction], _T]) -> _T:
        """Write."""
        if not self.failed.is_set():
            self.failed.set()
            raise errors.Unavailable
        return await self._database.write(work)

    async def close(self) -> None:
        """Leave it open."""


async def stored_batch(database: Database, folder: Path) -> Batch:
    """Submit a batch of ten rows in one shard."""
    submission = Submission(
        batch_id="batch_a", submit_order=0, tenant="t", endpoint="/v1/chat/completions", lane=3, expire_at=None, input_key="i",
        index_key="x", row_count=10, body_defaults="", deterministic=False, recording="segments",
    )  # fmt: skip
    await Store(database).submit(submission, [ShardRow(0, "m", 0, 10)])
    return Batch(
        submission=submission, recorded=bytearray(10), input=Input(folder), index=folder, lines=Lines(""),
        prefix=row_prefix("batch_a"), meter=Meter(FakeClock()),
    )  # fmt: skip


async def held_shard(database: Database, leases: Leases, folder: Path) -> Held:
    """Claim its only shard."""
    batch = await stored_batch(database, folder)
    [[claimed]] = await leases.claim([Want("batch_a", "m", 1)])
    ledger = SegmentLedger(Shared(database, "s0", 30, FakeClock()), folder, 30)
    batch.held[0] = held = Held(batch, "m", claimed, await ledger.hold(batch, claimed))
    return held

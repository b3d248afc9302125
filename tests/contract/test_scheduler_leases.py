"""Leases in SQL: one holder at a time, and a holder that lost its lease writes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from haywain.clock import FakeClock
from haywain.db import Database, open_database
from services.scheduler.batch import Submission, Tally
from services.scheduler.leases import Claimed, Leases, Segment, Want
from services.scheduler.store import ShardRow, Store

_SQL = Path("services/scheduler/sql").absolute()


@pytest.fixture
async def database(database_url: str, data_dir: Path) -> AsyncIterator[Database]:
    """Give a database with one batch of three shards of model m and one of model n."""
    opened = await open_database(database_url, _SQL, data_dir / "scheduler.db")
    submission = Submission(
        batch_id="batch_a", submit_order=0, tenant="t", endpoint="/v1/chat/completions", lane=3, expire_at=None, input_key="i",
        index_key="x", row_count=40, body_defaults="", deterministic=False,
    )  # fmt: skip
    await Store(opened).submit(submission, [ShardRow(at, "mmmn"[at], at * 10, 10) for at in range(4)])
    yield opened
    await opened.close()


def segment(claimed: Claimed, *, seq: int = 0, completed: int = 10, done: bool = False) -> Segment:
    """Make a segment of a claimed shard."""
    return Segment(
        batch_id="batch_a", shard=claimed.shard, epoch=claimed.epoch, seq=seq, object="j", start_byte=0, end_byte=100,
        tally=Tally(completed=completed, output_tokens=completed), done=done,
    )  # fmt: skip


async def claim(leases: Leases, most: int = 1, model: str = "m") -> list[Claimed]:
    """Claim shards."""
    [claimed] = await leases.claim([Want("batch_a", model, most)])
    return claimed


async def tokens(database: Database) -> int:
    """Sum the tokens of committed segments."""
    [stored] = await Store(database).load()
    return stored.tally.output_tokens


async def test_a_shard_has_one_holder_at_a_time(database: Database) -> None:
    """Shards are claimed in order, few at a time, of one model, and nobody gets one that is held."""
    clock = FakeClock()
    first, second = Leases(database, "s0", 30, clock), Leases(database, "s1", 30, clock)
    assert await claim(first, 2) == [Claimed(0, range(10), 1), Claimed(1, range(10, 20), 1)]
    assert await claim(second, 5) == [Claimed(2, range(20, 30), 1)]
    assert await claim(second, 5) == []
    assert await claim(second, 5, "n") == [Claimed(3, range(30, 40), 1)]


async def test_the_first_shard_starts_the_batch(database: Database) -> None:
    """Who claims it learns when that was, in the same transaction; nobody who claims nothing starts anything."""
    clock = FakeClock()
    first, second = Leases(database, "s0", 30, clock), Leases(database, "s1", 30, clock)
    began = clock.now()
    assert await first.claim([Want("batch_a", "other", 1, first=True)]) == [[]]
    [stored] = await Store(database).load()
    assert stored.submission.start_time is None
    [[claimed]] = await first.claim([Want("batch_a", "m", 1, first=True)])
    assert claimed.start_time == began
    clock.advance(5)
    [[claimed]] = await second.claim([Want("batch_a", "m", 1, first=True)])
    [stored] = await Store(database).load()
    assert claimed.start_time == stored.submission.start_time == began


async def test_an_expired_lease_can_be_claimed_by_anybody(database: Database) -> None:
    """A lease ends when it is not renewed; the next claim has a higher epoch."""
    clock = FakeClock()
    first, second = Leases(database, "s0", 30, clock), Leases(database, "s1", 30, clock)
    await claim(first, 3)
    clock.advance(20)
    assert await first.renew([("batch_a", 0, 1)]) == []
    clock.advance(15)
    assert await claim(second, 5) == [Claimed(1, range(10, 20), 2), Claimed(2, range(20, 30), 2)]


async def test_a_zombie_writes_nothing(database: Database) -> None:
    """A holder that was paused past its lease can neither renew nor commit nor finish; the new one can, once."""
    clock = FakeClock()
    zombie, owner = Leases(database, "s0", 30, clock), Leases(database, "s1", 30, clock)
    [stale] = await claim(zombie)
    clock.advance(31)
    [held] = await claim(owner)
    assert (held.shard, held.epoch) == (stale.shard, 2)
    assert await zombie.renew([("batch_a", 0, 1)]) == [("batch_a", 0, 1)]
    assert await zombie.commit([segment(stale, done=True)]) == [("batch_a", 0, 1)]
    assert await tokens(database) == 0
    assert await owner.commit([segment(held, completed=4)]) == []
    assert await owner.commit([segment(held, completed=4)]) == [("batch_a", 0, 2)]
    assert await owner.commit([segment(held, seq=1, completed=6, done=True)]) == []
    assert await tokens(database) == 10
    clock.advance(100)
    assert [claimed.shard for claimed in await claim(owner, 5)] == [1, 2]


async def test_a_restart_takes_its_own_leases_back(database: Database) -> None:
    """At its start a replica gives back what its earlier life held, and only that."""
    clock = FakeClock()
    first, other = Leases(database, "s0", 30, clock), Leases(database, "s1", 30, clock)
    await claim(first)
    await claim(other)
    assert await Leases(database, "s0", 30, clock).release_own() == 1
    assert await claim(first, 5) == [Claimed(0, range(10), 2), Claimed(2, range(20, 30), 1)]


async def test_recovery_commits_with_a_lease_of_its_own(database: Database) -> None:
    """What was synced but not committed gets a segment with a new epoch; done shards stay done until the batch starts over."""
    leases = Leases(database, "s0", 30, FakeClock())
    await leases.recover([segment(Claimed(0, range(10), 0), done=True), segment(Claimed(1, range(10, 20), 0), completed=3)])
    assert await tokens(database) == 13
    assert await claim(leases, 5) == [Claimed(1, range(10, 20), 2), Claimed(2, range(20, 30), 1)]
    await leases.start_over("batch_a")
    assert await tokens(database) == 0
    assert [shard.shard for shard in await claim(leases, 5)] == [0, 1, 2]


async def test_forgetting_removes_all_rows(database: Database) -> None:
    """Deleting a submission deletes its shards and segments."""
    leases, store = Leases(database, "s0", 30, FakeClock()), Store(database)
    [held] = await claim(leases)
    await leases.commit([segment(held)])
    await store.delete("batch_a")
    assert await store.load() == []
    assert await claim(leases) == []

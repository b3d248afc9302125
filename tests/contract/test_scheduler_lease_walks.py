"""The steps of the lease model (services/scheduler/lease_model.py) taken by the real statements, in many orders."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from haywain import errors
from haywain.clock import FakeClock
from haywain.db import Database, open_database
from services.scheduler.batch import Submission
from services.scheduler.leases import Leases, Want
from services.scheduler.segment import Claimed, Segment, Tally
from services.scheduler.shared import Shared
from services.scheduler.store import ShardRow, Store

SQL = Path(__file__).parents[2] / "services" / "scheduler" / "sql"
SHARDS, ROWS, STEPS = 2, 3, 100


class Walker:
    """A scheduler that does what it is told, whatever has become of its leases."""

    def __init__(self, database: Database, name: str, clock: FakeClock) -> None:
        """It holds nothing."""
        self.leases, self.shared, self.store = Leases(database, name, 10, clock), Shared(database, name, 10, clock), Store(database)
        self.held: dict[int, tuple[Claimed, set[int], set[int], int]] = {}
        """By shard: the claim, rows recorded before, rows synced since, the number of the next segment."""
        self.turn = (0, "")

    async def claim(self) -> None:
        """Claim a shard, and read which of its rows are recorded."""
        [claimed] = await self.leases.claim([Want("batch_a", "m", 1)])
        for one in claimed:
            self.held[one.shard] = (one, await recorded(self.shared, one.shard), set(), 0)

    async def write(self, dice: random.Random) -> None:
        """Have lines of some rows on the disk."""
        for claimed, known, synced, _ in self.held.values():
            left = sorted(set(claimed.rows) - known - synced)
            synced |= set(left[: dice.randint(0, len(left))])

    async def commit(self, *, answered: bool = True) -> None:
        """Commit what is on the disk; without an answer it is done again."""
        for shard, (claimed, known, synced, seq) in list(self.held.items()):
            if not synced:
                continue
            segment = Segment(
                batch_id="batch_a", shard=shard, epoch=claimed.epoch, seq=seq, object=",".join(map(str, sorted(synced))),
                start_byte=0, end_byte=1, tally=Tally(completed=len(synced)), done=not set(claimed.rows) - known - synced,
            )  # fmt: skip
            lost = await self.shared.commit([segment])
            if not answered:
                lost = await self.shared.commit([segment])
            if lost or segment.done:
                del self.held[shard]
            else:
                self.held[shard] = (claimed, known | synced, set(), seq + 1)

    async def renew(self) -> None:
        """Renew what is held."""
        lost = await self.leases.renew([("batch_a", shard, held[0].epoch) for shard, held in self.held.items()])
        for _, shard, _ in lost:
            del self.held[shard]

    async def crash(self) -> None:
        """Forget everything."""
        self.held, self.turn = {}, (0, "")

    async def take_turn(self) -> None:
        """Take the turn to seal, if the batch has ended, and read the results."""
        stored = await self.store.get("batch_a")
        if stored.submission.stop_reason or all(shard.state == 2 for shard in stored.shards):
            turn, _ = await self.shared.take_turn("batch_a", "")
            if turn:
                self.turn = (turn, f"{sorted(await recorded(self.shared))} in turn {turn}")

    async def seal(self) -> None:
        """Say what is sealed."""
        (turn, sealed), self.turn = self.turn, (0, "")
        if turn:
            try:
                await self.shared.seal("batch_a", turn, sealed)
            except errors.Unavailable:  # the turn was lost
                return


async def recorded(shared: Shared, shard: int | None = None) -> set[int]:
    """Read the rows with a committed line; no row has two."""
    rows = [int(row) for span in await shared.spans("batch_a", shard) for row in span.object.split(",")]
    assert len(rows) == len(set(rows)), "a row is recorded twice"
    return set(rows)


@pytest.mark.parametrize("seed", range(12))
async def test_any_order_of_steps(database_url: str, data_dir: Path, seed: int) -> None:
    """No row is recorded twice or lost, nothing is recorded after the stop, and what is sealed is what is recorded, once."""
    dice, clock = random.Random(seed), FakeClock()
    database = await open_database(database_url, SQL, data_dir / "scheduler.db")
    submission = Submission(
        batch_id="batch_a", submit_order=0, tenant="t", endpoint="/v1/chat/completions", lane=3, expire_at=None, input_key="i",
        index_key="x", row_count=SHARDS * ROWS, body_defaults="", deterministic=False, recording="segments",
    )  # fmt: skip
    await Store(database).submit(submission, [ShardRow(at, "m", at * ROWS, ROWS) for at in range(SHARDS)])
    both = [Walker(database, name, clock) for name in ("s1", "s2")]
    before, final, sealed = set[int](), None, ""
    for step in range(STEPS):
        walker = dice.choice(both)
        steps: list[Callable[[], Coroutine[Any, Any, None]]] = [
            walker.claim, walker.claim, lambda walker=walker: walker.write(dice), walker.commit,
            lambda walker=walker: walker.commit(answered=False), walker.renew, walker.take_turn, walker.seal,
        ]  # fmt: skip
        await dice.choices([*steps, walker.crash], [2] * len(steps) + [1])[0]()
        if dice.random() < 0.4:
            clock.advance(11)  # every lease may have expired by now
        if step == STEPS * 3 // 4 and dice.random() < 0.5:
            await Store(database).stop("batch_a", 1)
            final = await recorded(both[0].shared)
        now = await recorded(both[0].shared)
        assert before <= now, "a recorded row is lost"
        assert final is None or now == final, "a row is recorded after the stop"
        before = now
        found = (await Store(database).get("batch_a")).submission.sealed
        assert not sealed or found == sealed, "the batch is sealed twice"
        assert not found or found.startswith(f"{sorted(now)} in"), "what is sealed is not what is recorded"
        sealed = found
    await database.close()

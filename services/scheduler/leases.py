"""Leases of shards: SQL decides who works on what, and a newer epoch fences an older one off.

A lease is exclusive until it expires; it is renewed at a third of its length. Its holder may be paused past its end without
noticing: that is why everything it writes names its epoch, and why a write that touches no row ends its attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from haywain.clock import Clock
from haywain.db import Database, Transaction
from services.scheduler.segment import Claimed, Lease, Segment
from services.scheduler.store import started

__all__ = ["Claimed", "Leases", "Segment", "Want", "commit_segment"]


class Want(msgspec.Struct, frozen=True):
    """At most `most` shards of a batch and model."""

    batch_id: str
    model: str
    most: int
    first: bool = False
    """The batch isn't known to have started: with its first shard it does."""


class Leases:
    """Claims, renews and releases the shards of one replica."""

    def __init__(self, database: Database, owner: str, lease_seconds: float, clock: Clock) -> None:
        """`owner` is the replica's name; it stays the same over restarts."""
        self._database = database
        self._owner = owner
        self._seconds = lease_seconds
        self._clock = clock
        self._renewed_at = clock.now()

    async def release_own(self, *, alone: bool = False) -> int:
        """Give back what an earlier life of this replica held; `alone`, what anybody did."""
        if alone:
            return await self._database.write(lambda tx: tx.execute("release_all"))
        return await self._database.write(lambda tx: tx.execute("release_own", owner=self._owner))

    async def release(self, leases: Iterable[Lease]) -> None:
        """Give leases of (batch, shard, epoch) back."""
        held = list(leases)

        def release(tx: Transaction) -> None:
            for batch_id, shard, epoch in held:
                tx.execute("release_shard", batch_id=batch_id, shard=shard, epoch=epoch)

        await self._database.write(release)

    async def claim(self, wants: Sequence[Want]) -> list[list[Claimed]]:
        """Claim shards, one list a want: fewer than wanted, or none, when others hold them."""

        def claim(tx: Transaction) -> list[list[Claimed]]:
            return [self._claim(tx, want) for want in wants]

        return await self._database.write(claim)

    def _claim(self, tx: Transaction, want: Want) -> list[Claimed]:
        found = _claimed(tx.fetch("claim_shards", batch_id=want.batch_id, model=want.model, most=want.most, **self._terms()))
        if not want.first or not found:
            return found
        start_time = started(tx, want.batch_id, self._clock.now())
        return [msgspec.structs.replace(claimed, start_time=start_time) for claimed in found]

    def overdue(self) -> bool:
        """Tell whether leases were not renewed for so long that they may have expired: claims would take them anew."""
        return self._clock.now() - self._renewed_at > self._seconds / 2

    def expired(self) -> bool:
        """Tell whether leases were not renewed for so long that others may have claimed them."""
        return self._clock.now() - self._renewed_at > self._seconds

    async def renew(self, leases: Iterable[Lease]) -> list[Lease]:
        """Extend leases of (batch, shard, epoch); answers those that are lost."""
        held = list(leases)
        if not held:
            self._renewed_at = self._clock.now()
            return []

        def renew(tx: Transaction) -> list[Lease]:
            self._renewed_at = now = self._clock.now()
            until = now + self._seconds
            return [
                (batch_id, shard, epoch)
                for batch_id, shard, epoch in held
                if not tx.execute("renew_shard", batch_id=batch_id, shard=shard, epoch=epoch, until=until)
            ]

        return await self._database.write(renew)

    async def commit(self, segments: Sequence[Segment]) -> list[Lease]:
        """Commit segments and finish the shards that are done; answers the leases that are lost. Repeating changes nothing."""

        def commit(tx: Transaction) -> list[Lease]:
            return [segment.lease for segment in segments if not commit_segment(tx, segment)]

        return await self._database.write(commit)

    async def recover(self, segments: Sequence[Segment]) -> None:
        """Commit, with leases taken for the moment, what an earlier life recorded but did not commit."""

        def recover(tx: Transaction) -> None:
            for segment in segments:
                for claimed in _claimed(tx.fetch("claim_shard", batch_id=segment.batch_id, shard=segment.shard, **self._terms())):
                    mine = msgspec.structs.replace(segment, epoch=claimed.epoch)
                    commit_segment(tx, mine)
                    tx.execute("release_shard", batch_id=mine.batch_id, shard=mine.shard, epoch=mine.epoch)

        await self._database.write(recover)

    async def start_over(self, batch_id: str) -> None:
        """Forget what was committed of a batch, because its journal says less; no shard may be held."""

        def start_over(tx: Transaction) -> None:
            tx.execute("drop_segments", batch_id=batch_id)
            tx.execute("reopen_shards", batch_id=batch_id)

        await self._database.write(start_over)

    def _terms(self) -> dict[str, object]:
        now = self._clock.now()
        return {"owner": self._owner, "now": now, "until": now + self._seconds}


def _claimed(rows: Sequence[object]) -> list[Claimed]:
    found = msgspec.convert(rows, list[_Row])
    return sorted((Claimed(row.shard, range(row.first_row, row.first_row + row.row_count), row.epoch) for row in found), key=_shard)


def _shard(claimed: Claimed) -> int:
    return claimed.shard


class _Row(msgspec.Struct):
    shard: int
    first_row: int
    row_count: int
    epoch: int


def commit_segment(tx: Transaction, segment: Segment, statement: str = "commit_segment") -> bool:
    """Commit a segment, by a statement that is fenced; False when the lease is lost, or all was committed before."""
    tally = segment.tally
    batch_id, shard, epoch = segment.lease
    touched = tx.execute(
        statement,
        batch_id=batch_id, shard=shard, epoch=epoch, seq=segment.seq, object=segment.object,
        start_byte=segment.start_byte, end_byte=segment.end_byte, completed=tally.completed, failed=tally.failed,
        input_tokens=tally.input_tokens, cached_tokens=tally.cached_tokens,
        output_tokens=tally.output_tokens, reasoning_tokens=tally.reasoning_tokens,
    )  # fmt: skip
    if segment.done:
        touched += tx.execute("finish_shard", batch_id=batch_id, shard=shard, epoch=epoch)
    return touched > 0

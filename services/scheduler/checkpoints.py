"""Committing what is recorded: now and then, and when a shard or batch ends, one transaction for all shards with news.

All segments of a batch's checkpoint end at the same byte of its journal, so the sums over a batch's segments are its totals up
to the last of these bytes; a restart reads tokens from the journal behind it only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from haywain import crash, errors, log
from services.scheduler.batch import Batch, Held, Tally
from services.scheduler.claims import Claims
from services.scheduler.leases import Leases, Segment

__all__ = ["Checkpoints"]

_SOON_SECONDS = 0.02
"""Ends of shards that come so close together share a checkpoint."""
_log = log.get()


class Checkpoints:
    """The batches with news."""

    def __init__(self, leases: Leases, claims: Claims, seconds: float) -> None:
        """At most `seconds` go by before recorded rows are committed."""
        self._leases = leases
        self._claims = claims
        self._seconds = seconds
        self._dirty: set[Batch] = set()
        self._soon = asyncio.Event()
        self.finished: Callable[[Batch], None] = lambda batch: None
        """Called when shards of a batch were finished."""

    def touch(self, batch: Batch, *, soon: bool) -> None:
        """Say that a batch has news; `soon` when a shard or the batch ended."""
        self._dirty.add(batch)
        if soon:
            self._soon.set()

    async def run(self) -> None:
        """Commit until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._soon.wait()
                    await asyncio.sleep(_SOON_SECONDS)
            self._soon.clear()
            if self._dirty:
                await self.commit()

    async def commit(self) -> None:
        """Commit all news; tried again until it is in the database."""
        dirty, self._dirty = self._dirty, set()
        pieces = [piece for batch in dirty for piece in _pieces(batch)]
        if not pieces:
            return
        pause = 0.1
        while True:
            try:
                lost = set(await self._leases.commit([segment for _, segment in pieces]))
                crash.point("scheduler:segments-committed")
                break
            except errors.HaywainError as error:
                # The same segments again: had they been committed after all, repeating them would change nothing.
                _log.error("checkpoint.failed", error=str(error), retry_seconds=pause)
            await asyncio.sleep(pause)
            pause = min(5.0, 2 * pause)
        for held, segment in pieces:
            if held.batch.forgotten:
                continue
            if segment.lease in lost:
                self._claims.drop(held)
            elif segment.done:
                held.batch.held.pop(held.shard, None)
        for batch in dirty:
            if not batch.forgotten:
                self.finished(batch)


def _pieces(batch: Batch) -> list[tuple[Held, Segment]]:
    pieces: list[tuple[Held, Segment]] = []
    if batch.forgotten:
        return pieces
    end = batch.journal.end
    for held in batch.held.values():
        done = held.unrecorded <= 0
        if held.lost or not (held.delta.rows or done):
            continue
        batch_id, shard, epoch = held.lease
        segment = Segment(
            batch_id=batch_id, shard=shard, epoch=epoch, seq=held.seq, object=batch.journal.path.name,
            start_byte=batch.checkpointed, end_byte=end, tally=held.delta, done=done,
        )  # fmt: skip
        held.seq += 1
        held.delta = Tally()
        pieces.append((held, segment))
    if pieces:
        batch.checkpointed = end
    return pieces

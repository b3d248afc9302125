"""Committing segments: now and then, and when a shard or batch ends, one transaction for all shards with news."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from haywain import crash, errors, log
from services.scheduler.batch import Batch
from services.scheduler.claims import Claims
from services.scheduler.ledger import Ledger

__all__ = ["Checkpoints"]

_SOON_SECONDS = 0.02
"""Ends of shards that come so close together share a checkpoint."""
_log = log.get()


class Checkpoints:
    """The batches with news."""

    def __init__(self, ledger: Ledger, claims: Claims, seconds: float) -> None:
        """At most `seconds` go by before what is on the disk is committed."""
        self._ledger = ledger
        self._claims = claims
        self._seconds = seconds
        self._dirty: set[Batch] = set()
        self._soon = asyncio.Event()
        self._turn = asyncio.Lock()
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
        """Commit all news; tried again until it is in the database. One after the other: a shard's end comes last."""
        async with self._turn:
            await self._commit()

    async def _commit(self) -> None:
        dirty, self._dirty = self._dirty, set()
        pieces = [piece for batch in dirty if not batch.forgotten for piece in self._ledger.segments(batch)]
        if not pieces:
            return
        pause = 0.1
        while True:
            try:
                lost = set(await self._ledger.commit([segment for _, segment in pieces]))
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
                held.let_go()
        await self._ledger.committed()
        for batch in dirty:
            if not batch.forgotten:
                self.finished(batch)

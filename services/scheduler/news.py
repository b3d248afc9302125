"""What other schedulers did: read from SQL twice a second, after each commit, and whenever somebody asks.

Batches that they took in are opened here, those that they forgot are dropped; counts, stop and seal of the others are taken over.
SQL numbers the changes, so nothing that was seen is read again, and figures never go back, whichever scheduler is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from haywain import errors, log
from haywain.clock import Clock
from services.scheduler.batch import Batch
from services.scheduler.shared import Shared, State

__all__ = ["News"]

_POLL_SECONDS = 0.5
_log = log.get()


class News:
    """Keeps the batches in memory as SQL has them."""

    def __init__(self, shared: Shared, batches: Mapping[str, Batch], clock: Clock) -> None:
        """`batches` are the known ones, by id."""
        self._shared = shared
        self._batches = batches
        self._clock = clock
        self._turn = asyncio.Lock()
        self._begun = self._done = 0
        """Looks, by number."""
        self.seen = 0
        """The number of the last change that was seen."""
        self.came: Callable[[str], Awaitable[None]] | None = None
        """Called with a batch that another took in."""
        self.went: Callable[[Batch], None] = lambda batch: None
        """Called with a batch that another forgot."""
        self.changed: Callable[[Batch], None] = lambda batch: None
        """Called with a batch that is up to date again."""
        self.drained: Callable[[Mapping[str, str]], None] = lambda incarnations: None
        """Called with the engines that get nothing more, and which incarnation of each."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await self.look()
                self.drained(await self._shared.drained())
            except errors.HaywainError as error:
                _log.warning("news.failed", error=error.message)

    async def look(self) -> None:
        """See what has changed by now. Raises Unavailable. Those who ask at the same time share a look that went well."""
        mine = self._begun + 1  # one that is under way may have read before
        async with self._turn:
            if self._done < mine:
                self._begun = number = self._begun + 1
                await self._look()
                self._done = number

    async def _look(self) -> None:
        changes = await self._shared.changes(self.seen)
        for state in changes.states:
            batch = self._batches.get(state.submission.batch_id)
            if batch is not None:
                self._take_over(batch, state)
            elif self.came is not None:
                await self.came(state.submission.batch_id)
        for batch_id in changes.gone:
            if batch_id in self._batches:
                self.went(self._batches[batch_id])
        self.seen = changes.newest

    def _take_over(self, batch: Batch, state: State) -> None:
        terms, now = state.submission, self._clock.now()
        if batch.changed > terms.changed:
            return
        batch.changed = terms.changed
        batch.submission = terms
        batch.stop_reason, batch.start_time = terms.stop_reason, terms.start_time
        before, batch.tally = batch.tally, state.tally
        batch.accepted = max(batch.accepted, batch.tally.rows)
        batch.meter.add(max(0, batch.tally.rows - before.rows), max(0, batch.tally.output_tokens - before.output_tokens))
        batch.queued_shards, batch.elsewhere = dict.fromkeys(batch.queued_shards, 0), 0
        for shard in state.shards:
            if shard.shard not in batch.held:
                batch.queued_shards[shard.model] = batch.queued_shards.get(shard.model, 0) + 1
                batch.elsewhere += shard.owner != self._shared.owner and shard.lease_until > now
        self.changed(batch)

"""What other schedulers did: read from SQL twice a second, after each commit, and whenever somebody asks.

Batches that they took in are opened here, those that they forgot are dropped; counts, stop and seal of the others are taken over.
SQL numbers the changes, so nothing that was seen is read again, and figures never go back, whichever scheduler is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from haywain import errors, log
from haywain.clock import Clock
from services.scheduler.batch import Batch
from services.scheduler.look import Look
from services.scheduler.shared import OpenShard, Shared, State

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
        self._looks = Look(self._look)
        self.seen = 0
        """The number of the last change that was seen."""
        self.came: Callable[[str], Awaitable[None]] | None = None
        """Called with a batch that another took in."""
        self.went: Callable[[Batch], None] = lambda batch: None
        """Called with a batch that another forgot."""
        self.changed: Callable[[Batch], None] = lambda batch: None
        """Called with a batch that is up to date again."""
        self.fell: Callable[[Batch], None] = lambda batch: None
        """Called with a batch of which results were lost: rows that had ended run again."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await self.look()
                await self.look_elsewhere()
            except errors.HaywainError as error:
                _log.warning("news.failed", error=error.message)

    async def look(self) -> None:
        """See what has changed by now. Raises Unavailable."""
        await self._looks()

    async def _look(self) -> None:
        changes = await self._shared.changes(self.seen)
        for state in changes.states:
            batch_id = state.submission.batch_id
            if batch_id not in self._batches and self.came is not None:
                await self.came(batch_id)
            if (batch := self._batches.get(batch_id)) is not None:  # who has its shards is news of one that came, too
                self._take_over(batch, state)
        for batch_id in changes.gone:
            if batch_id in self._batches:
                self.went(self._batches[batch_id])
        self.seen = changes.newest

    async def look_elsewhere(self) -> None:
        """See what has become of other schedulers' leases that were to end by now: nobody tells of a renewal, or of a death."""
        now = self._clock.now()
        late = [batch_id for batch_id, batch in self._batches.items() if batch.elsewhere and batch.elsewhere_until < now]
        for batch_id, shards in (await self._shared.open_shards(late)).items() if late else ():
            if batch_id in self._batches:
                self._place(self._batches[batch_id], shards)

    def _place(self, batch: Batch, shards: Sequence[OpenShard]) -> None:
        now, mine = self._clock.now(), self._shared.owner
        leases = [shard.lease_until for shard in shards if shard.shard not in batch.held and shard.owner != mine]
        leases = [until for until in leases if until >= now]
        batch.elsewhere, batch.elsewhere_until = len(leases), min(leases, default=0.0)

    def _take_over(self, batch: Batch, state: State) -> None:
        terms = state.submission
        if batch.changed > terms.changed:
            return
        batch.changed = terms.changed
        batch.submission = terms
        batch.stop_reason, batch.start_time = terms.stop_reason, terms.start_time
        before, batch.tally = batch.tally, state.tally
        fell = state.tally.rows < before.rows and not batch.ended
        batch.accepted = batch.tally.rows if fell else max(batch.accepted, batch.tally.rows)
        batch.meter.add(max(0, batch.tally.rows - before.rows), max(0, batch.tally.output_tokens - before.output_tokens))
        batch.queued_shards = dict.fromkeys(batch.queued_shards, 0)
        for shard in state.shards:
            if shard.shard not in batch.held:
                batch.queued_shards[shard.model] = batch.queued_shards.get(shard.model, 0) + 1
        self._place(batch, state.shards)
        if fell:
            self.fell(batch)
        self.changed(batch)

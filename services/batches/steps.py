"""What is next for a batch: from whatever status SQL has, one step after the other, until it must wait.

Nothing is remembered between steps but the record and the progress last seen, so a restart goes on wherever the last life stopped.
"""

from __future__ import annotations

import enum

from haywain import crash, errors, log
from haywain.clock import Clock
from services.batches.finalize import Finalizer
from services.batches.held_store import HeldStore
from services.batches.intake import Intake
from services.batches.lifecycle import TERMINAL, Status
from services.batches.progress import ProgressBook, figures_of
from services.batches.record import Record
from services.batches.store import BatchStore
from services.batches.validator import is_small

__all__ = ["Next", "Steps"]

_log = log.get()


class Next(enum.Enum):
    """What a batch waits for."""

    ROWS = enum.auto()
    """The scheduler: its rows wait or run."""
    VALIDATION = enum.auto()
    """Its turn in the validation process."""
    MODELS = enum.auto()
    """An engine, any."""
    STEP = enum.auto()
    """Nothing: its next step."""
    NOTHING = enum.auto()
    """It has ended, and nothing is left to do."""


class Steps:
    """Advances batches."""

    def __init__(
        self, stores: tuple[BatchStore, HeldStore], intake: Intake, finalizer: Finalizer, book: ProgressBook, clock: Clock
    ) -> None:
        """Decide expiry by `clock`."""
        self._store, self._held = stores
        self._intake = intake
        self._finalizer = finalizer
        self._book = book
        self._clock = clock
        self.fresh: dict[str, Record] = {}
        """Batches that were made here just now, for their first step."""

    async def advance(self, batch_id: str) -> Next:
        """Take every step that can be taken now. Raises what a peer raised, to be tried again."""
        following: Next | Record = self.fresh.pop(batch_id, Next.STEP)
        while following is Next.STEP or isinstance(following, Record):
            record = following if isinstance(following, Record) else await self._store.find(batch_id)
            if record is None or record.settled:
                return Next.NOTHING
            following = await self._step(record)
        return following

    async def validate(self, batch_id: str) -> Next:
        """Take the one step that needs the validation process."""
        record = await self._store.find(batch_id)
        if record is None or record.plan is not None or record.status not in (Status.VALIDATING, Status.CANCELLING):
            return Next.STEP
        return Next.STEP if await self._intake.validate(record, await self._intake.source(record)) else Next.MODELS

    async def any_model(self) -> bool:
        """Ask whether any engine is there."""
        return bool(await self._intake.models(fresh=True))

    async def _step(self, record: Record) -> Next | Record:
        """Take one step; the batch as it is then, where the step knows it."""
        if record.held_until and (record.plan is not None or record.status in TERMINAL):  # else its first step says so
            await self._held.begin(record.tenant, record.request_id or "")
            return Next.STEP
        if not record.adopted:
            await self._finalizer.adopt_own(record)
        if record.status in TERMINAL:
            await self._finalizer.settle(record)
            return Next.NOTHING
        if record.status is Status.IN_PROGRESS:
            return await self._run(record)
        if record.status is Status.FINALIZING:
            return await self._end(record, record.outcome or Status.COMPLETED)
        if record.plan is None:
            source = await self._intake.source(record)
            if source is None or is_small(source):
                valid = await self._intake.validate(record, source)
                return valid if isinstance(valid, Record) else Next.STEP if valid else Next.MODELS
            return Next.VALIDATION
        if record.status is Status.VALIDATING:
            return await self._store.move(record.batch_id, Status.IN_PROGRESS) or Next.STEP
        if not record.submitted:  # cancelled while it was validated: each row still gets its error line
            await self._intake.submit(record)
            crash.point("batches:cancelled-submitted")
            await self._store.set_submitted(record.batch_id)
        return await self._end(record, Status.CANCELLED)

    async def _run(self, record: Record) -> Next | Record:
        if self._book.is_lost(record.batch_id):
            await self._give_again(record)
        elif not record.submitted and self._book.get(record.batch_id) is None:
            await self._intake.submit(record)
            crash.point("batches:submitted")
        if self._book.has_ended(record.batch_id):
            outcome = Status.COMPLETED
        elif self._clock.now() >= record.expires_at:
            outcome = Status.EXPIRED
        else:
            return Next.ROWS
        seen = self._book.get(record.batch_id)
        started = self._book.started_at(record.batch_id)
        moved = await self._store.move(
            record.batch_id, Status.FINALIZING, outcome=outcome, submitted=True, in_progress_at=started, **figures_of(seen)
        )
        if moved is not None:
            self._book.kept(seen)
        crash.point("batches:finalizing")
        return moved or Next.STEP

    async def _end(self, record: Record, outcome: Status) -> Next | Record:
        try:
            if outcome is not Status.COMPLETED and not await self._finalizer.stop(record, outcome):
                return Next.ROWS
            return await self._finalizer.finish(record, outcome) or Next.STEP
        except errors.Conflict:  # results were lost from the disk: their rows run again, for as long as the batch may run
            if outcome is not Status.COMPLETED:
                raise
            self._book.reopen(record.batch_id)
            return Next.ROWS if self._clock.now() < record.expires_at else await self._end(record, Status.EXPIRED)
        except errors.BatchMissing:
            await self._give_again(record)
            raise errors.Unavailable(retry_after=1) from None

    async def _give_again(self, record: Record) -> None:
        _log.error("batch.lost_by_scheduler", batch_id=record.batch_id, status=record.status.value)
        self._book.lose(record.batch_id)
        await self._intake.submit(record)

"""The scheduler, put together: what is made of what, and the loops that run.

intake ─▶ dispatcher ─▶ engines (a stream each) ─▶ returns ─▶ recorder ─▶ journals ─▶ checkpoints
              ▲  claims                                 │
              └──────────── tried again ────────────────┘
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from haywain import crash, durable, errors, log, replicas
from haywain.blobs import BlobStore, DirectoryBlobStore, mapped
from haywain.clock import Clock, SystemClock
from haywain.db import Database, open_database
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings
from services.scheduler.batch import Batch, Held
from services.scheduler.checkpoints import Checkpoints
from services.scheduler.claims import Claims
from services.scheduler.dispatch import Dispatcher
from services.scheduler.engine_store import EngineStore
from services.scheduler.engines import Engines
from services.scheduler.folder import take_folder
from services.scheduler.intake import Intake
from services.scheduler.journal import Group, Journals
from services.scheduler.journal_ledger import JournalLedger
from services.scheduler.leases import Leases
from services.scheduler.ledger import Ledger
from services.scheduler.model_leases import ModelLeases
from services.scheduler.news import News
from services.scheduler.others import Others
from services.scheduler.pins import Pins
from services.scheduler.progress import Changes, describe
from services.scheduler.recording import Recorder
from services.scheduler.registry import Registry
from services.scheduler.returns import Returns
from services.scheduler.sealing import Sealing
from services.scheduler.segment_ledger import SegmentLedger
from services.scheduler.shared import Shared
from services.scheduler.store import Store

__all__ = ["Scheduler"]

_BACKLOG_BYTES = 64 * 1024 * 1024
"""Result lines that may wait for the disk before rows must."""
_SWEEP_SECONDS = 60.0
_log = log.get()


class Scheduler:
    """Everything of one data folder."""

    def __init__(self, settings: Settings, database: Database, blobs: BlobStore, clock: Clock, *, alone: bool) -> None:
        """Use `open`."""
        mine = settings.scheduler
        self.settings = mine
        self._clock = clock
        self._blobs = blobs
        self._database = database
        self._store = Store(database)
        self._alone = alone
        self._leases = leases = Leases(database, mine.replica, mine.lease_seconds, clock)
        self._shared = shared = Shared(database, mine.replica, mine.lease_seconds, clock)
        folder = settings.data / "incremental"
        several = SegmentLedger(shared, folder, mine.lease_seconds)
        self._ledger: Ledger = JournalLedger(leases, self._store, folder) if alone else several
        self.intake = Intake(self._store, self._ledger, blobs, clock)
        self._news = News(shared, self.intake.batches, clock)
        self._journals = Journals(self._synced, self._go_on)
        self._recorder = recorder = Recorder(self._journals, self._ledger, mine.max_attempts)
        self._claims = Claims(leases, self._ledger, mine.lease_seconds, self.intake.batches)
        self.dispatcher = Dispatcher(mine, clock, self._claims, recorder)
        self._returns = Returns(mine, clock, self.dispatcher, recorder)
        self.engines = Engines(mine, clock, self.dispatcher, self._returns)
        self.registry = Registry(mine, self.engines, self.dispatcher, EngineStore(database, clock), Others.of(settings), clock)
        self.model_leases = lent = ModelLeases.of(settings, database, clock, alone=alone)
        self._checkpoints = Checkpoints(self._ledger, self._claims, mine.checkpoint_seconds)
        self.changes = Changes()
        self._sealing = Sealing(self._ledger, blobs)
        self._lock = contextlib.ExitStack()
        self.intake.added = self.dispatcher.add
        self.dispatcher.pins = Pins(database) if mine.pin_batch_to_digest else None
        self.dispatcher.sender.aliases = self.registry.aliases
        lent.names, lent.changed, self.dispatcher.sender.gate = self.registry.names, self._leased, lent
        self.dispatcher.paused = self._waits
        self._claims.renewed = self._go_on
        recorder.recorded = self._recorded
        self._checkpoints.finished = self._finished
        several.look = self._look
        self._sealing.run_again = self.intake.run_again
        self._news.fell = self.dispatcher.add
        self._news.came, self._news.went, self._news.changed = self.intake.find, self._gone, self._changed

    @classmethod
    async def open(cls, settings: Settings, clock: Clock | None = None) -> Scheduler:
        """Open the data folder and find its batches again. Raises SettingsError when another scheduler has it."""
        several = settings.scheduler.replicas > 1
        replicas.check(settings)
        lock = contextlib.ExitStack()
        with mapped(str(settings.data)):
            durable.make_folder(settings.data)
            take_folder(lock, settings)
        database = await open_database(settings.db.url, Path(__file__).parent / "sql", settings.data / "scheduler.db")
        recordings = await Store(database).recordings()
        if several and JournalLedger.name in recordings:
            await database.close()
            raise errors.SettingsError(
                "batches that a single scheduler took in have not ended: start with scheduler.replicas=1 until they have"
            )
        alone = not several and SegmentLedger.name not in recordings
        scheduler = cls(settings, database, DirectoryBlobStore(settings.data / "blobs"), clock or SystemClock(), alone=alone)
        scheduler._lock = lock
        await scheduler._load(others=several)
        return scheduler

    async def _load(self, *, others: bool) -> None:
        released = await self._leases.release_own(alone=not others)
        await self._shared.release_own()
        _log.info("leases.released", shards=released)
        if self.dispatcher.pins is not None:
            await self.dispatcher.pins.load()
            self.intake.pins_of = self.dispatcher.pins.of
        await self.intake.load()
        await self.registry.load()
        await self.model_leases.load()

    async def run(self) -> None:
        """Run the loops until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for loop in (self._journals, self._claims, self._checkpoints, self._returns, self.engines, self.registry):
                    group.create_task(loop.run(), name=type(loop).__name__)
                group.create_task(self.model_leases.run(), name="ModelLeases")
                if not self._alone:
                    group.create_task(self._news.run(), name="News")
                group.create_task(self._sweep(), name="sweep")
        finally:
            self._sealing.close()

    async def settle(self) -> None:
        """Send no more rows, and get what has come back onto the disk; for an orderly end."""
        self.dispatcher.paused = lambda: True
        batches = list(self.intake.batches.values())
        for batch in batches:
            for journal in self._ledger.journals(batch):
                await self._journals.flushed(journal)
        await self._checkpoints.commit()
        if not self._alone:
            await self._leases.release(held.lease for batch in batches for held in batch.held.values())

    async def close(self) -> None:
        """Let go of the data folder."""
        for batch in self.intake.batches.values():
            for journal in self._ledger.journals(batch):
                journal.close()
        await self.registry.close()
        await self._database.close()
        self._lock.close()

    async def submit(self, request: pb.SubmitBatchRequest) -> None:
        """Take a batch in. Raises CapacityExceeded, far above the capacity that batches are created by."""
        capacity = 2 * self.settings.intake_rows
        if request.batch_id not in self.intake.batches and not self.intake.has_room(request.row_count, capacity):
            waiting = self.intake.waiting_rows()
            raise errors.CapacityExceeded(f"{waiting} rows wait; {request.row_count} more are over {capacity}.", retry_after=10)
        await self.intake.submit(request)
        self._sealing.warm()

    async def stop(self, batch_id: str, reason: int) -> Batch:
        """Stop a batch: when this returns nothing more of it will be recorded. Raises BatchMissing."""
        await self.fresh()
        batch = await self.intake.stop(batch_id, reason)
        self.dispatcher.remove(batch)
        await self._flushed(batch)
        crash.point("scheduler:stopped")
        await self.fresh()
        self._finished(batch)
        self.changes.add(batch_id, urgent=True)
        return batch

    async def seal(self, batch_id: str) -> pb.SealBatchResponse:
        """Write a batch's output and error blobs. Raises BatchMissing, Conflict while rows run."""
        await self.fresh()
        batch = self.intake.get(batch_id)
        if not batch.ended:
            raise errors.Conflict(f"Batch '{batch_id}' has rows that wait or run.")
        await self._flushed(batch)
        sealed = await self._sealing.seal(batch)  # else its rows may run again, under the lease that it has
        await self.model_leases.batch_ended(batch_id)
        return sealed

    async def forget(self, batch_id: str) -> None:
        """Drop what is kept of a batch. Raises Conflict while rows run."""
        await self.fresh()
        batch = self.intake.batches.get(batch_id)
        if batch is not None and not batch.ended:
            raise errors.Conflict(f"Batch '{batch_id}' has rows that wait or run.")
        await self.model_leases.batch_ended(batch_id)
        if batch is not None:
            await self._flushed(batch)
        await self.intake.forget(batch_id)

    async def fresh(self) -> None:
        """Know what other schedulers did. Raises Unavailable."""
        if not self._alone:
            await self._news.look()

    async def models_of(self, batch_id: str) -> set[str]:
        """Tell of which models a batch has rows left; none when it isn't known. Raises Conflict when it has ended."""
        await self.fresh()
        batch = self.intake.batches.get(batch_id)
        if batch is not None and batch.ended:
            raise errors.Conflict(f"Batch '{batch_id}' has no rows left.")
        return batch.open_models if batch is not None else set()

    def progress(self, batch: Batch) -> pb.Progress:
        """Tell how far a batch is."""
        links = self.dispatcher.links
        return describe(batch, self.dispatcher.why, links.in_slots / (links.active or 1))

    # -- what the parts tell each other ---------------------------------------------------------------------------------------

    def _synced(self, group: Group) -> None:
        self._recorder.synced(group)

    async def _flushed(self, batch: Batch) -> None:
        """Wait for a journal in which every synced line counts."""
        if batch.journal is not None:
            await self._journals.flushed(batch.journal)

    def _recorded(self, batch: Batch, held: list[Held]) -> None:
        done = any(one.unrecorded <= 0 for one in held)
        self._checkpoints.touch(batch, soon=done)
        self.changes.add(batch.batch_id, urgent=batch.ended)

    def _finished(self, batch: Batch) -> None:
        if batch.ended:
            self.dispatcher.remove(batch)
            for journal in self._ledger.journals(batch):
                journal.rest()

    async def _look(self) -> None:
        with contextlib.suppress(errors.HaywainError):  # the next look will do
            await self._news.look()

    def _changed(self, batch: Batch) -> None:
        self._finished(batch)
        if not batch.ended:
            for model in batch.queued_shards:
                self.dispatcher.refresh(batch, model)
        self.changes.add(batch.batch_id, urgent=batch.ended)

    def _leased(self) -> None:
        """Have others go on, or wait, since leases of models changed."""
        for call in self.dispatcher.calls.waiting():
            if (refusal := self.model_leases.refusal(call)) is not None:
                call.fail(refusal)
        for batch in self.dispatcher.leased():
            self.changes.add(batch.batch_id)

    def _gone(self, batch: Batch) -> None:
        self.dispatcher.remove(batch)
        for journal in self._ledger.journals(batch):
            journal.rest()
        self.intake.drop(batch)

    def _full(self) -> bool:
        return self._journals.stuck > 0 or self._journals.backlog > _BACKLOG_BYTES

    def _waits(self) -> bool:
        """Tell whether no rows may be sent: what they give can't be stored, or another may have recorded them by now."""
        return self._full() or (not self._alone and self._leases.expired())

    def _go_on(self) -> None:
        if not self._waits():
            self.dispatcher.links.wake_all()

    async def _sweep(self) -> None:
        while True:
            await self.intake.sweep(self._clock.now() - self.settings.incremental_retention_seconds)
            with contextlib.suppress(errors.HaywainError):
                await self.registry.sweep()
                await self.model_leases.sweep()
                if not self._alone:
                    await self._shared.drop_forgotten(self._news.seen)
            await asyncio.sleep(_SWEEP_SECONDS)

"""The Batches service: translates RPCs to the store and the driver; `serve` puts the process together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from haywain import crash, errors, log, rpc
from haywain.batches.v1 import batches_pb2, batches_pb2_grpc
from haywain.blobs import BlobStore, DirectoryBlobStore
from haywain.clock import Clock, SystemClock
from haywain.db import open_database
from haywain.scheduler.v1 import scheduler_pb2
from haywain.settings import Settings
from haywain.status import packed
from services.batches.creating import Creator
from services.batches.creation import UPDATE_PAIRS, check_metadata
from services.batches.drive import Driver
from services.batches.figures import figures
from services.batches.finalize import Finalizer
from services.batches.held import Held
from services.batches.held_store import HeldStore
from services.batches.intake import Intake
from services.batches.lifecycle import TERMINAL, Status
from services.batches.own_files import OwnFiles
from services.batches.peers import Files, Scheduler
from services.batches.progress import ProgressBook, without_counts
from services.batches.record import Record
from services.batches.rejected import rejected_lines
from services.batches.steps import Steps
from services.batches.store import BatchStore
from services.batches.wire import batch_message

__all__ = ["BatchesServiceServicer", "opened", "serve"]

NAME = "haywain.batches.v1.BatchesService"
OWNER = "batches-0"
DEFAULT_PAGE = 20
MAX_PAGE = 100
KEEP_SECONDS = 1.0
"""How long an answer waits for what it tells to be kept; then it tells what was kept before."""
_log = log.get()


class BatchesServiceServicer(batches_pb2_grpc.BatchesServiceServicer):
    """Answers the RPCs of haywain.batches.v1."""

    def __init__(
        self, store: BatchStore, driver: Driver, creation: tuple[Creator, Held], scheduler: Scheduler, blobs: BlobStore
    ) -> None:
        """Nothing is kept here but what was passed in."""
        self.store = store
        self.driver = driver
        self._creator, self._held = creation
        self._scheduler = scheduler
        self._blobs = blobs

    async def CreateBatch(self, request: batches_pb2.CreateBatchRequest, context: Any) -> batches_pb2.CreateBatchResponse:
        """Check and record a batch; the driver does the rest."""
        return await self._creator.create(request)

    async def CreateBatches(self, request: batches_pb2.CreateBatchesRequest, context: Any) -> batches_pb2.CreateBatchesResponse:
        """Do that for many."""
        return batches_pb2.CreateBatchesResponse(outcomes=await asyncio.gather(*map(self._created, request.creations)))

    async def _created(self, creation: batches_pb2.Creation) -> batches_pb2.CreationOutcome:
        log.bind(request_id=rpc.as_request_id(creation.http_request_id))
        try:
            return batches_pb2.CreationOutcome(created=await self._creator.create(creation.request))
        except Exception as error:  # noqa: BLE001 - the others have outcomes of their own
            return batches_pb2.CreationOutcome(error=packed(rpc.for_callers(error)))

    async def AnswerCreation(self, request: batches_pb2.AnswerCreationRequest, context: Any) -> batches_pb2.AnswerCreationResponse:
        """Let a held batch begin, or unmake it."""
        return await self._held.answered(request)

    async def ReadRejected(
        self, request: batches_pb2.ReadRejectedRequest, context: Any
    ) -> AsyncIterator[batches_pb2.ReadRejectedResponse]:
        """Stream the error lines of rejected lines."""
        record = await self.store.get(_tenant(request), request.batch_id)
        async with contextlib.aclosing(rejected_lines(self._blobs, record, request.after_line)) as pieces:
            async for data in pieces:
                yield batches_pb2.ReadRejectedResponse(data=data)

    async def GetBatch(self, request: batches_pb2.GetBatchRequest, context: Any) -> batches_pb2.GetBatchResponse:
        """Describe one batch."""
        record = await self.store.get(_tenant(request), request.batch_id)
        return batches_pb2.GetBatchResponse(batch=await self._with_progress(record))

    async def ListBatches(self, request: batches_pb2.ListBatchesRequest, context: Any) -> batches_pb2.ListBatchesResponse:
        """List a page; a `page_size` of 0 asks for the default."""
        size = min(request.page_size or DEFAULT_PAGE, MAX_PAGE)
        if size < 0:
            message = f"limit must be at least 0, but got {size}."
            raise errors.InvalidRequest(message, code="integer_below_min_value", param="limit")
        records = await self.store.page(_tenant(request), after=request.page_token, size=size + 1)
        page = records[:size]
        return batches_pb2.ListBatchesResponse(
            batches=await self._messages(page), next_page_token=page[-1].batch_id if len(records) > size else ""
        )

    async def UpdateBatch(self, request: batches_pb2.UpdateBatchRequest, context: Any) -> batches_pb2.UpdateBatchResponse:
        """Replace the metadata, in whatever status."""
        check_metadata(request.metadata, UPDATE_PAIRS)
        record = await self.store.set_metadata(_tenant(request), request.batch_id, dict(request.metadata))
        return batches_pb2.UpdateBatchResponse(batch=await self._with_progress(record))

    async def CancelBatch(self, request: batches_pb2.CancelBatchRequest, context: Any) -> batches_pb2.CancelBatchResponse:
        """Make a batch `cancelling`; the driver stops its rows."""
        record = await self.store.get(_tenant(request), request.batch_id)
        cancelled = await self.store.move(record.batch_id, Status.CANCELLING)
        crash.point("batches:cancelling")
        if cancelled is not None:
            _log.info("batch.cancelling", batch_id=record.batch_id)
            self.driver.wake(record.batch_id)
            return batches_pb2.CancelBatchResponse(batch=await self._with_progress(cancelled))
        record = await self.store.get(_tenant(request), request.batch_id)
        if record.status not in (Status.CANCELLING, Status.CANCELLED):
            raise errors.Conflict(f"Cannot cancel a batch with status '{record.status.value}'.")
        return batches_pb2.CancelBatchResponse(batch=await self._with_progress(record))

    # -- answers ----------------------------------------------------------------------------------------------------------------

    async def _with_progress(self, record: Record) -> batches_pb2.Batch:
        return (await self._messages([record]))[0]

    async def _messages(self, records: list[Record]) -> list[batches_pb2.Batch]:
        """Lay the live progress over records: one call for all of them, what was seen last when the scheduler is away."""
        running = [record.batch_id for record in records if record.status not in TERMINAL | {Status.VALIDATING}]
        live: dict[str, scheduler_pb2.Progress] = {}
        if running:
            with contextlib.suppress(errors.HaywainError):
                live = {progress.batch_id: progress for progress in await self._scheduler.progress(running)}
                self.driver.see(live.values())
        kept = not running or await self._kept()
        found = [(record, self._progress(record, live.get(record.batch_id))) for record in records]
        return [batch_message(record, progress if kept else without_counts(progress)) for record, progress in found]

    async def _kept(self) -> bool:
        """Keep what is about to be told, so that counts never go back, whoever dies. False when that can't be done now."""
        try:
            async with asyncio.timeout(KEEP_SECONDS):
                await self.driver.keep()
        except (TimeoutError, errors.HaywainError):
            return False
        return True

    def _progress(self, record: Record, live: scheduler_pb2.Progress | None) -> scheduler_pb2.Progress | None:
        if record.status is Status.VALIDATING and self.driver.waits_for_models(record.batch_id):
            return scheduler_pb2.Progress(waiting_reason=scheduler_pb2.Progress.WAITING_REASON_MODEL_NOT_AVAILABLE)
        return self.driver.book.newest(live, record.batch_id)


def _tenant(request: Any) -> str:
    return request.tenant or "default"


@contextlib.asynccontextmanager
async def opened(settings: Settings, clock: Clock) -> AsyncIterator[BatchesServiceServicer]:
    """Open database, blob store and channels and put the service together; closes them at the end of the block.

    Raises SettingsError when the data folder can't be used or a setting has no meaning.
    """
    chosen = settings.batches
    for name, words in (("completion_windows", ("24h", "any")), ("invalid_rows", ("fail", "reject"))):
        if (word := getattr(chosen, name)) not in words:
            raise errors.SettingsError(f"batches.{name} {word!r}: expected {' or '.join(words)}")
    blobs = DirectoryBlobStore(settings.data / "blobs")
    async with contextlib.AsyncExitStack() as stack:
        database = await open_database(settings.db.url, Path(__file__).parent / "sql", settings.data / "batches.db")
        stack.push_async_callback(database.close)
        files = Files(await stack.enter_async_context(rpc.channel(settings.address("files"))))
        scheduler = Scheduler(await stack.enter_async_context(rpc.channel(settings.addresses("scheduler"))))
        store = BatchStore(database, clock, OWNER)
        book = ProgressBook()
        intake = Intake(store, scheduler, blobs, settings, clock)
        stack.callback(intake.close)
        own_files = OwnFiles(store, files, blobs, settings.files.batch_expires_after_seconds)
        held_store = HeldStore(database)
        steps = Steps((store, held_store), intake, Finalizer(store, files, scheduler, own_files, book), book, clock)
        driver = Driver(store, steps, (own_files, scheduler), book, chosen.poll_seconds, clock)
        held = Held(held_store, own_files, clock, driver.created)
        creator = Creator(settings, clock, (store, intake, own_files, book), (files, scheduler), held)
        yield BatchesServiceServicer(store, driver, (creator, held), scheduler, blobs)


async def serve(settings: Settings, stopping: asyncio.Event) -> None:
    """Serve and drive until `stopping` is set."""
    add = batches_pb2_grpc.add_BatchesServiceServicer_to_server
    async with contextlib.AsyncExitStack() as stack:
        servicer = await stack.enter_async_context(opened(settings, SystemClock()))
        figured = figures(servicer.store.unsettled)
        await stack.enter_async_context(rpc.serving(settings.address("batches"), [(servicer, add, NAME)], figures=figured))
        _log.info("batches.ready", address=settings.address("batches"))
        async with asyncio.TaskGroup() as group:
            driving = group.create_task(servicer.driver.run())
            await stopping.wait()
            driving.cancel()

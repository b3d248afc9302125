"""The Batches service: translates RPCs to the store and the driver; `serve` puts the process together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from haywain import errors, log, rpc
from haywain.batches.v1 import batches_pb2, batches_pb2_grpc
from haywain.blobs import DirectoryBlobStore
from haywain.clock import Clock, SystemClock
from haywain.db import open_database
from haywain.scheduler.v1 import scheduler_pb2
from haywain.settings import Settings
from services.batches.creation import UPDATE_PAIRS, check_file, check_metadata, new_record
from services.batches.drive import Driver
from services.batches.finalize import Finalizer
from services.batches.intake import Intake
from services.batches.lifecycle import TERMINAL, Status
from services.batches.peers import Files, Scheduler
from services.batches.progress import ProgressBook
from services.batches.record import Record
from services.batches.steps import Steps
from services.batches.store import Admission, BatchStore
from services.batches.wire import batch_message

__all__ = ["BatchesServiceServicer", "opened", "serve"]

NAME = "haywain.batches.v1.BatchesService"
OWNER = "batches-0"
DEFAULT_PAGE = 20
MAX_PAGE = 100
_log = log.get()


class BatchesServiceServicer(batches_pb2_grpc.BatchesServiceServicer):
    """Answers the RPCs of haywain.batches.v1."""

    def __init__(self, settings: Settings, store: BatchStore, driver: Driver, peers: tuple[Files, Scheduler], clock: Clock) -> None:
        """Nothing is kept here but what was passed in."""
        self.driver = driver
        self._settings = settings
        self.store = store
        self._files, self._scheduler = peers
        self._clock = clock

    async def CreateBatch(self, request: batches_pb2.CreateBatchRequest, context: Any) -> batches_pb2.CreateBatchResponse:
        """Check and record a batch; the driver does the rest."""
        record = new_record(request, self._settings.batches, self._clock.now())
        if record.request_id is not None:
            earlier = await self.store.of_request(record.tenant, record.request_id)
            if earlier is not None:
                return batches_pb2.CreateBatchResponse(batch=await self._with_progress(earlier))
        created = await self._record(record)
        if created.batch_id == record.batch_id:
            _log.info("batch.created", batch_id=created.batch_id, input_file_id=created.input_file_id, lines=created.line_count)
            self.driver.add(created.batch_id, created.expires_at)
        return batches_pb2.CreateBatchResponse(batch=await self._with_progress(created))

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
        if cancelled is not None:
            _log.info("batch.cancelling", batch_id=record.batch_id)
            self.driver.wake(record.batch_id)
            return batches_pb2.CancelBatchResponse(batch=await self._with_progress(cancelled))
        record = await self.store.get(_tenant(request), request.batch_id)
        if record.status not in (Status.CANCELLING, Status.CANCELLED):
            raise errors.Conflict(f"Cannot cancel a batch with status '{record.status.value}'.")
        return batches_pb2.CancelBatchResponse(batch=await self._with_progress(record))

    # -- creation ---------------------------------------------------------------------------------------------------------------

    async def _record(self, record: Record) -> Record:
        """Hold the input and record the batch, or leave nothing behind."""
        try:
            file = await self._files.get(record.tenant, record.input_file_id)
        except errors.FileMissing as error:
            if self._settings.batches.check_file_at_create:
                raise errors.InvalidRequest(error.message, param="input_file_id") from None
            return await self.store.add(record, await self._admission())
        check_file(file)
        admission = await self._admission()
        await self.store.intend(record.batch_id)
        try:
            blob_key = await self._files.hold(record.tenant, record.input_file_id, record.batch_id)
        except errors.NotFound:
            await self.store.end_intent(record.batch_id)
            raise errors.InvalidRequest(f"The file '{record.input_file_id}' was deleted.", param="input_file_id") from None
        try:
            created = await self.store.add(replace(record, input_blob_key=blob_key, line_count=file.line_count), admission)
        except errors.HaywainError:
            await self._undo(record)
            raise
        if created.batch_id != record.batch_id:  # the same request_id at the same time
            await self._undo(record)
        return created

    async def _undo(self, record: Record) -> None:
        """Release a hold that got no batch; what fails here is done by the driver's sweep."""
        with contextlib.suppress(errors.HaywainError):
            await self._files.release(record.batch_id)
            await self.store.end_intent(record.batch_id)

    async def _admission(self) -> Admission:
        settings = self._settings
        try:
            pool = await self._scheduler.pool()
        except errors.HaywainError:
            return Admission(settings.scheduler.intake_rows, None, settings.batches.one_active_per_file)
        return Admission(pool.intake_capacity, pool.intake_rows, settings.batches.one_active_per_file)

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
        return [batch_message(record, self.driver.book.newest(live.get(record.batch_id), record.batch_id)) for record in records]


def _tenant(request: Any) -> str:
    return request.tenant or "default"


@contextlib.asynccontextmanager
async def opened(settings: Settings, clock: Clock) -> AsyncIterator[BatchesServiceServicer]:
    """Open database, blob store and channels and put the service together; closes them at the end of the block.

    Raises SettingsError when the data folder can't be used or a setting has no meaning.
    """
    chosen = settings.batches
    if chosen.completion_windows not in ("24h", "any"):
        raise errors.SettingsError(f"batches.completion_windows {chosen.completion_windows!r}: expected 24h or any")
    blobs = DirectoryBlobStore(settings.data / "blobs")
    async with contextlib.AsyncExitStack() as stack:
        database = await open_database(settings.db.url, Path(__file__).parent / "sql", settings.data / "batches.db")
        stack.push_async_callback(database.close)
        files = Files(await stack.enter_async_context(rpc.channel(settings.address("files"))))
        scheduler = Scheduler(await stack.enter_async_context(rpc.channel(settings.address("scheduler"))))
        store = BatchStore(database, clock, OWNER)
        book = ProgressBook()
        intake = Intake(store, scheduler, blobs, chosen, clock)
        stack.callback(intake.close)
        steps = Steps(store, intake, Finalizer(store, files, scheduler, blobs, book), book, clock)
        driver = Driver(store, steps, (files, scheduler), book, chosen.poll_seconds, clock)
        yield BatchesServiceServicer(settings, store, driver, (files, scheduler), clock)


async def serve(settings: Settings, stopping: asyncio.Event) -> None:
    """Serve and drive until `stopping` is set."""
    add = batches_pb2_grpc.add_BatchesServiceServicer_to_server
    async with opened(settings, SystemClock()) as servicer, rpc.serving(settings.address("batches"), [(servicer, add, NAME)]):
        _log.info("batches.ready", address=settings.address("batches"))
        async with asyncio.TaskGroup() as group:
            driving = group.create_task(servicer.driver.run())
            await stopping.wait()
            driving.cancel()

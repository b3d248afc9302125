"""The peers of batches as small servers of their own: files and scheduler, with the state that a test wants to see and to set."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from haywain import errors, rpc
from haywain.blobs import DirectoryBlobStore
from haywain.engine.v1 import engine_pb2
from haywain.files.v1 import files_pb2, files_pb2_grpc
from haywain.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from haywain.settings import Settings

ENDED, ACTIVE, SEALED = (
    scheduler_pb2.Progress.STATE_ENDED,
    scheduler_pb2.Progress.STATE_ACTIVE,
    scheduler_pb2.Progress.STATE_SEALED,
)


@dataclass
class Submitted:
    """A batch that the scheduler peer was given."""

    request: scheduler_pb2.SubmitBatchRequest
    progress: scheduler_pb2.Progress
    reason: int = 0
    submits: int = 1
    seals: int = 0


@dataclass
class Calls:
    """What was called."""

    models: int = 0
    progress: list[int] = field(default_factory=list)
    """How many batches each GetProgress asked for."""


@dataclass
class Gate:
    """Where a call hangs until it is opened, before or after what it does: what a test cuts the service off at."""

    call: str = ""
    after: bool = False
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def pass_by(self, call: str, *, after: bool) -> None:
        """Hang, if it is here."""
        if (call, after) == (self.call, self.after):
            self.reached.set()
            await self.opened.wait()


def _gated(method: Any) -> Any:
    @functools.wraps(method)
    async def gated(self: Any, request: Any, context: Any) -> Any:
        name = method.__name__
        if name == "AdoptBlob":
            name = f"AdoptBlob {request.request_id.rsplit('-')[-1]}"
        await self.gate.pass_by(name, after=False)
        try:
            return await method(self, request, context)
        finally:
            await self.gate.pass_by(name, after=True)

    return gated


class FilesPeer(files_pb2_grpc.FilesServiceServicer):
    """Files that a test put there, who holds them, and what was adopted."""

    def __init__(self, blobs: DirectoryBlobStore) -> None:
        self.blobs = blobs
        self.gate = Gate()
        self.files: dict[str, files_pb2.File] = {}
        self.holds: dict[str, str] = {}
        self.adopted: dict[str, files_pb2.AdoptBlobRequest] = {}
        self.deleted: set[str] = set()
        self.released: set[str] = set()

    async def put(self, data: bytes, purpose: str = "batch", status: int = files_pb2.File.STATUS_PROCESSED) -> str:
        """Store a file; answers its id."""
        file_id = f"file-{len(self.files)}"
        async with self.blobs.writer(f"input-{file_id}") as writing:
            await writing.write(data)
            await writing.commit()
        lines = sum(1 for line in data.split(b"\n") if line.strip())
        self.files[file_id] = files_pb2.File(file_id=file_id, purpose=purpose, status=status, line_count=lines)
        return file_id

    async def GetFile(self, request: files_pb2.GetFileRequest, context: Any) -> files_pb2.GetFileResponse:
        return files_pb2.GetFileResponse(file=self._file(request.file_id))

    @_gated
    async def HoldBlob(self, request: files_pb2.HoldBlobRequest, context: Any) -> files_pb2.HoldBlobResponse:
        file = self._file(request.file_id)
        if file.status == files_pb2.File.STATUS_DELETED:
            raise errors.FileGone
        self._hold(request.holder, request.file_id)
        return files_pb2.HoldBlobResponse(blob_key=f"input-{request.file_id}", file=file)

    @_gated
    async def ReleaseBlob(self, request: files_pb2.ReleaseBlobRequest, context: Any) -> files_pb2.ReleaseBlobResponse:
        self.holds.pop(request.holder, None)
        self.released.add(request.holder)
        return files_pb2.ReleaseBlobResponse()

    @_gated
    async def DeleteFile(self, request: files_pb2.DeleteFileRequest, context: Any) -> files_pb2.DeleteFileResponse:
        if request.file_id not in {adopted.file_id for adopted in self.adopted.values()}:
            raise errors.FileMissing
        self.deleted.add(request.file_id)
        return files_pb2.DeleteFileResponse(file=files_pb2.File(file_id=request.file_id))

    @_gated
    async def AdoptBlob(self, request: files_pb2.AdoptBlobRequest, context: Any) -> files_pb2.AdoptBlobResponse:
        if await self.blobs.size(request.blob_key) != request.size_bytes:
            raise errors.InvalidRequest("no such blob")
        if request.request_id not in self.adopted and request.holder:
            self._hold(request.holder, request.file_id)
        self.adopted.setdefault(request.request_id, request)
        return files_pb2.AdoptBlobResponse(file=files_pb2.File(file_id=request.file_id or f"file-{request.request_id}"))

    def _hold(self, holder: str, file_id: str) -> None:
        if holder in self.released:
            raise errors.Conflict
        self.holds[holder] = file_id

    def _file(self, file_id: str) -> files_pb2.File:
        if file_id not in self.files:
            raise errors.FileMissing(f"No such File object: {file_id}")
        return self.files[file_id]


class SchedulerPeer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Batches that were submitted; their rows end when the test says so, or at once with `instant`."""

    def __init__(self, blobs: DirectoryBlobStore) -> None:
        self.blobs = blobs
        self.gate = Gate()
        self.models = [engine_pb2.ModelDescription(model="echo", aliases=["parrot"], endpoints=["/v1/chat/completions"])]
        self.batches: dict[str, Submitted] = {}
        self.forgotten: set[str] = set()
        self.calls = Calls()
        self.pool = scheduler_pb2.GetPoolStatusResponse(intake_capacity=1_000_000)
        self.instant = False
        self.hints = True
        self.slow_stop = False
        self.lost = False
        """Whether a result is lost when a batch is to be sealed: its row runs again."""
        self._watchers: set[asyncio.Queue[scheduler_pb2.Progress]] = set()

    def run(self, batch_id: str, *, completed: int = 0, failed: int = 0, started: float = 1_700_000_001.0) -> None:
        """Record rows; when none is left the batch has ended."""
        progress = self.batches[batch_id].progress
        progress.counts.completed += completed
        progress.counts.failed += failed
        progress.usage.output_tokens += 7 * completed
        progress.start_time.seconds = int(started)
        if progress.counts.completed + progress.counts.failed == progress.counts.total:
            progress.state = ENDED
        self._hint(progress)

    def end_stopped(self, batch_id: str) -> None:
        """Let the last running rows of a stopped batch go."""
        self.batches[batch_id].progress.state = ENDED
        self._hint(self.batches[batch_id].progress)

    async def ListModels(self, request: Any, context: Any) -> scheduler_pb2.ListModelsResponse:
        self.calls.models += 1
        return scheduler_pb2.ListModelsResponse(models=self.models)

    async def GetPoolStatus(self, request: Any, context: Any) -> scheduler_pb2.GetPoolStatusResponse:
        return self.pool

    @_gated
    async def SubmitBatch(self, request: scheduler_pb2.SubmitBatchRequest, context: Any) -> scheduler_pb2.SubmitBatchResponse:
        if request.batch_id in self.batches:
            self.batches[request.batch_id].submits += 1
            return scheduler_pb2.SubmitBatchResponse()
        counts = scheduler_pb2.RowCounts(total=request.row_count + request.rejected_count, failed=request.rejected_count)
        progress = scheduler_pb2.Progress(batch_id=request.batch_id, state=ACTIVE, counts=counts, queued=request.row_count)
        self.batches[request.batch_id] = Submitted(request, progress)
        if self.instant or not request.row_count:
            self.run(request.batch_id, completed=request.row_count)
        return scheduler_pb2.SubmitBatchResponse()

    async def GetProgress(self, request: scheduler_pb2.GetProgressRequest, context: Any) -> scheduler_pb2.GetProgressResponse:
        self.calls.progress.append(len(request.batch_ids))
        known = [self.batches[batch_id].progress for batch_id in request.batch_ids if batch_id in self.batches]
        return scheduler_pb2.GetProgressResponse(progress=known)

    async def WatchProgress(self, request: Any, context: Any) -> AsyncIterator[scheduler_pb2.WatchProgressResponse]:
        queue: asyncio.Queue[scheduler_pb2.Progress] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            while True:
                yield scheduler_pb2.WatchProgressResponse(progress=[await queue.get()])
        finally:
            self._watchers.discard(queue)

    @_gated
    async def StopBatch(self, request: scheduler_pb2.StopBatchRequest, context: Any) -> scheduler_pb2.StopBatchResponse:
        batch = self._batch(request.batch_id)
        batch.reason = batch.reason or request.reason
        if not self.slow_stop:
            batch.progress.state = ENDED
        return scheduler_pb2.StopBatchResponse(progress=batch.progress)

    @_gated
    async def SealBatch(self, request: scheduler_pb2.SealBatchRequest, context: Any) -> scheduler_pb2.SealBatchResponse:
        batch = self._batch(request.batch_id)
        if self.lost:
            self.lost, batch.progress.state = False, ACTIVE
            batch.progress.counts.completed -= 1
        if batch.progress.state == ACTIVE:
            raise errors.Conflict("rows are still running")
        batch.seals += 1
        counts = batch.progress.counts
        failed = counts.total - counts.completed
        batch.progress.state = SEALED
        return scheduler_pb2.SealBatchResponse(
            output=await self._seal(f"output-{request.batch_id}", b'{"error":null}\n', counts.completed),
            error=await self._seal(f"error-{request.batch_id}", b'{"error":{}}\n', failed),
            counts=scheduler_pb2.RowCounts(total=counts.total, completed=counts.completed, failed=failed),
            usage=batch.progress.usage,
        )

    @_gated
    async def ForgetBatch(self, request: scheduler_pb2.ForgetBatchRequest, context: Any) -> scheduler_pb2.ForgetBatchResponse:
        self.forgotten.add(request.batch_id)
        self.batches.pop(request.batch_id, None)
        return scheduler_pb2.ForgetBatchResponse()

    def _batch(self, batch_id: str) -> Submitted:
        if batch_id not in self.batches:
            raise errors.BatchMissing
        return self.batches[batch_id]

    async def _seal(self, key: str, line: bytes, count: int) -> scheduler_pb2.SealedBlob | None:
        if not count:
            return None
        data = line * count
        async with self.blobs.writer(key) as writing:
            await writing.write(data)
            await writing.commit()
        sha256 = hashlib.sha256(data).hexdigest()
        return scheduler_pb2.SealedBlob(blob_key=key, size_bytes=len(data), line_count=count, sha256=sha256)

    def _hint(self, progress: scheduler_pb2.Progress) -> None:
        news = scheduler_pb2.Progress()
        news.CopyFrom(progress)
        for queue in self._watchers if self.hints else ():
            queue.put_nowait(news)


@contextlib.asynccontextmanager
async def serve_files(settings: Settings, peer: FilesPeer) -> AsyncIterator[FilesPeer]:
    """Serve the files peer at its address."""
    services = [(peer, files_pb2_grpc.add_FilesServiceServicer_to_server, "haywain.files.v1.FilesService")]
    async with rpc.serving(settings.address("files"), services, grace_seconds=0):
        yield peer


@contextlib.asynccontextmanager
async def serve_scheduler(settings: Settings, peer: SchedulerPeer) -> AsyncIterator[SchedulerPeer]:
    """Serve the scheduler peer at its address."""
    services = [(peer, scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, "haywain.scheduler.v1.SchedulerService")]
    async with rpc.serving(settings.address("scheduler"), services, grace_seconds=0):
        yield peer

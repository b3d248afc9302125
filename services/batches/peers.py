"""What batches asks of its two peers, each call with its deadline. A peer that restarts is waited for within it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import grpc

from haywain import rpc
from haywain.engine.v1 import engine_pb2
from haywain.files.v1 import files_pb2, files_pb2_grpc
from haywain.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc

__all__ = ["Files", "Scheduler"]

CALL_SECONDS = 10.0
READ_SECONDS = 1.0
"""For what only makes an answer better: no waiting for a peer that is away."""
SEAL_SECONDS = 600.0
SUBMIT_SECONDS = 60.0


class Files:
    """The Files service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Use an open channel."""
        self._stub = files_pb2_grpc.FilesServiceStub(channel)

    async def hold(self, tenant: str, file_id: str, holder: str) -> files_pb2.HoldBlobResponse:
        """Keep a file's bytes for a batch; answers their blob key and the file. Raises FileMissing, FileGone."""
        request = files_pb2.HoldBlobRequest(tenant=tenant, file_id=file_id, holder=holder)
        answer: files_pb2.HoldBlobResponse = await rpc.call(self._stub.HoldBlob, request, timeout=CALL_SECONDS, tenant=tenant)
        return answer

    async def release(self, holder: str) -> None:
        """End a batch's holds."""
        await rpc.call(self._stub.ReleaseBlob, files_pb2.ReleaseBlobRequest(holder=holder), timeout=CALL_SECONDS)

    async def adopt(self, request: files_pb2.AdoptBlobRequest) -> str:
        """Make a blob a file; answers its id, the same for the same `request_id`."""
        answer = await rpc.call(self._stub.AdoptBlob, request, timeout=CALL_SECONDS, tenant=request.tenant)
        return str(answer.file.file_id)


class Scheduler:
    """The Scheduler service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Use an open channel."""
        self._stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)

    async def models(self) -> list[engine_pb2.ModelDescription]:
        """List the models served now."""
        answer = await rpc.call(self._stub.ListModels, scheduler_pb2.ListModelsRequest(), timeout=CALL_SECONDS)
        return list(answer.models)

    async def pool(self) -> scheduler_pb2.GetPoolStatusResponse:
        """Tell how full the intake is, at once or not at all."""
        request = scheduler_pb2.GetPoolStatusRequest()
        answer: scheduler_pb2.GetPoolStatusResponse = await rpc.call(
            self._stub.GetPoolStatus, request, timeout=READ_SECONDS, wait=False
        )
        return answer

    async def submit(self, request: scheduler_pb2.SubmitBatchRequest) -> None:
        """Hand a validated batch in; repeating it changes nothing."""
        await rpc.call(self._stub.SubmitBatch, request, timeout=SUBMIT_SECONDS, tenant=request.tenant)

    async def progress(self, batch_ids: Iterable[str], *, wait: bool = False) -> list[scheduler_pb2.Progress]:
        """Tell how far batches are, in one call; unknown ones are left out. Without `wait`, at once or not at all."""
        request = scheduler_pb2.GetProgressRequest(batch_ids=batch_ids)
        timeout = CALL_SECONDS if wait else READ_SECONDS
        return list((await rpc.call(self._stub.GetProgress, request, timeout=timeout, wait=wait)).progress)

    async def watch(self) -> AsyncIterator[list[scheduler_pb2.Progress]]:
        """Stream the progress of batches that change, until the peer goes away."""
        async for message in rpc.stream(self._stub.WatchProgress, scheduler_pb2.WatchProgressRequest()):
            yield list(message.progress)

    async def stop(self, batch_id: str, reason: scheduler_pb2.StopBatchRequest.Reason) -> scheduler_pb2.Progress:
        """Stop a batch; repeating it changes nothing. Raises BatchMissing."""
        request = scheduler_pb2.StopBatchRequest(batch_id=batch_id, reason=reason)
        answer: scheduler_pb2.StopBatchResponse = await rpc.call(self._stub.StopBatch, request, timeout=CALL_SECONDS)
        return answer.progress

    async def seal(self, batch_id: str) -> scheduler_pb2.SealBatchResponse:
        """Write the blobs of an ended batch. Raises BatchMissing."""
        request = scheduler_pb2.SealBatchRequest(batch_id=batch_id)
        answer: scheduler_pb2.SealBatchResponse = await rpc.call(self._stub.SealBatch, request, timeout=SEAL_SECONDS)
        return answer

    async def forget(self, batch_id: str) -> None:
        """Drop what is kept of a sealed batch."""
        await rpc.call(self._stub.ForgetBatch, scheduler_pb2.ForgetBatchRequest(batch_id=batch_id), timeout=CALL_SECONDS)

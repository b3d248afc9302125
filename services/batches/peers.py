"""What batches asks of its two peers, each call with its deadline. A peer that restarts is waited for within it.

What many batches ask at the same time goes there in one call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

import grpc

from haywain import rpc
from haywain.engine.v1 import engine_pb2
from haywain.files.v1 import files_pb2, files_pb2_grpc
from haywain.gather import Gathered, gathered_calls
from haywain.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc

__all__ = ["Files", "Scheduler"]

CALL_SECONDS = 10.0
READ_SECONDS = 1.0
"""For what only makes an answer better: no waiting for a peer that is away."""
SEAL_SECONDS = 600.0
SUBMIT_SECONDS = 60.0
SMALL_ROWS = 1_000


class Files:
    """The Files service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Use an open channel."""
        self._stub = files_pb2_grpc.FilesServiceStub(channel)
        self._hold = gathered_calls(self._hold_many, self._hold_one)
        self._adopt = gathered_calls(self._adopt_many, self._adopt_one)
        self._release = gathered_calls(self._release_many, self._release_one)

    async def hold(self, tenant: str, file_id: str, holder: str) -> files_pb2.HoldBlobResponse:
        """Keep a file's bytes for a batch; answers their blob key and the file. Raises FileMissing, FileGone."""
        return await self._hold(files_pb2.HoldBlobRequest(tenant=tenant, file_id=file_id, holder=holder))

    async def release(self, holder: str) -> None:
        """End a batch's holds."""
        await self._release(holder)

    async def delete(self, tenant: str, file_id: str) -> None:
        """Delete a file. Raises FileMissing."""
        request = files_pb2.DeleteFileRequest(tenant=tenant, file_id=file_id)
        await rpc.call(self._stub.DeleteFile, request, timeout=CALL_SECONDS, tenant=tenant)

    async def adopt(self, request: files_pb2.AdoptBlobRequest) -> str:
        """Make a blob a file; answers its id, the same for the same `request_id`."""
        return str((await self._adopt(request)).file.file_id)

    async def _hold_one(self, request: files_pb2.HoldBlobRequest) -> files_pb2.HoldBlobResponse:
        answer: files_pb2.HoldBlobResponse = await rpc.call(
            self._stub.HoldBlob, request, timeout=CALL_SECONDS, tenant=request.tenant
        )
        return answer

    async def _hold_many(self, requests: list[files_pb2.HoldBlobRequest]) -> Sequence[files_pb2.HoldBlobResponse]:
        answer = await rpc.call(self._stub.HoldBlobs, files_pb2.HoldBlobsRequest(holds=requests), timeout=CALL_SECONDS)
        return list(answer.held)

    async def _adopt_one(self, request: files_pb2.AdoptBlobRequest) -> files_pb2.AdoptBlobResponse:
        answer: files_pb2.AdoptBlobResponse = await rpc.call(
            self._stub.AdoptBlob, request, timeout=CALL_SECONDS, tenant=request.tenant
        )
        return answer

    async def _adopt_many(self, requests: list[files_pb2.AdoptBlobRequest]) -> Sequence[files_pb2.AdoptBlobResponse]:
        answer = await rpc.call(self._stub.AdoptBlobs, files_pb2.AdoptBlobsRequest(blobs=requests), timeout=CALL_SECONDS)
        return list(answer.adopted)

    async def _release_one(self, holder: str) -> None:
        await rpc.call(self._stub.ReleaseBlob, files_pb2.ReleaseBlobRequest(holder=holder), timeout=CALL_SECONDS)

    async def _release_many(self, holders: list[str]) -> Sequence[None]:
        await rpc.call(self._stub.ReleaseBlobs, files_pb2.ReleaseBlobsRequest(holders=holders), timeout=CALL_SECONDS)
        return [None] * len(holders)


class Scheduler:
    """The Scheduler service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Use an open channel."""
        self._stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        self._models: Gathered[None, list[engine_pb2.ModelDescription]] = Gathered(self._models_for_all, most=1_000)
        self._pool: Gathered[None, scheduler_pb2.GetPoolStatusResponse] = Gathered(self._pool_for_all, most=1_000)
        self._submit = gathered_calls(self._submit_many, self._submit_one)
        self._seal = gathered_calls(self._seal_many, self._seal_one)
        self._forget = gathered_calls(self._forget_many, self._forget_one)

    async def models(self) -> list[engine_pb2.ModelDescription]:
        """List the models served now."""
        return await self._models(None)

    async def _models_for_all(self, askers: list[None]) -> Sequence[list[engine_pb2.ModelDescription]]:
        answer = await rpc.call(self._stub.ListModels, scheduler_pb2.ListModelsRequest(), timeout=CALL_SECONDS)
        return [list(answer.models)] * len(askers)

    async def pool(self) -> scheduler_pb2.GetPoolStatusResponse:
        """Tell how full the intake is, at once or not at all."""
        return await self._pool(None)

    async def _pool_for_all(self, askers: list[None]) -> Sequence[scheduler_pb2.GetPoolStatusResponse]:
        request = scheduler_pb2.GetPoolStatusRequest()
        answer: scheduler_pb2.GetPoolStatusResponse = await rpc.call(
            self._stub.GetPoolStatus, request, timeout=READ_SECONDS, wait=False
        )
        return [answer] * len(askers)

    async def submit(self, request: scheduler_pb2.SubmitBatchRequest) -> None:
        """Hand a validated batch in; repeating it changes nothing."""
        await self._submit(request)

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

    async def seal(self, batch_id: str, rows: int) -> scheduler_pb2.SealBatchResponse:
        """Write the blobs of an ended batch; one of many rows is waited for by nobody else. Raises BatchMissing."""
        return await (self._seal(batch_id) if rows <= SMALL_ROWS else self._seal_one(batch_id))

    async def forget(self, batch_id: str) -> None:
        """Drop what is kept of a sealed batch."""
        await self._forget(batch_id)

    async def _submit_one(self, request: scheduler_pb2.SubmitBatchRequest) -> None:
        await rpc.call(self._stub.SubmitBatch, request, timeout=SUBMIT_SECONDS, tenant=request.tenant)

    async def _submit_many(self, requests: list[scheduler_pb2.SubmitBatchRequest]) -> Sequence[None]:
        together = scheduler_pb2.SubmitBatchesRequest(batches=requests)
        await rpc.call(self._stub.SubmitBatches, together, timeout=SUBMIT_SECONDS)
        return [None] * len(requests)

    async def _seal_one(self, batch_id: str) -> scheduler_pb2.SealBatchResponse:
        request = scheduler_pb2.SealBatchRequest(batch_id=batch_id)
        answer: scheduler_pb2.SealBatchResponse = await rpc.call(self._stub.SealBatch, request, timeout=SEAL_SECONDS)
        return answer

    async def _seal_many(self, batch_ids: list[str]) -> Sequence[scheduler_pb2.SealBatchResponse]:
        request = scheduler_pb2.SealBatchesRequest(batch_ids=batch_ids)
        return list((await rpc.call(self._stub.SealBatches, request, timeout=SEAL_SECONDS)).sealed)

    async def _forget_one(self, batch_id: str) -> None:
        await rpc.call(self._stub.ForgetBatch, scheduler_pb2.ForgetBatchRequest(batch_id=batch_id), timeout=CALL_SECONDS)

    async def _forget_many(self, batch_ids: list[str]) -> Sequence[None]:
        request = scheduler_pb2.ForgetBatchesRequest(batch_ids=batch_ids)
        await rpc.call(self._stub.ForgetBatches, request, timeout=CALL_SECONDS)
        return [None] * len(batch_ids)

"""SchedulerService on the wire: translates messages to and from the domain, nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from haywain import log, rpc
from haywain.errors import InvalidRequest
from haywain.gather import all_of
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.scheduler.v1 import scheduler_pb2_grpc
from haywain.settings import Settings
from services.scheduler.figures import figures
from services.scheduler.model_lease_service import ModelLeaseServicer
from services.scheduler.pieces import Pieces, intact
from services.scheduler.replay import lines_after
from services.scheduler.scheduler import Scheduler

__all__ = ["NAME", "SchedulerServicer", "serve"]

NAME = "haywain.scheduler.v1.SchedulerService"
_SETTLE_SECONDS = 1.0
_TOLD_TOGETHER = 500
"""Batches in one message to a watcher: all may change at once, and others have a turn between two messages."""
_log = log.get()


class SchedulerServicer(ModelLeaseServicer):
    """One method an RPC."""

    def __init__(self, scheduler: Scheduler) -> None:
        """The scheduler runs elsewhere."""
        super().__init__(scheduler.model_leases, scheduler.settings, scheduler.models_of)
        self._scheduler = scheduler

    async def SubmitBatch(self, request: pb.SubmitBatchRequest, context: Any) -> pb.SubmitBatchResponse:
        """Take a batch in."""
        await self._scheduler.submit(request)
        return pb.SubmitBatchResponse()

    async def GetProgress(self, request: pb.GetProgressRequest, context: Any) -> pb.GetProgressResponse:
        """Tell how far batches are."""
        await self._scheduler.fresh()
        return pb.GetProgressResponse(progress=self._progress(request.batch_ids))

    async def WatchProgress(self, request: pb.WatchProgressRequest, context: Any) -> AsyncIterator[pb.WatchProgressResponse]:
        """Stream the progress of batches that change."""
        async for changed in self._scheduler.changes.watch():
            batch_ids = list(changed)
            for at in range(0, max(1, len(batch_ids)), _TOLD_TOGETHER):
                progress = self._progress(batch_ids[at : at + _TOLD_TOGETHER])
                if progress or not changed:
                    yield pb.WatchProgressResponse(progress=progress)

    async def StopBatch(self, request: pb.StopBatchRequest, context: Any) -> pb.StopBatchResponse:
        """Stop a batch."""
        if request.reason == pb.StopBatchRequest.REASON_UNSPECIFIED:
            raise InvalidRequest("a batch is stopped for a reason", param="reason")
        batch = await self._scheduler.stop(request.batch_id, request.reason)
        return pb.StopBatchResponse(progress=self._scheduler.progress(batch))

    async def SealBatch(self, request: pb.SealBatchRequest, context: Any) -> pb.SealBatchResponse:
        """Write a batch's output and error blobs."""
        return await self._scheduler.seal(request.batch_id)

    async def ForgetBatch(self, request: pb.ForgetBatchRequest, context: Any) -> pb.ForgetBatchResponse:
        """Drop what is kept of a batch."""
        await self._scheduler.forget(request.batch_id)
        return pb.ForgetBatchResponse()

    async def SubmitBatches(self, request: pb.SubmitBatchesRequest, context: Any) -> pb.SubmitBatchesResponse:
        """Take many batches in."""
        await all_of(self._scheduler.submit(batch) for batch in request.batches)
        return pb.SubmitBatchesResponse()

    async def SealBatches(self, request: pb.SealBatchesRequest, context: Any) -> pb.SealBatchesResponse:
        """Write the blobs of many batches."""
        return pb.SealBatchesResponse(sealed=await all_of(map(self._scheduler.seal, request.batch_ids)))

    async def ForgetBatches(self, request: pb.ForgetBatchesRequest, context: Any) -> pb.ForgetBatchesResponse:
        """Drop what is kept of many batches."""
        await all_of(map(self._scheduler.forget, request.batch_ids))
        return pb.ForgetBatchesResponse()

    async def ReadResults(self, request: pb.ReadResultsRequest, context: Any) -> AsyncIterator[pb.ReadResultsResponse]:
        """Stream the lines recorded so far."""
        await self._scheduler.fresh()
        recorded = await self._scheduler.intake.results(request.batch_id)
        results = await asyncio.to_thread(intact, recorded, whole=False)  # what is lost runs again, or is told when it is sealed
        pieces = lines_after(Pieces(results).lines(), request.after_line)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield pb.ReadResultsResponse(data=piece[0], line=piece[1])

    async def Complete(self, request: pb.CompleteRequest, context: Any) -> AsyncIterator[pb.CompleteResponse]:
        """Run one request now."""
        call = self._scheduler.registry.called(request)
        await self._scheduler.registry.reach(call)
        await self._scheduler.model_leases.admit(call)
        self._scheduler.registry.call(call)
        try:
            while True:
                event = await call.event()
                yield event
                if event.HasField("result"):
                    return
        finally:
            self._scheduler.dispatcher.leave(call)

    async def RegisterEngine(self, request: pb.RegisterEngineRequest, context: Any) -> pb.RegisterEngineResponse:
        """Take a registration or heartbeat."""
        await self._scheduler.registry.register(request.engine, request.load if request.HasField("load") else None)
        return pb.RegisterEngineResponse(heartbeat_ms=self._scheduler.settings.heartbeat_ms)

    async def DrainEngine(self, request: pb.DrainEngineRequest, context: Any) -> pb.DrainEngineResponse:
        """Send an engine nothing more."""
        return pb.DrainEngineResponse(engine=await self._scheduler.registry.drain(request.engine_id, local=request.local))

    async def AddEngine(self, request: pb.AddEngineRequest, context: Any) -> pb.AddEngineResponse:
        """Know an engine that doesn't register itself."""
        return pb.AddEngineResponse(engine=await self._scheduler.registry.add(request.address))

    async def RemoveEngine(self, request: pb.RemoveEngineRequest, context: Any) -> pb.RemoveEngineResponse:
        """Drain an engine and forget it."""
        return pb.RemoveEngineResponse(engine=await self._scheduler.registry.remove(request.engine_id, local=request.local))

    async def ListEngines(self, request: pb.ListEnginesRequest, context: Any) -> pb.ListEnginesResponse:
        """List the engines."""
        return await self._scheduler.registry.listing(local=request.local)

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        """List the models."""
        return pb.ListModelsResponse(models=self._scheduler.registry.models())

    async def GetPoolStatus(self, request: pb.GetPoolStatusRequest, context: Any) -> pb.GetPoolStatusResponse:
        """Tell how full the pool is."""
        scheduler = self._scheduler
        return pb.GetPoolStatusResponse(
            intake_rows=scheduler.intake.waiting_rows(),
            intake_capacity=scheduler.settings.intake_rows,
            slots_active=scheduler.dispatcher.links.in_slots,
            slots_capacity=scheduler.settings.slots,
            active_batches=sum(not batch.ended for batch in scheduler.intake.batches.values()),
            engines=[scheduler.engines.status(entry) for entry in scheduler.engines.entries()],
        )

    def _progress(self, batch_ids: Any) -> list[pb.Progress]:
        known = self._scheduler.intake.batches
        return [self._scheduler.progress(known[batch_id]) for batch_id in batch_ids if batch_id in known]


async def serve(settings: Settings, stopping: asyncio.Event) -> None:
    """Run the scheduler until `stopping` is set."""
    scheduler = await Scheduler.open(settings)
    add = scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(scheduler.run())
            service = (SchedulerServicer(scheduler), add, NAME)
            figured = figures(scheduler)
            async with rpc.serving(settings.address("scheduler"), [service], grace_seconds=0.5, figures=figured):
                _log.info("scheduler.serving", address=settings.address("scheduler"))
                stopped = asyncio.ensure_future(stopping.wait())
                await asyncio.wait({stopped, running}, return_when=asyncio.FIRST_COMPLETED)
                stopped.cancel()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SETTLE_SECONDS):
                        await scheduler.settle()
            running.cancel()
    finally:
        await scheduler.close()

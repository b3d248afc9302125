"""The Engine service: describes itself, runs sequences by credit, and tells the scheduler that it is there."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from engine import registration, registry, tuned
from engine.backend import Backend, Counts
from engine.slots import Slots
from engine.stream import RunStream
from haywain import clock, errors, ids, log, rpc
from haywain.engine.v1 import engine_pb2 as pb
from haywain.engine.v1 import engine_pb2_grpc
from haywain.settings import Settings

__all__ = ["EngineServicer", "serve"]

_DRAIN_SECONDS: Final = 3.0
"""how long running sequences may go on after a stop; what hasn't ended then runs elsewhere"""
_log = log.get()


class EngineServicer(engine_pb2_grpc.EngineServiceServicer):
    """The RPCs. Any number of streams share the slots."""

    def __init__(self, engine: pb.Engine, slots: Slots, load: Callable[[], pb.Load | None]) -> None:
        """A stream may have twice as many sequences here as there are slots: those that run, and those that run next."""
        self._engine = engine
        self._slots = slots
        self._load = load
        self._streams: set[RunStream] = set()
        self._no_streams = asyncio.Event()
        self._no_streams.set()
        self._closing = False

    async def DescribeEngine(self, request: pb.DescribeEngineRequest, context: Any) -> pb.DescribeEngineResponse:
        """Say what is served."""
        return pb.DescribeEngineResponse(engine=self._engine, load=self._load())

    async def Run(self, request_iterator: AsyncIterator[pb.RunRequest], context: Any) -> AsyncIterator[pb.RunResponse]:
        """Run what comes, until the caller is done or gone."""
        if self._closing:
            raise errors.Unavailable("The engine is stopping.", retry_after=1)
        stream = RunStream(self._slots, self._share(len(self._streams) + 1))
        self._streams.add(stream)
        self._resize()
        self._no_streams.clear()
        try:
            async with contextlib.aclosing(stream.messages(request_iterator)) as messages:
                async for message in messages:
                    yield message
        finally:
            self._streams.discard(stream)
            self._resize()
            if not self._streams:
                self._no_streams.set()

    def _share(self, streams: int) -> int:
        """Tell a stream's part of the window: with two, each can still fill all slots while the other has nothing to run."""
        return max(self._engine.slots, 2 * self._engine.slots // max(1, streams))

    def _resize(self) -> None:
        for stream in self._streams:
            stream.resize(self._share(len(self._streams)))

    async def drain(self, within_seconds: float) -> None:
        """Take nothing more and let what runs end; end the streams, without results of what hasn't by then: it runs elsewhere."""
        self._closing = True
        self._slots.drain()
        for stream in self._streams:
            stream.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._no_streams.wait(), within_seconds)
        for stream in self._streams:
            stream.end()

    def fail(self, error: errors.HaywainError) -> None:
        """Break every stream off."""
        self._closing = True
        for stream in self._streams:
            stream.fail(error)


async def serve(settings: Settings, stopping: asyncio.Event) -> None:
    """Run the engine process until `stopping` is set. Raises HaywainError when the backend can't start, or dies."""
    backend = registry.create(tuned.applied(settings))
    await run(backend, settings, stopping)


async def run(backend: Backend, settings: Settings, stopping: asyncio.Event) -> None:
    """Serve this backend."""
    slots = Slots(backend, clock.SystemClock())
    address = settings.address("engine")
    try:
        models = await _started(backend, slots, stopping)
        if models is None:
            return
        slots.serve(models)
        engine = pb.Engine(
            engine_id=settings.engine.id,
            incarnation=ids.new("inc_"),
            backend=backend.name,
            version=backend.version,
            address=address,
            models=models,
            slots=backend.slots,
        )
        load = functools.partial(_load, backend)
        servicer = EngineServicer(engine, slots, load)
        service = (servicer, engine_pb2_grpc.add_EngineServiceServicer_to_server, "haywain.engine.v1.EngineService")
        async with rpc.serving(address, [service], grace_seconds=0.5) as server:
            _log.info("engine.serving", address=address, backend=backend.name, models=[model.model for model in models])
            async with asyncio.TaskGroup() as group:
                schedulers = settings.addresses("scheduler")
                registering = [group.create_task(registration.register(scheduler, engine, load)) for scheduler in schedulers]
                stop = group.create_task(stopping.wait())
                ends: set[asyncio.Future[Any]] = {stop, slots.death}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for one in (*registering, stop):
                    one.cancel()
            await server.set_serving(False)
            if slots.death.done():
                servicer.fail(errors.Unavailable("The engine's backend died.", retry_after=1))
                raise errors.HaywainError(f"Backend {backend.name} died: {slots.death.result()}", code="engine_error")
            await servicer.drain(_DRAIN_SECONDS)
    finally:
        await backend.close()


def _load(backend: Backend) -> pb.Load | None:
    return backend.load if isinstance(backend, Counts) else None


async def _started(backend: Backend, slots: Slots, stopping: asyncio.Event) -> list[pb.ModelDescription] | None:
    """Start the backend, None when `stopping` came first."""
    starting = asyncio.create_task(backend.start(slots))
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
        return starting.result() if starting.done() else None
    finally:
        stop.cancel()
        starting.cancel()
        both: set[asyncio.Future[Any]] = {starting, stop}
        await asyncio.wait(both)

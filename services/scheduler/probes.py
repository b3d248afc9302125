"""Engines that were added: they don't register themselves, so they are asked how they are, each at its address, again and again.

What they answer is taken like a registration, so all else is as for every engine: silent for three heartbeats it is lost, and one
that answers again is known again, also as a new incarnation.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from haywain import errors, log, rpc
from haywain.engine.v1 import engine_pb2, engine_pb2_grpc

__all__ = ["Probes", "ask", "check"]

_MISSED_MAX = 3
_REASON = 200
_NO_TIME = 253_402_300_800
"""Seconds at which what can be written as a time ends: the year 10,000."""
_log = log.get()


def check(engine: engine_pb2.Engine) -> None:
    """Raise InvalidRequest for a description that nothing can be sent by."""
    if not (engine.engine_id and engine.address and engine.models and engine.slots > 0):
        raise errors.InvalidRequest("an engine registers with an id, an address, models and slots")
    for model in engine.models:
        if not model.model:
            raise errors.InvalidRequest(f"the engine '{engine.engine_id}' has a model without an id")
        if not (0 <= model.create_time.seconds < _NO_TIME and 0 <= model.create_time.nanos < 1_000_000_000):
            raise errors.InvalidRequest(f"the engine '{engine.engine_id}' has a model of no time: {model.model}")


async def ask(address: str, seconds: float) -> engine_pb2.Engine:
    """Ask what is at an address what it is. Raises Unavailable, InvalidRequest: it is no engine."""
    async with rpc.channel(address) as channel:
        return (await _describe(channel, address, seconds, wait=False)).engine


async def _describe(channel: grpc.aio.Channel, address: str, seconds: float, *, wait: bool) -> engine_pb2.DescribeEngineResponse:
    """Ask by an open channel; the address is the one that was asked at, whatever the engine says of itself."""
    stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
    try:
        request = engine_pb2.DescribeEngineRequest()
        answer: engine_pb2.DescribeEngineResponse = await stub.DescribeEngine(request, timeout=seconds, wait_for_ready=wait)
    except grpc.aio.AioRpcError as error:
        raise _refusal(address, seconds, error) from None
    answer.engine.address = address
    return answer


def _refusal(address: str, seconds: float, error: grpc.aio.AioRpcError) -> errors.HaywainError:
    reason = (error.details() or error.code().name).partition("\n")[0][:_REASON]
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.Unavailable(f"What is at {address} did not answer within {seconds:g} s.")
        case grpc.StatusCode.UNIMPLEMENTED:
            return errors.InvalidRequest(f"What is at {address} is no engine: it has no haywain.engine.v1.EngineService.")
        case grpc.StatusCode.UNAVAILABLE:
            return errors.Unavailable(f"No engine answers at {address}: {reason}")
        case _:
            return errors.InvalidRequest(f"What is at {address} is no engine: {reason}")


class Probes:
    """A loop for each engine that was added."""

    def __init__(self, heartbeat_ms: int, register: Callable[[engine_pb2.Engine, engine_pb2.Load | None], Awaitable[None]]) -> None:
        """What an engine answers is handed to `register`."""
        self._seconds = heartbeat_ms / 1000
        self._register = register
        self._group: asyncio.TaskGroup | None = None
        self._addresses: dict[str, str] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    @property
    def addresses(self) -> Mapping[str, str]:
        """Tell where each engine is asked, by id."""
        return self._addresses

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            for engine_id in self._addresses:
                self._start(engine_id)
            await asyncio.Event().wait()

    def put(self, engine_id: str, address: str) -> None:
        """Ask an engine at this address from now on."""
        if self._addresses.get(engine_id) != address:
            self.drop(engine_id)
            self._addresses[engine_id] = address
            self._start(engine_id)

    def drop(self, engine_id: str) -> None:
        """Ask an engine nothing more."""
        self._addresses.pop(engine_id, None)
        if (running := self._running.pop(engine_id, None)) is not None:
            running.cancel()

    def _start(self, engine_id: str) -> None:
        if self._group is not None:
            probing = self._probe(engine_id, self._addresses[engine_id])
            # A context of its own: not the ids of the request that added it.
            self._running[engine_id] = self._group.create_task(probing, context=contextvars.Context())

    async def _probe(self, engine_id: str, address: str) -> None:
        told = ""
        async with rpc.channel(address, retry_ms=max(50, int(self._seconds * 1000))) as channel:
            while True:
                try:
                    answer = await _describe(channel, address, _MISSED_MAX * self._seconds, wait=True)
                    engine, load = answer.engine, answer.load if answer.HasField("load") else None
                    check(engine)
                    if engine.engine_id != engine_id:
                        raise errors.Conflict(f"what answers at {address} is called '{engine.engine_id}' now")
                    await self._register(engine, load)
                    told = ""
                except errors.HaywainError as error:
                    if told != type(error).__name__:  # once, not at each heartbeat
                        _log.warning("engine.not_known", engine_id=engine_id, error=error.message)
                    told = type(error).__name__
                except Exception:  # noqa: BLE001 - whatever an engine says of itself is its own trouble only
                    _log.exception("engine.probe_failed", engine_id=engine_id)
                await asyncio.sleep(self._seconds)

"""How the scheduler learns of an engine: it is told, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NoReturn

from haywain import errors, log, rpc
from haywain.engine.v1 import engine_pb2 as pb
from haywain.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc

__all__ = ["register"]

_RETRY_SECONDS: Final = 0.25
_CALL_SECONDS: Final = 2.0
_log = log.get()


async def register(scheduler: str, engine: pb.Engine, load: Callable[[], pb.Load | None]) -> NoReturn:
    """Register with the scheduler at this address, and go on doing so as often as it asks; while it is away, 4 times a second."""
    known: bool | None = None
    refusal = ""
    async with rpc.channel(scheduler, retry_ms=int(_RETRY_SECONDS * 1_000)) as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        while True:
            request = scheduler_pb2.RegisterEngineRequest(engine=engine, load=load())
            try:
                answer = await rpc.call(stub.RegisterEngine, request, timeout=_CALL_SECONDS, wait=False)
            except errors.HaywainError as error:
                away = isinstance(error, errors.Unavailable | errors.DeadlineExceeded)
                if known is None and away:  # both start together: no reason to worry yet
                    _log.info("engine.waits_for_scheduler")
                elif known or (refusal != error.message and not away):
                    _log.warning("engine.not_registered", error=error.message)
                refusal = refusal if away else error.message
                known, pause = False, _RETRY_SECONDS
            else:
                if not known:
                    _log.info("engine.registered", engine_id=engine.engine_id)
                known, pause = True, min(max(answer.heartbeat_ms / 1_000, 0.05), 60.0)
            await asyncio.sleep(pause)

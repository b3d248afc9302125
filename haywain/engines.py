"""`haywain engines`: the engines of a mesh, for those who run it: list them, drain one. Native gRPC to the mesh's one address."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import rich.box
import rich.console
import rich.table

from haywain import rpc
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.scheduler.v1 import scheduler_pb2_grpc

__all__ = ["command"]

_CALL_SECONDS = 10.0
_LOOK_SECONDS = 0.5


def command(address: str, action: str, engine_id: str = "", wait_seconds: float = 0.0) -> int:
    """Do `list` or `drain`; the exit status: 1 when a drained engine still runs rows after `wait_seconds`.

    Raises HaywainError: no such engine, or the mesh at `address` (`host:port`) doesn't answer.
    """
    return asyncio.run(_list(address) if action == "list" else _drain(address, engine_id, wait_seconds))


async def _list(address: str) -> int:
    async with rpc.channel(address) as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        answer = await rpc.call(stub.ListEngines, pb.ListEnginesRequest(), timeout=_CALL_SECONDS, wait=False)
    if not answer.engines:
        print("no engine is known")
        return 0
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("engine", "state", "backend", "models"):
        table.add_column(heading, overflow="fold")
    for heading in ("slots", "active", "ended"):
        table.add_column(heading, justify="right")
    for status in answer.engines:
        engine = status.engine
        models = ", ".join(model.model for model in engine.models)
        backend = f"{engine.backend} {engine.version}".rstrip()
        counts = (str(engine.slots), str(status.active), f"{status.ended:,}")
        table.add_row(engine.engine_id, _state(status), backend, models, *counts)
    rich.console.Console(markup=False, highlight=False, emoji=False).print(table)
    return 0


async def _drain(address: str, engine_id: str, wait_seconds: float) -> int:
    async with rpc.channel(address) as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        request = pb.DrainEngineRequest(engine_id=engine_id)
        until = time.monotonic() + wait_seconds
        while True:  # draining twice is draining once; the answer tells what still runs
            status = (await rpc.call(stub.DrainEngine, request, timeout=_CALL_SECONDS, wait=False)).engine
            if not status.active:
                print(f"{engine_id} is drained: it runs nothing and gets nothing more until its process starts anew")
                return 0
            if time.monotonic() >= until:
                break
            await asyncio.sleep(_LOOK_SECONDS)
    print(f"{engine_id} gets nothing more; {status.active} {'row is' if status.active == 1 else 'rows are'} at it still")
    return 1 if wait_seconds else 0


def _state(status: pb.EngineStatus) -> str:
    return pb.EngineStatus.State.Name(status.state).removeprefix("STATE_").lower()

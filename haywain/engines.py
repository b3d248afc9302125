"""`haywain engines`: the engines of a mesh, for those who run it: list, add, drain, remove. Native gRPC to the mesh's address."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import rich.console
import rich.table

from haywain import rpc
from haywain.clock import seconds
from haywain.errors import DeadlineExceeded, StorageFull, Unavailable
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.scheduler.v1 import scheduler_pb2_grpc

__all__ = ["command"]

_CALL_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_READY_SECONDS = 10.0
_DIGEST = 8
_NARROW = 100
"""A table's width where nobody says how wide a line may be."""


def command(address: str, action: str, engine: str = "", wait_seconds: float = 0.0, *, as_json: bool = False) -> int:
    """Do `list`, `add` (`engine` is its address), `drain` or `remove`; the exit status: 1 when rows run after `wait_seconds`.

    Raises HaywainError: no such engine, what is at its address is none, or the mesh at `address` (`host:port`) doesn't answer.
    """
    if action == "add" and engine.startswith("unix:"):  # the schedulers have another working folder
        engine = f"unix:{Path(engine.removeprefix('unix:')).absolute()}"
    return asyncio.run(_command(address, action, engine, wait_seconds, as_json))


async def _command(address: str, action: str, engine: str, wait_seconds: float, as_json: bool) -> int:
    async with rpc.channel(address) as channel:
        mesh = _Mesh(scheduler_pb2_grpc.SchedulerServiceStub(channel), address)
        match action:
            case "list":
                listing = await mesh.engines()
                print(_json(listing)) if as_json else _print(listing)
                return 0
            case "add":
                return await _add(mesh, engine)
            case "drain":
                return await _drain(mesh, engine, wait_seconds)
            case _:
                return await _remove(mesh, engine, wait_seconds)


class _Mesh:
    """What is asked of it."""

    def __init__(self, stub: Any, address: str) -> None:
        self._stub = stub
        self._address = address

    async def engines(self) -> pb.ListEnginesResponse:
        listing: pb.ListEnginesResponse = await self._call("ListEngines", pb.ListEnginesRequest())
        return listing

    async def add(self, address: str) -> pb.EngineStatus:
        status: pb.EngineStatus = (await self._call("AddEngine", pb.AddEngineRequest(address=address))).engine
        return status

    async def drain(self, engine_id: str) -> pb.EngineStatus:
        status: pb.EngineStatus = (await self._call("DrainEngine", pb.DrainEngineRequest(engine_id=engine_id))).engine
        return status

    async def remove(self, engine_id: str) -> pb.EngineStatus:
        status: pb.EngineStatus = (await self._call("RemoveEngine", pb.RemoveEngineRequest(engine_id=engine_id))).engine
        return status

    async def left(self, status: pb.EngineStatus, wait_seconds: float) -> int:
        """Wait until nothing is at this incarnation of an engine; gives how much still is. Raises Unavailable: nobody knows."""
        mine, until = status.engine, time.monotonic() + wait_seconds
        while True:
            listing = await self.engines()
            same = [one for one in listing.engines if one.engine.engine_id == mine.engine_id]
            active = sum(one.active for one in same if one.engine.incarnation == mine.incarnation)
            if not active and not listing.silent:
                return 0
            if time.monotonic() >= until:
                if listing.silent:
                    raise Unavailable(f"{', '.join(listing.silent)} did not answer: what it has at '{mine.engine_id}' isn't known.")
                return active
            await asyncio.sleep(_LOOK_SECONDS)

    async def _call(self, method: str, request: Any) -> Any:
        try:
            return await rpc.call(getattr(self._stub, method), request, timeout=_CALL_SECONDS, wait=False)
        except (Unavailable, DeadlineExceeded) as error:
            if type(error) is StorageFull or error.message != type(error)().message:  # somebody says why
                raise
            raise Unavailable(f"There is no mesh at {self._address} (HOST:PORT), or its scheduler can't answer now.") from None


async def _add(mesh: _Mesh, address: str) -> int:
    status = await mesh.add(address)
    until = time.monotonic() + _READY_SECONDS
    while status.state == pb.EngineStatus.STATE_CONNECTING and time.monotonic() < until:
        await asyncio.sleep(_LOOK_SECONDS / 5)
        status = next((one for one in (await mesh.engines()).engines if one.engine.engine_id == status.engine.engine_id), status)
    engine = status.engine
    models = ", ".join(model.model for model in engine.models)
    print(f"{engine.engine_id} is added: {engine.backend or 'an engine'}, {engine.slots} slots, {models}; it is {_state(status)}")
    return 0


async def _drain(mesh: _Mesh, engine_id: str, wait_seconds: float) -> int:
    left = await mesh.left(await mesh.drain(engine_id), wait_seconds)
    if not left:
        print(f"{engine_id} is drained: it runs nothing and gets nothing more until its process starts anew")
        return 0
    print(f"{engine_id} gets nothing more; {_rows(left)} at it still")
    return 1 if wait_seconds else 0


async def _remove(mesh: _Mesh, engine_id: str, wait_seconds: float) -> int:
    status = await mesh.remove(engine_id)
    left = await mesh.left(status, wait_seconds)
    again = "" if status.standing else "; it is known again when its process starts anew"
    if not left:
        print(f"{engine_id} is removed{again}")
        return 0
    print(f"{engine_id} gets nothing more and is removed when it is done; {_rows(left)} at it still")
    return 1 if wait_seconds else 0


def _rows(count: int) -> str:
    return f"{count} row is" if count == 1 else f"{count} rows are"


def _print(listing: pb.ListEnginesResponse) -> None:
    console = rich.console.Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, _NARROW)
    if not listing.engines:
        print("no engine is known")
    else:
        console.print(_table(listing.engines))
    for status in listing.engines:
        if status.HasField("load"):
            print(_busy(status))
        if status.quarantine_reason:
            print(f"{status.engine.engine_id} is quarantined: {status.quarantine_reason}")
    for name in listing.silent:
        print(f"{name} did not answer: what it has at engines isn't counted")


def _table(engines: Sequence[pb.EngineStatus]) -> rich.table.Table:
    table = rich.table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("engine", "state", "backend", "model", "digest"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("state", "digest"))
    for heading in ("active", "in/s", "out/s", "cached"):
        table.add_column(heading, justify="right", no_wrap=True)
    for status in engines:
        engine = status.engine
        models = "\n".join(model.model for model in engine.models)
        digests = "\n".join(_short(model.digest) for model in engine.models)
        rates = (f"{status.input_tokens_per_second:,.0f}", f"{status.output_tokens_per_second:,.0f}", _cached(status))
        state = f"{_state(status)}, slow" if status.slow else _state(status)
        table.add_row(engine.engine_id, state, engine.backend, models, digests, f"{status.active}/{engine.slots}", *rates)
    return table


def _busy(status: pb.EngineStatus) -> str:
    """Tell how busy an engine says it is."""
    load, engine = status.load, status.engine
    parts = [f"{engine.engine_id} runs {load.running} of {engine.slots} at a time"]
    if load.kv_capacity:
        parts.append(f"{load.kv_used / load.kv_capacity:.0%} of its KV cache is in use")
    if load.step_seconds:
        parts.append(f"a step takes {load.step_seconds * 1_000:.3g} ms")
    return ", ".join(parts)


def _json(listing: pb.ListEnginesResponse) -> str:
    engines = [
        {
            "id": (engine := status.engine).engine_id,
            "incarnation": engine.incarnation,
            "state": _state(status),
            "added": status.standing,
            "backend": engine.backend,
            "version": engine.version,
            "address": engine.address,
            "models": [
                {"id": model.model, "aliases": [*model.aliases], "digest": model.digest, "endpoints": [*model.endpoints]}
                for model in engine.models
            ],
            "slots": engine.slots,
            "active": status.active,
            "credits": status.credits,
            "ended": status.ended,
            "prompt_tokens_per_second": round(status.input_tokens_per_second, 1),
            "cached_tokens_per_second": round(status.cached_tokens_per_second, 1),
            "generated_tokens_per_second": round(status.output_tokens_per_second, 1),
            "load": _load(status),
            "slow": status.slow,
            "quarantine_reason": status.quarantine_reason or None,
            "quarantine_until": seconds(status.quarantine_until_time) if status.HasField("quarantine_until_time") else None,
        }
        for status in listing.engines
    ]
    return msgspec.json.format(msgspec.json.encode({"engines": engines, "silent_schedulers": [*listing.silent]})).decode()


def _load(status: pb.EngineStatus) -> dict[str, float] | None:
    load = status.load
    known = {"running": load.running, "kv_used_cells": load.kv_used, "kv_capacity_cells": load.kv_capacity}
    return known | {"step_seconds": load.step_seconds} if status.HasField("load") else None


def _state(status: pb.EngineStatus) -> str:
    return pb.EngineStatus.State.Name(status.state).removeprefix("STATE_").lower()


def _cached(status: pb.EngineStatus) -> str:
    given = status.input_tokens_per_second
    return f"{status.cached_tokens_per_second / given:.0%}" if given else "-"


def _short(digest: str) -> str:
    """Give what tells digests apart at a glance: the beginning, and what was done to the weights."""
    value, plus, change = digest.rpartition(":")[2].partition("+")
    return f"{value[:_DIGEST]}{plus}{change}" or "-"

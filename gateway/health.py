"""/health and /v1/pool/status: could a batch run now, and how full is the mesh."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
from google.api import httpbody_pb2

from gateway.answer import Context, json_body
from gateway.peers import Peers
from gateway.query import parameters
from haywain import errors, openai, rpc
from haywain.scheduler.v1 import scheduler_pb2

__all__ = ["Health"]

CHECK_SECONDS = 1.0


class Healthy(msgspec.Struct):
    """A batch could run now."""

    status: Literal["healthy"] = "healthy"


class Unhealthy(msgspec.Struct, kw_only=True):
    """No batch could run now; the envelope is there because every answer that isn't 2xx has one."""

    status: Literal["unhealthy"] = "unhealthy"
    reason: str
    error: openai.ErrorBody


class EngineObject(msgspec.Struct, kw_only=True):
    """An engine as `/v1/pool/status` shows it."""

    id: str
    backend: str
    model: str | None
    slots: int
    active: int
    state: str

    @classmethod
    def of(cls, status: scheduler_pb2.EngineStatus) -> EngineObject:
        """Make from what the scheduler knows."""
        engine = status.engine
        return cls(
            id=engine.engine_id,
            backend=engine.backend,
            model=engine.models[0].model if engine.models else None,
            slots=engine.slots,
            active=status.active,
            state=scheduler_pb2.EngineStatus.State.Name(status.state).removeprefix("STATE_").lower(),
        )


class PoolObject(msgspec.Struct, kw_only=True):
    """`/v1/pool/status`; rows for the intake, slots for the scheduling pool."""

    intake_pool_size: int
    intake_pool_capacity: int
    scheduling_pool_active: int
    scheduling_pool_free: int
    scheduling_pool_capacity: int
    active_batches: int
    pool_mode: Literal[True] = True
    engines: list[EngineObject]


class Health:
    """The two routes."""

    def __init__(self, peers: Peers) -> None:
        """Take the services to ask."""
        self._peers = peers

    async def health(self, context: Context) -> httpbody_pb2.HttpBody:
        """Answer 200, or 503 with the reason."""
        reason = await self._ailment()
        if not reason:
            return json_body(Healthy())
        await context.send_initial_metadata((("x-http-status", "503"), ("retry-after", "1")))
        error = openai.ErrorBody(message=f"Unhealthy: {reason}.", type="server_error", code="unhealthy")
        return json_body(Unhealthy(reason=reason, error=error))

    async def pool(self, context: Context) -> httpbody_pb2.HttpBody:
        """Tell how full the intake and the slots are."""
        parameters(context)
        scheduler = self._peers.scheduler
        pool = await scheduler.ask(scheduler.stub.GetPoolStatus, scheduler_pb2.GetPoolStatusRequest())
        return json_body(
            PoolObject(
                intake_pool_size=pool.intake_rows,
                intake_pool_capacity=pool.intake_capacity,
                scheduling_pool_active=pool.slots_active,
                scheduling_pool_free=max(pool.slots_capacity - pool.slots_active, 0),
                scheduling_pool_capacity=pool.slots_capacity,
                active_batches=pool.active_batches,
                engines=[EngineObject.of(status) for status in pool.engines],
            )
        )

    async def _ailment(self) -> str:
        """Name what is wrong; empty when nothing is."""
        peers = (self._peers.files, self._peers.batches, self._peers.scheduler)
        async with asyncio.TaskGroup() as group:
            checks = {peer.name: group.create_task(peer.healthy(CHECK_SECONDS)) for peer in peers}
        away = [name for name, check in checks.items() if not check.result()]
        if away:
            return f"{', '.join(away)} {'is' if len(away) == 1 else 'are'} not reachable"
        try:
            listing = self._peers.scheduler.stub.ListEngines
            answer = await rpc.call(listing, scheduler_pb2.ListEnginesRequest(), timeout=CHECK_SECONDS)
        except errors.HaywainError:
            return "scheduler is not reachable"
        ready = scheduler_pb2.EngineStatus.STATE_READY
        return "" if any(status.state == ready for status in answer.engines) else "no engine is ready"

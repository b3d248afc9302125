"""/health, /health/detailed and /v1/pool/status: could a batch run now, and how full is the mesh."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

import msgspec
from google.api import httpbody_pb2

from gateway.answer import Context, header, json_body
from gateway.peers import CALL_SECONDS, Peer, Peers
from gateway.pool import ask_all
from gateway.query import parameters
from gateway.storage import Storage
from haywain import errors, openai
from haywain.scheduler.v1 import scheduler_pb2

__all__ = ["Health"]

CHECK_SECONDS = 2.0
FULL = "storage_full"
_UNAVAILABLE: tuple[tuple[str, str], ...] = (("x-http-status", "503"), ("retry-after", "1"))


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
            active=min(status.active, engine.slots or status.active),
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


class Component(msgspec.Struct, kw_only=True):
    """A part of the mesh; `latency_ms` is what its own health check took, null when it gave no answer."""

    status: Literal["healthy", "unhealthy"]
    latency_ms: float | None
    reason: str | None


_AWAY = Component(status="unhealthy", latency_ms=None, reason="it is not reachable")


class DetailedHealth(msgspec.Struct, kw_only=True):
    """`/health/detailed`; an envelope is there when it isn't 2xx. The backlog is null when the scheduler can't be asked."""

    status: Literal["healthy", "unhealthy"]
    reason: str | None
    components: dict[str, Component]
    batch_backlog_rows: int | None
    error: openai.ErrorBody | msgspec.UnsetType = msgspec.UNSET


class Health:
    """The three routes."""

    def __init__(self, peers: Peers, storage: Storage) -> None:
        """Take what to ask."""
        self._peers = peers
        self._storage = storage

    async def health(self, context: Context) -> httpbody_pb2.HttpBody:
        """Answer 200, or 503 with the reason; HEAD gets the headers of it."""
        components, pool = await self._examined()
        reason = _ailment(components, pool)
        body = json_body(Unhealthy(reason=reason, error=_error(reason)) if reason else Healthy())
        headers = _UNAVAILABLE if reason else ()
        if header(context, "x-envoy-original-method") == "HEAD":
            headers = (*headers, ("x-content-length", str(len(body.data))))
            body.data = b""
        if headers:
            await context.send_initial_metadata(headers)
        return body

    async def detailed(self, context: Context) -> httpbody_pb2.HttpBody:
        """Answer the same with an entry for each component and engine."""
        parameters(context)
        components, pool = await self._examined()
        reason = _ailment(components, pool)
        engines = {f"engine {status.engine.engine_id}": _engine(status) for status in pool.engines} if pool else {}
        answer = DetailedHealth(
            status="unhealthy" if reason else "healthy",
            reason=reason or None,
            components=components | engines,
            batch_backlog_rows=pool.intake_rows if pool else None,
        )
        if reason:
            await context.send_initial_metadata(_UNAVAILABLE)
            answer.error = _error(reason)
        return json_body(answer)

    async def pool(self, context: Context) -> httpbody_pb2.HttpBody:
        """Tell how full the intake and the slots are."""
        parameters(context)
        await self._peers.scheduler.connected()
        pool = await ask_all(self._peers.schedulers, CALL_SECONDS)
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

    async def _examined(self) -> tuple[dict[str, Component], scheduler_pb2.GetPoolStatusResponse | None]:
        """Check the services at the same time, and ask the scheduler for its pool; None when it gives no answer."""
        schedulers = self._peers.schedulers
        peers = (self._peers.files, self._peers.batches, *schedulers)
        async with asyncio.TaskGroup() as group:
            checks = {peer.name: group.create_task(_examine(peer)) for peer in peers}
            checks["storage"] = group.create_task(self._examine_storage())
        components = {name: check.result() for name, check in checks.items()}
        if all(components[peer.name].status == "unhealthy" for peer in schedulers):
            return components, None
        try:
            return components, await ask_all(self._peers.schedulers, CHECK_SECONDS)
        except errors.HaywainError:
            components |= dict.fromkeys((peer.name for peer in schedulers), _AWAY)
            return components, None

    async def _examine_storage(self) -> Component:
        began = time.perf_counter()
        full = await self._storage.is_full()
        latency = round((time.perf_counter() - began) * 1_000, 2)
        return Component(status="unhealthy" if full else "healthy", latency_ms=latency, reason=FULL if full else None)


async def _examine(peer: Peer) -> Component:
    began = time.perf_counter()
    if not await peer.healthy(CHECK_SECONDS):
        return _AWAY
    return Component(status="healthy", latency_ms=round((time.perf_counter() - began) * 1_000, 2), reason=None)


def _engine(status: scheduler_pb2.EngineStatus) -> Component:
    """Tell of an engine what the scheduler knows; nobody asked it just now."""
    state = EngineObject.of(status).state
    ready = state == "ready"
    return Component(status="healthy" if ready else "unhealthy", latency_ms=None, reason=None if ready else f"it is {state}")


def _ailment(components: dict[str, Component], pool: scheduler_pb2.GetPoolStatusResponse | None) -> str:
    """Name what is wrong; empty when nothing is."""
    away = [name for name, component in components.items() if component is _AWAY]
    if pool:  # one of several schedulers is enough
        away = [name for name in away if not name.startswith("scheduler")]
    if away:
        return f"{', '.join(away)} {'is' if len(away) == 1 else 'are'} not reachable"
    if components["storage"].status == "unhealthy":
        return FULL
    ready = scheduler_pb2.EngineStatus.STATE_READY
    return "" if pool and any(status.state == ready for status in pool.engines) else "no engine is ready"


def _error(reason: str) -> openai.ErrorBody:
    return openai.ErrorBody(message=f"Unhealthy: {reason}.", type="server_error", code="unhealthy")

"""Leases of models with two schedulers: what one grants the other respects when it is answered; what one ends both know soon."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from postgres_fixture import PostgresServer
from scheduler_engine import CHAT
from scheduler_mesh import Mesh, eventually, lines_of
from scheduler_pair import Ahead, pair

from haywain import errors, rpc
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings
from services.scheduler import model_leases

_LEASED = pb.Progress.WAITING_REASON_LEASE_UNAVAILABLE


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """Give an empty database."""
    return postgres.database()


async def lease(running: Mesh, **terms: Any) -> str:
    """Lease the model at one of them; gives the lease's id."""
    answer = await rpc.call(running.stub.AcquireModelLease, pb.AcquireModelLeaseRequest(model="echo", **terms), timeout=30)
    return str(answer.lease.lease_id)


async def chat(running: Mesh, lease_id: str = "") -> None:
    """Run a request now at one of them."""
    body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "hello"}]}).encode()
    request = pb.CompleteRequest(tenant="default", endpoint=CHAT, model="echo", request=body, lease_id=lease_id)
    [event] = [event async for event in rpc.stream(running.stub.Complete, request)]
    assert event.result.status_code == 200


async def blind(running: Mesh) -> asyncio.Event:
    """Let a scheduler not read leases until the event is set."""
    leases, gate = running.scheduler.model_leases, asyncio.Event()
    store, real = leases._store, leases._store.live

    async def live() -> Any:
        await gate.wait()
        return await real()

    async with leases._looks.turn:  # no look is under way
        store.live = live  # type: ignore[method-assign]
    return gate


async def test_a_grant_is_respected_everywhere(settings: Settings, url: str) -> None:
    """When a grant is answered the other scheduler refuses calls and sends no rows; a handed batch runs at both, and so ends it."""
    async with pair(settings, url) as both:
        lease_id = await lease(both.a)
        leases = both.b.scheduler.model_leases
        assert leases.active() or leases.stale()
        with pytest.raises(errors.LeaseUnavailable):
            await chat(both.b)
        await chat(both.b, lease_id)
        batch_id, other = await both.a.submit(lines_of(40), shard_rows=5), await both.b.submit(lines_of(5, first=100))
        for running in (both.a, both.b):
            await eventually(lambda running=running: running.progress(other), lambda told: told.waiting_reason == _LEASED)
        assert both.rows_sent() == ["hello"]
        await rpc.call(both.b.stub.HandModelLease, pb.HandModelLeaseRequest(lease_id=lease_id, batch_id=batch_id))
        await both.a.ended(batch_id)
        assert set(both.rows_sent()) == {"hello", *(f"row {row}" for row in range(40))}
        await both.a.sealed(batch_id)
        told = await rpc.call(both.b.stub.GetModelLease, pb.GetModelLeaseRequest(lease_id=lease_id))
        assert told.lease.state == pb.ModelLease.STATE_RELEASED
        await both.b.ended(other)
        assert len((await both.b.sealed(other))[0]) == 5


async def test_who_is_away_does_without(settings: Settings, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that can't read leases sends nothing once a grant is answered that it doesn't know, and goes on when it can."""
    monkeypatch.setattr(model_leases, "VIEW_SECONDS", 1.0)
    async with pair(settings, url) as both:
        gate = await blind(both.b)
        lease_id = await lease(both.a)
        assert both.b.scheduler.model_leases.stale()
        batch_id = await both.b.submit(lines_of(5))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await chat(both.b)
        assert both.rows_sent() == []
        gate.set()
        await eventually(lambda: both.b.progress(batch_id), lambda told: told.waiting_reason == _LEASED)
        with pytest.raises(errors.LeaseUnavailable):
            await chat(both.b)
        await rpc.call(both.a.stub.ReleaseModelLease, pb.ReleaseModelLeaseRequest(lease_id=lease_id))
        await both.b.ended(batch_id)
        await chat(both.b)


async def test_the_clock_alone_ends_no_lease(settings: Settings, url: str) -> None:
    """A lease whose time is over may have been renewed at the other scheduler: it counts until SQL says otherwise."""
    clock = Ahead(0)
    async with pair(settings, url, clock) as both:
        await lease(both.a, ttl_seconds=60)
        leases = both.b.scheduler.model_leases
        await eventually(leases.active, bool)
        gate = await blind(both.b)
        clock.seconds = 100
        assert not leases.lets("batch_any", "echo")
        clock.seconds = 0
        gate.set()
        with pytest.raises(errors.LeaseUnavailable):
            await chat(both.b)


async def test_an_end_is_soon_known_everywhere(settings: Settings, url: str) -> None:
    """What waits at the other scheduler goes on when a lease has expired, or was ended here; a call needs no wait."""
    async with pair(settings, url) as both:
        lease_id = await lease(both.a)
        batch_id = await both.b.submit(lines_of(5))
        await eventually(lambda: both.b.progress(batch_id), lambda told: told.waiting_reason == _LEASED)
        await rpc.call(both.a.stub.ReleaseModelLease, pb.ReleaseModelLeaseRequest(lease_id=lease_id))
        await chat(both.b)
        await both.b.ended(batch_id)
        await lease(both.b, ttl_seconds=1)
        other = await both.a.submit(lines_of(5, first=10))
        await both.a.ended(other)

"""Model leases as tests take, hand and end them, and a clock that they put forward."""

from __future__ import annotations

import json
from typing import Any

from scheduler_engine import CHAT
from scheduler_mesh import Mesh, eventually

from haywain import rpc
from haywain.clock import SystemClock
from haywain.scheduler.v1 import scheduler_pb2 as pb

__all__ = ["LEASED", "Offset", "chat", "hand", "lease", "release", "served", "state", "waits"]

LEASED = pb.Progress.WAITING_REASON_LEASE_UNAVAILABLE


class Offset:
    """The machine's clock, which a test can put forward."""

    def __init__(self) -> None:
        """It is right."""
        self.seconds = 0.0
        self._clock = SystemClock()

    def now(self) -> float:
        """Tell the Unix time."""
        return self._clock.now() + self.seconds

    def monotonic(self) -> float:
        """Tell a time that never goes back."""
        return self._clock.monotonic()


async def served(running: Mesh, model: str = "echo") -> None:
    """Wait until an engine of a model can be sent to."""
    await eventually(lambda: running.scheduler.dispatcher.links.serves((model, CHAT, False, None)), bool)


async def lease(running: Mesh, model: str = "echo", **terms: Any) -> str:
    """Lease a model; gives the lease's id."""
    answer = await rpc.call(running.stub.AcquireModelLease, pb.AcquireModelLeaseRequest(model=model, **terms))
    return str(answer.lease.lease_id)


async def release(running: Mesh, lease_id: str) -> None:
    """End a lease."""
    await rpc.call(running.stub.ReleaseModelLease, pb.ReleaseModelLeaseRequest(lease_id=lease_id))


async def hand(running: Mesh, lease_id: str, batch_id: str) -> pb.ModelLease:
    """Hand a lease to a batch."""
    told = await rpc.call(running.stub.HandModelLease, pb.HandModelLeaseRequest(lease_id=lease_id, batch_id=batch_id))
    given: pb.ModelLease = told.lease
    return given


async def state(running: Mesh, lease_id: str) -> pb.ModelLease.State:
    """Ask what a lease is."""
    told = await rpc.call(running.stub.GetModelLease, pb.GetModelLeaseRequest(lease_id=lease_id))
    found: pb.ModelLease.State = told.lease.state
    return found


async def chat(running: Mesh, lease_id: str = "", model: str = "echo") -> str:
    """Run a request now; gives what was answered."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]}).encode()
    request = pb.CompleteRequest(tenant="default", endpoint=CHAT, model=model, request=body, lease_id=lease_id)
    [event] = [event async for event in rpc.stream(running.stub.Complete, request)]
    return str(json.loads(event.result.body)["choices"][0]["message"]["content"])


async def waits(running: Mesh, batch_id: str) -> pb.Progress:
    """Wait until a batch says that it waits for somebody's lease."""
    return await eventually(lambda: running.progress(batch_id), lambda progress: progress.waiting_reason == LEASED)

"""The lookup of a request's model: rarely asked, soon right. Against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.models import FRESH_SECONDS, MISSING_SECONDS, Models
from gateway.peers import Peer
from haywain import errors, rpc
from haywain.clock import FakeClock
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc


class CountingScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Counts how often it is asked for its models."""

    def __init__(self) -> None:
        self.asked = 0
        self.models = ["a"]

    async def ListModels(self, request: Any, context: Any) -> scheduler_pb2.ListModelsResponse:
        self.asked += 1
        return scheduler_pb2.ListModelsResponse(models=[engine_pb2.ModelDescription(model=name) for name in self.models])


@pytest.fixture
async def scheduler(data_dir: Path) -> AsyncIterator[CountingScheduler]:
    """A scheduler that serves `a`."""
    servicer = CountingScheduler()
    service = (servicer, scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, "test.Service")
    async with rpc.serving(f"unix:{data_dir}/run/test.sock", [service], grace_seconds=0.2):
        yield servicer


@pytest.fixture
async def peer(data_dir: Path) -> AsyncIterator[Peer]:
    """The gateway's channel to it."""
    made = Peer("scheduler", f"unix:{data_dir}/run/test.sock", scheduler_pb2_grpc.SchedulerServiceStub)
    yield made
    await made.channel.close()


async def test_many_requests_ask_once(scheduler: CountingScheduler, peer: Peer) -> None:
    """Any number of requests ask once a second."""
    clock = FakeClock()
    models = Models(peer, clock.monotonic)
    found = await asyncio.gather(*(models.find("a") for _ in range(50)))
    assert {model.model for model in found} == {"a"}
    assert scheduler.asked == 1
    clock.advance(FRESH_SECONDS + 0.1)
    await models.find("a")
    assert scheduler.asked == 2


async def test_new_models_are_found_soon(scheduler: CountingScheduler, peer: Peer) -> None:
    """A model that wasn't there is looked for again after a moment, but not by each of many requests."""
    clock = FakeClock()
    models = Models(peer, clock.monotonic)
    for _ in range(5):
        with pytest.raises(errors.ModelMissing):
            await models.find("b")
    assert scheduler.asked == 1
    scheduler.models.append("b")
    clock.advance(MISSING_SECONDS + 0.01)
    assert (await models.find("b")).model == "b"
    assert scheduler.asked == 2


async def test_an_alias_of_what_nobody_serves_says_so(scheduler: CountingScheduler, peer: Peer) -> None:
    """It is refused like an unknown model, and what it stands for is named; the scheduler tells of those that are served."""
    models = Models(peer, FakeClock().monotonic, aliases={"c": "b"})
    with pytest.raises(errors.ModelMissing, match="The model 'c' is an alias of 'b', which does not exist"):
        await models.find("c")

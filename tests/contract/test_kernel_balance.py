"""A channel to several servers: calls go to those that are there, and to another one when one goes away."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.scheduler.v1 import scheduler_pb2_grpc


class Server(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Says its name."""

    def __init__(self, name: str) -> None:
        """It is there."""
        self.name = name
        self.busy = False

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        """Answer."""
        if self.busy:
            raise errors.Unavailable("Busy.", retry_after=1)
        return pb.ListModelsResponse(models=[engine_pb2.ModelDescription(model=self.name)])

    async def ReadResults(self, request: pb.ReadResultsRequest, context: Any) -> AsyncIterator[pb.ReadResultsResponse]:
        """Answer with a stream."""
        yield pb.ReadResultsResponse(data=self.name.encode())


@contextlib.asynccontextmanager
async def served(folder: Path, name: str) -> AsyncIterator[Server]:
    """Run a server."""
    server = Server(name)
    service = (server, scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, "haywain.scheduler.v1.SchedulerService")
    async with rpc.serving(f"unix:{folder}/{name}.sock", [service], grace_seconds=0):
        yield server


async def ask(stub: Any, times: int = 1, **terms: Any) -> Counter[str]:
    """Call, and count who answered."""
    found = Counter[str]()
    for _ in range(times):
        answer = await rpc.call(stub.ListModels, pb.ListModelsRequest(), **terms)
        found[answer.models[0].model] += 1
    return found


async def read(stub: Any) -> str:
    """Read a stream."""
    return "".join([piece.data.decode() async for piece in rpc.stream(stub.ReadResults, pb.ReadResultsRequest())])


async def test_calls_go_to_who_is_there(data_dir: Path) -> None:
    """Both get calls; when one is gone the other gets them all, without an error; and both again when it is back."""
    addresses = [f"unix:{data_dir}/{name}.sock" for name in "ab"]
    async with rpc.channel(addresses) as channel, served(data_dir, "a"):
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        assert await ask(stub, 4) == {"a": 4}
        async with served(data_dir, "b"):
            found = Counter[str]()
            while len(found) < 2:
                found += await ask(stub)
            assert {await read(stub) for _ in range(8)} == {"a", "b"}
        assert await ask(stub, 4, wait=False) == {"a": 4}
        assert {await read(stub) for _ in range(4)} == {"a"}
        async with served(data_dir, "b"):
            while "b" not in await ask(stub):
                pass


async def test_what_a_server_says_is_not_asked_again(data_dir: Path) -> None:
    """An error that a server answered is the answer; only a connection that is lost sends a call elsewhere."""
    addresses = [f"unix:{data_dir}/{name}.sock" for name in "ab"]
    async with rpc.channel(addresses) as channel, served(data_dir, "a") as a, served(data_dir, "b") as b:
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        a.busy = b.busy = True
        with pytest.raises(errors.Unavailable, match="Busy"):
            await ask(stub)


async def test_nobody_is_there(data_dir: Path) -> None:
    """Without any server a call fails as with one: at once, or at its deadline when it waits; one that comes is found."""
    addresses = [f"unix:{data_dir}/{name}.sock" for name in "ab"]
    async with rpc.channel(addresses) as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        with pytest.raises(errors.Unavailable):
            await ask(stub, wait=False)
        with pytest.raises((errors.Unavailable, errors.DeadlineExceeded)):
            await ask(stub, timeout=0.3)
        async with served(data_dir, "b"):
            assert await ask(stub) == {"b": 1}
        assert channel.get_state() is not grpc.ChannelConnectivity.SHUTDOWN

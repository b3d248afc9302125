"""Two schedulers and what operators say of engines: one is told, both do it, and each tells what both have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from postgres_fixture import PostgresServer
from scheduler_mesh import EchoEngine, Mesh, answer, eventually, lines_of
from scheduler_pair import Pair, pair

from haywain import rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """Give an empty database."""
    return postgres.database()


async def listed(running: Mesh) -> dict[str, pb.EngineStatus]:
    """List the engines by id, once every scheduler answers in time."""
    ask = lambda: rpc.call(running.stub.ListEngines, pb.ListEnginesRequest())  # noqa: E731
    listing = await eventually(ask, lambda told: not told.silent)
    return {status.engine.engine_id: status for status in listing.engines}


def own(running: Mesh) -> dict[str, int]:
    """Tell the states of the engines that a scheduler itself knows."""
    return {entry.engine.engine_id: entry.state for entry in running.scheduler.engines.entries()}


async def is_ready(running: Mesh, engine_id: str) -> None:
    """Wait until a scheduler itself has an engine."""
    await eventually(lambda: own(running).get(engine_id), lambda state: state == pb.EngineStatus.STATE_READY)


class BothStreams(EchoEngine):
    """An engine for several schedulers, that holds what it is sent until `release`, unless it answers at once."""

    def __init__(self, folder: Path, engine_id: str = "far") -> None:
        """It serves once it is told to."""
        super().__init__(folder, engine_id)
        self.holds = True
        self.waiting: list[tuple[asyncio.Queue[engine_pb2.RunResponse], engine_pb2.Sequence]] = []

    async def Run(self, requests: AsyncIterator[engine_pb2.RunRequest], context: Any) -> AsyncIterator[engine_pb2.RunResponse]:
        """Give each stream as many credits as there are slots."""
        out: asyncio.Queue[engine_pb2.RunResponse] = asyncio.Queue()
        out.put_nowait(engine_pb2.RunResponse(credits=self.description.slots))
        reading = asyncio.create_task(self._take(requests, out))
        try:
            while True:
                yield await out.get()
        finally:
            reading.cancel()

    async def _take(self, requests: AsyncIterator[engine_pb2.RunRequest], out: asyncio.Queue[engine_pb2.RunResponse]) -> None:
        async for request in requests:
            self.sequences += request.sequences
            self.waiting += [(out, sequence) for sequence in request.sequences]
            if not self.holds:
                self.release()

    def release(self, *_: Any) -> None:
        """Answer all that is held."""
        waiting, self.waiting = self.waiting, []
        for out, sequence in waiting:
            out.put_nowait(engine_pb2.RunResponse(results=[answer(sequence)], credits=1))


async def both_busy(both: Pair) -> tuple[BothStreams, str]:
    """Add an engine at one of two schedulers, and fill it from both; gives it and the batch."""
    far = BothStreams(both.a.settings.data)
    await far.serve()
    both.a.engines.append(far)
    both.ea.respond = both.eb.respond = lambda _: None
    await rpc.call(both.a.stub.AddEngine, pb.AddEngineRequest(address=far.address))
    for running in (both.a, both.b):
        await is_ready(running, "far")
    batch_id = await both.a.submit(lines_of(100), shard_rows=5)
    await eventually(lambda: listed(both.a), lambda found: found["far"].active == 16)  # 8 credits for each scheduler
    return far, batch_id


async def test_what_is_added_and_removed_at_one_is_so_at_both(settings: Settings, url: str) -> None:
    """Both ask it, rows of both run there, the list sums what they have; removed, it ends those, and both forget it."""
    async with pair(settings, url, message_rows=4) as both:
        far, batch_id = await both_busy(both)
        assert (await listed(both.b))["far"].active == 16
        local = await rpc.call(both.b.stub.ListEngines, pb.ListEnginesRequest(local=True))
        assert [(one.engine.engine_id, one.active) for one in local.engines if one.engine.engine_id != "eb"] == [("far", 8)]
        removed = (await rpc.call(both.b.stub.RemoveEngine, pb.RemoveEngineRequest(engine_id="far"))).engine
        assert (removed.active, removed.state) == (16, pb.EngineStatus.STATE_DRAINING)
        for running in (both.a, both.b):
            assert running.scheduler.engines.find("far").removing
        far.release()
        await eventually(lambda: listed(both.b), lambda found: set(found) == {"ea", "eb"})
        assert (set(own(both.a)), set(own(both.b))) == ({"ea"}, {"eb"})
        for engine in (both.ea, both.eb):
            engine.respond = answer
            engine.release()
        assert (await both.a.ended(batch_id)).counts.completed == 100
        assert len(far.sequences) == 16


async def test_a_drain_at_one_is_a_drain_at_both_when_it_is_answered(settings: Settings, url: str) -> None:
    """The answer tells what both have there, and neither sends it anything from then on."""
    async with pair(settings, url, message_rows=4) as both:
        far, batch_id = await both_busy(both)
        drained = (await rpc.call(both.b.stub.DrainEngine, pb.DrainEngineRequest(engine_id="far"))).engine
        assert (drained.active, drained.state) == (16, pb.EngineStatus.STATE_DRAINING)
        for running in (both.a, both.b):
            assert running.scheduler.engines.find("far").draining
        far.release()
        await eventually(lambda: listed(both.a), lambda found: found["far"].active == 0)
        for engine in (both.ea, both.eb):
            engine.respond = answer
            engine.release()
        assert (await both.a.ended(batch_id)).counts.completed == 100
        assert len(far.sequences) == 16


async def test_two_schedulers_keep_a_batch_to_one_digest(settings: Settings, url: str) -> None:
    """Both have two engines of different digests; whichever sends the first row decides for both."""
    async with pair(settings, url, pin_batch_to_digest=True, message_rows=4) as both:
        for number in (1, 2):
            engine = BothStreams(settings.data, f"far-{number}")
            engine.description.models[0].digest = f"sha256:{number}"
            engine.description.models[0].model = "pinned"
            engine.holds = False
            await engine.serve()
            both.a.engines.append(engine)
            await rpc.call(both.a.stub.AddEngine, pb.AddEngineRequest(address=engine.address))
            for running in (both.a, both.b):
                await is_ready(running, f"far-{number}")
        batch_ids = [await running.submit(lines_of(60, model="pinned"), shard_rows=5) for running in (both.a, both.b) * 2]
        for batch_id in batch_ids:
            assert (await both.a.ended(batch_id)).counts.completed == 60
            output, _ = await both.b.sealed(batch_id)
            assert len({line["response"]["x_provenance"]["model_digest"] for line in output}) == 1

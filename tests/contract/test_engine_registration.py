"""Registration against a scheduler that comes and goes, and what becomes of an engine whose backend dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine import service
from engine.backend import Emit
from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2 as pb
from haywain.engine.v1 import engine_pb2_grpc
from haywain.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from haywain.settings import EchoSettings, EngineSettings, Settings


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Takes registrations."""

    def __init__(self, heartbeat_ms: int) -> None:
        """Ask for a heartbeat this often."""
        self.heartbeat_ms = heartbeat_ms
        self.seen: asyncio.Queue[pb.Engine] = asyncio.Queue()
        self.refuse = False

    async def RegisterEngine(
        self, request: scheduler_pb2.RegisterEngineRequest, context: Any
    ) -> scheduler_pb2.RegisterEngineResponse:
        """Note the engine."""
        self.seen.put_nowait(request.engine)
        if self.refuse:
            raise errors.CapacityExceeded("no room for another engine")
        return scheduler_pb2.RegisterEngineResponse(heartbeat_ms=self.heartbeat_ms)

    async def next(self) -> pb.Engine:
        """Wait for a registration."""
        async with asyncio.timeout(5):
            return await self.seen.get()


@contextlib.asynccontextmanager
async def scheduler_at(settings: Settings, heartbeat_ms: int = 50) -> AsyncIterator[FakeScheduler]:
    """Serve a fake scheduler."""
    fake = FakeScheduler(heartbeat_ms)
    add = scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server
    async with rpc.serving(settings.address("scheduler"), [(fake, add, "haywain.scheduler.v1.SchedulerService")], grace_seconds=0):
        yield fake


def echo_settings(data_dir: Path, **echo: Any) -> Settings:
    """Make settings for an echo engine."""
    return Settings(data_dir=str(data_dir), engine=EngineSettings(backend="echo", echo=EchoSettings(**echo)))


async def test_an_engine_registers_at_once_and_at_every_heartbeat(data_dir: Path) -> None:
    """The scheduler learns the description with the address to dial, and keeps hearing of it as often as it asked."""
    settings = echo_settings(data_dir, slots=3)
    stopping = asyncio.Event()
    async with scheduler_at(settings, heartbeat_ms=100) as scheduler:
        serving = asyncio.create_task(service.serve(settings, stopping))
        first = await scheduler.next()
        began = time.monotonic()
        again = [await scheduler.next() for _ in range(3)]
        took = time.monotonic() - began
        stopping.set()
        await serving
        assert scheduler.seen.empty()
    assert (first.backend, first.slots, first.address) == ("echo", 3, settings.address("engine"))
    assert all(engine == first for engine in again)
    assert took >= 0.28


async def test_a_scheduler_that_comes_back_hears_of_the_engine_soon(data_dir: Path) -> None:
    """Started before its scheduler, and across the scheduler's restart and refusals, an engine registers within a second."""
    settings = echo_settings(data_dir)
    stopping = asyncio.Event()
    serving = asyncio.create_task(service.serve(settings, stopping))
    incarnations = set()
    for _ in range(2):
        async with rpc.channel(settings.address("engine")) as channel:
            await rpc.call(engine_pb2_grpc.EngineServiceStub(channel).DescribeEngine, pb.DescribeEngineRequest())
        async with scheduler_at(settings) as scheduler:
            began = time.monotonic()
            incarnations.add((await scheduler.next()).incarnation)
            assert time.monotonic() - began < 1
            scheduler.refuse = True
            await scheduler.next()
            await scheduler.next()
    stopping.set()
    await serving
    assert len(incarnations) == 1


async def test_an_engine_that_is_refused_says_why(data_dir: Path) -> None:
    """A scheduler that won't have it isn't taken for one that is away: the log has the reason, once."""
    settings = echo_settings(data_dir)
    stopping = asyncio.Event()
    with capture_logs() as said:
        async with scheduler_at(settings) as scheduler:
            scheduler.refuse = True
            serving = asyncio.create_task(service.serve(settings, stopping))
            for _ in range(3):
                await scheduler.next()
            stopping.set()
            await serving
    told = [line for line in said if line["event"] == "engine.not_registered"]
    assert len(told) == 1
    assert "no room for another engine" in told[0]["error"]


async def test_each_start_is_a_new_incarnation(data_dir: Path) -> None:
    """A restarted engine keeps its id and has another incarnation."""
    settings = echo_settings(data_dir)
    seen = []
    async with scheduler_at(settings) as scheduler:
        for _ in range(2):
            stopping = asyncio.Event()
            serving = asyncio.create_task(service.serve(settings, stopping))
            seen.append(await scheduler.next())
            stopping.set()
            await serving
            while not scheduler.seen.empty():
                scheduler.seen.get_nowait()
    assert seen[0].engine_id == seen[1].engine_id
    assert seen[0].incarnation != seen[1].incarnation


class Mortal:
    """A backend that takes a sequence and then says that it died."""

    name = "mortal"
    version = "1"
    slots = 1

    def __init__(self, how: str) -> None:
        """`how`: says, raises."""
        self.how = how
        self.closed = False

    async def start(self, emit: Emit) -> list[pb.ModelDescription]:
        """Describe a model."""
        self.emit = emit
        return [pb.ModelDescription(model="m", endpoints=["/v1/chat/completions"])]

    def submit(self, sequences: Sequence[pb.Sequence]) -> None:
        """Die."""
        if self.how == "raises":
            raise RuntimeError("a defect")
        self.emit.died("the device fell off")

    def cancel(self, sequence_ids: Sequence[int]) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Note it."""
        self.closed = True


@pytest.mark.parametrize("how", ["says", "raises"])
async def test_a_dead_backend_breaks_its_streams_and_ends_the_process(data_dir: Path, how: str) -> None:
    """Sequences get no result, so that they run elsewhere; `serve` raises, so that the process exits non-zero."""
    settings = echo_settings(data_dir)
    backend = Mortal(how)
    serving = asyncio.create_task(service.run(backend, settings, asyncio.Event()))
    async with rpc.channel(settings.address("engine")) as channel:
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        await rpc.call(stub.DescribeEngine, pb.DescribeEngineRequest())
        calling = stub.Run()
        await calling.read()
        sequence = pb.Sequence(sequence_id=1, model="m", endpoint="/v1/chat/completions")
        await calling.write(pb.RunRequest(sequences=[sequence]))
        with pytest.raises(rpc.grpc.aio.AioRpcError) as caught:
            await calling.read()
        with pytest.raises(errors.HaywainError, match="died"):
            await serving
    assert caught.value.code() is rpc.grpc.StatusCode.UNAVAILABLE
    assert backend.closed


async def test_stopping_while_the_backend_starts(data_dir: Path) -> None:
    """A stop doesn't wait for a slow start."""

    class Slow(Mortal):
        async def start(self, emit: Emit) -> list[pb.ModelDescription]:
            """Never finish."""
            await asyncio.Event().wait()
            return []

    backend = Slow("")
    stopping = asyncio.Event()
    running = asyncio.create_task(service.run(backend, echo_settings(data_dir), stopping))
    await asyncio.sleep(0)
    stopping.set()
    async with asyncio.timeout(5):
        await running
    assert backend.closed


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (EngineSettings(backend="nope"), "expected one of: echo"),
        (EngineSettings(backend="echo", echo=EchoSettings(slots=0)), "slots is 0"),
        (EngineSettings(backend="echo", echo=EchoSettings(run_log="/no/such/folder/log")), "run_log"),
    ],
)
async def test_settings_that_can_not_work_are_told_in_one_line(data_dir: Path, settings: EngineSettings, says: str) -> None:
    """`serve` raises SettingsError with the setting's name."""
    with pytest.raises(errors.SettingsError, match=says) as caught:
        await service.serve(Settings(data_dir=str(data_dir), engine=settings), asyncio.Event())
    assert "\n" not in caught.value.message


SERVE = """
import sys
from haywain import rpc
from haywain.settings import load
from engine import service
settings = load(sets=sys.argv[1:])
rpc.run(lambda stopping: service.serve(settings, stopping))
"""


async def test_a_row_that_kills_the_process_is_in_the_run_log(data_dir: Path) -> None:
    """`die_containing` ends the process at once; every row that ran, this one too, is a line in the log before its answer."""
    log = data_dir / "run.log"
    sets = [f"data_dir={data_dir}", "engine.backend=echo", "engine.echo.die_containing=poison", f"engine.echo.run_log={log}"]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVE, *sets, stderr=asyncio.subprocess.DEVNULL)
    settings = echo_settings(data_dir)

    def row(number: int, text: str) -> pb.Sequence:
        body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": text}]}).encode()
        return pb.Sequence(sequence_id=number, model="echo", endpoint="/v1/chat/completions", request=body, attempt=number)

    async with rpc.channel(settings.address("engine")) as channel:
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        await rpc.call(stub.DescribeEngine, pb.DescribeEngineRequest(), timeout=30)
        calling = stub.Run()
        await calling.read()
        await calling.write(pb.RunRequest(sequences=[row(1, "fine")]))
        answer = await calling.read()
        assert answer.results[0].status_code == 200
        assert len(log.read_text().splitlines()) == 1
        await calling.write(pb.RunRequest(sequences=[row(2, "poison")]))
        with pytest.raises(rpc.grpc.aio.AioRpcError):
            await calling.read()
    assert await process.wait() == 70
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [attempt for _, attempt in lines] == ["1", "2"]
    assert len({digest for digest, _ in lines}) == 2

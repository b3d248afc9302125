"""Schedulers that stand still: what is asked of all of them says which one it lacks."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from haywain import engines, errors, rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.scheduler.v1 import scheduler_pb2_grpc
from haywain.settings import Settings
from services.scheduler.others import Others


class Silent(scheduler_pb2_grpc.SchedulerServiceServicer):
    """A scheduler that hears of drains, but doesn't say what it has at engines."""

    async def DrainEngine(self, request: pb.DrainEngineRequest, context: Any) -> pb.DrainEngineResponse:
        """Say that nothing runs."""
        return pb.DrainEngineResponse(engine=pb.EngineStatus(engine=engine_pb2.Engine(engine_id=request.engine_id)))

    async def ListEngines(self, request: pb.ListEnginesRequest, context: Any) -> pb.ListEnginesResponse:
        """Say what a scheduler says whose neighbour stands still; be that one, when asked by another."""
        if request.local:
            await asyncio.Event().wait()
        return pb.ListEnginesResponse(silent=["scheduler-2"])


async def test_a_scheduler_that_stands_still_is_named(settings: Settings) -> None:
    """Whoever takes a connection and says nothing may have something at engines; where nobody listens, nothing is left."""
    address = f"unix:{settings.run_dir}/other.sock"
    settings.run_dir.mkdir(exist_ok=True)
    silent = Silent()
    service = (silent, scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, "haywain.scheduler.v1.SchedulerService")
    with socket.socket(socket.AF_UNIX) as mute, socket.socket(socket.AF_UNIX) as killed:
        mute.bind(f"{settings.run_dir}/mute.sock")
        mute.listen(64)  # the kernel does so for a process that is stopped
        killed.bind(f"{settings.run_dir}/killed.sock")
        killed.close()  # the file stays
        names = {"scheduler-2": "other", "scheduler-3": "away", "scheduler-4": "mute", "scheduler-5": "killed"}
        others = Others({name: f"unix:{settings.run_dir}/{file}.sock" for name, file in names.items()})
        async with rpc.serving(address, [service], grace_seconds=0):
            assert await others.ask("ListEngines", pb.ListEnginesRequest(local=True)) == ([], ["scheduler-2", "scheduler-4"])
            heard, quiet = await others.ask("DrainEngine", pb.DrainEngineRequest(engine_id="e0"))
            assert ([answer.engine.engine.engine_id for answer in heard], quiet) == (["e0"], ["scheduler-4"])
        await others.close()


async def test_a_drain_is_not_called_done_while_a_scheduler_is_silent(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command fails with the name of the one that didn't answer; the list names it below the table."""
    address = f"unix:{settings.run_dir}/other.sock"
    settings.run_dir.mkdir(exist_ok=True)
    service = (Silent(), scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, "haywain.scheduler.v1.SchedulerService")
    async with rpc.serving(address, [service], grace_seconds=0):
        with pytest.raises(errors.Unavailable, match="scheduler-2 did not answer: what it has at 'e0' isn't known"):
            await asyncio.to_thread(engines.command, address, "drain", "e0", 0.0)
        assert await asyncio.to_thread(engines.command, address, "list") == 0
        assert capsys.readouterr().out.endswith("scheduler-2 did not answer: what it has at engines isn't counted\n")

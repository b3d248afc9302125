"""The llama.cpp backend in a whole engine process: over gRPC by credit, and gone without a trace when it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import tiny_gguf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from llamacpp_running import decoders

from engine import service
from haywain import rpc
from haywain.engine.v1 import engine_pb2 as pb
from haywain.engine.v1 import engine_pb2_grpc
from haywain.settings import EngineSettings, LlamaCppSettings, Settings, dump

CHAT = "/v1/chat/completions"


@pytest.fixture
def chosen(data_dir: Path) -> Settings:
    """Give settings of an engine with two decoders of two slots."""
    llamacpp = LlamaCppSettings(model_path=str(tiny_gguf.tiny_gguf()), workers=2, slots=2)
    return Settings(data_dir=str(data_dir), engine=EngineSettings(llamacpp=llamacpp))


def sequence(local_id: int) -> pb.Sequence:
    """Make a chat of a few tokens."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": f"row {local_id}"}], "max_tokens": 6}
    return pb.Sequence(sequence_id=local_id, model="tiny", endpoint=CHAT, request=json.dumps(body).encode(), lane=pb.LANE_STANDARD)


async def described(stub: engine_pb2_grpc.EngineServiceStub) -> pb.Engine:
    """Ask what is served, until somebody answers."""
    request = pb.DescribeEngineRequest()
    answer: pb.DescribeEngineResponse = await stub.DescribeEngine(request, timeout=60, wait_for_ready=True)
    return answer.engine


async def test_rows_run_by_credit_through_the_engine_service(chosen: Settings) -> None:
    """Sixty rows sent as credits come are all answered, once each, by an engine that says what it serves."""
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(service.serve(chosen, stopping))
        async with rpc.channel(chosen.address("engine")) as channel:
            stub = engine_pb2_grpc.EngineServiceStub(channel)
            engine = await described(stub)
            assert (engine.backend, engine.slots) == ("llamacpp", 4)
            assert engine.version.startswith("llama-cpp-python")
            assert engine.models[0].model == "tiny"
            calling = stub.Run()
            sent, results = 0, dict[int, int]()
            async with asyncio.timeout(60):
                while len(results) < 60:
                    message = await calling.read()
                    results |= {result.sequence_id: result.status_code for result in message.results}
                    more = range(sent + 1, min(60, sent + message.credits) + 1)
                    sent = max(more, default=sent)
                    if more:
                        await calling.write(pb.RunRequest(sequences=[sequence(local_id) for local_id in more]))
            assert results == dict.fromkeys(range(1, 61), 200)
            await calling.done_writing()
        stopping.set()
    assert not decoders()


async def test_the_engine_answers_while_its_decoders_do_not(chosen: Settings) -> None:
    """With every decoder in the middle of a step that doesn't end, health is told, and what waits is cancelled; later all ends."""
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(service.serve(chosen, stopping))
        async with rpc.channel(chosen.address("engine")) as channel:
            await described(engine_pb2_grpc.EngineServiceStub(channel))
            calling = engine_pb2_grpc.EngineServiceStub(channel).Run()
            assert (await calling.read()).credits == 8
            stopped = decoders()
            for decoder in stopped:
                assert str(tiny_gguf.tiny_gguf()) in {mapped.path for mapped in decoder.memory_maps()}  # so they share its weights
                decoder.suspend()
            # Each decoder has two slots and takes one more, so two rows wait.
            await calling.write(pb.RunRequest(sequences=[sequence(local_id) for local_id in range(1, 9)]))
            await calling.write(pb.RunRequest(cancel_sequence_ids=[8]))
            results = dict[int, int]()
            async with asyncio.timeout(60):
                while 8 not in results:
                    results |= {result.sequence_id: result.status_code for result in (await calling.read()).results}
                assert results == {8: 499}
                health: Any = health_pb2_grpc.HealthStub(channel)
                answer = await health.Check(health_pb2.HealthCheckRequest(service="haywain.engine.v1.EngineService"))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
                for decoder in stopped:
                    decoder.resume()
                while len(results) < 8:
                    results |= {result.sequence_id: result.status_code for result in (await calling.read()).results}
            assert results == {8: 499} | dict.fromkeys(range(1, 8), 200)
            await calling.done_writing()
        stopping.set()


async def test_killing_the_engine_leaves_no_decoder(chosen: Settings, data_dir: Path) -> None:
    """After kill -9 of the engine process its decoders are gone as well."""
    resolved = data_dir / "settings.toml"
    resolved.write_text(dump(chosen), "utf-8")
    process = await asyncio.create_subprocess_exec(*(sys.executable, "-m", "haywain", "engine", "--resolved", str(resolved)))
    try:
        async with rpc.channel(chosen.address("engine")) as channel:
            await described(engine_pb2_grpc.EngineServiceStub(channel))
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) == 2
    finally:
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, family, timeout=10)
    assert not alive

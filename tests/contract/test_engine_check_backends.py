"""Our backends keep the rules that `haywain engines check` checks. Triton and the real model: tests/e2e/test_swap.py."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import tiny_gguf
from engine_running import engine_with
from minilm import minilm_gguf

from engine import service
from engine.check import suite
from haywain import rpc
from haywain.engine.v1 import engine_pb2 as pb
from haywain.engine.v1 import engine_pb2_grpc
from haywain.settings import EngineSettings, LlamaCppSettings, Settings


def failures(report: suite.Report) -> list[tuple[str, str, str]]:
    """What failed."""
    return [(one.rule, one.expected, one.seen) for one in report.rules if one.outcome == "fail"]


def skipped(report: suite.Report) -> set[str]:
    """What couldn't be seen."""
    return {one.rule for one in report.rules if one.outcome == "skip"}


async def test_echo_that_answers_at_once_keeps_the_rules(data_dir: Path) -> None:
    """An engine whose slots are never full shows no overload and no lanes, and keeps all other rules."""
    async with engine_with(data_dir):
        report = await suite.check(f"unix:{data_dir}/run/engine.sock")
    assert failures(report) == []
    assert skipped(report) <= {"overload", "lanes", "restart"}


async def checked(data_dir: Path, llamacpp: LlamaCppSettings) -> suite.Report:
    """Check an engine with a llama.cpp backend."""
    chosen = Settings(data_dir=str(data_dir), engine=EngineSettings(llamacpp=llamacpp))
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(service.serve(chosen, stopping))
        async with rpc.channel(chosen.address("engine")) as channel:
            await rpc.call(engine_pb2_grpc.EngineServiceStub(channel).DescribeEngine, pb.DescribeEngineRequest(), timeout=60)
        report = await suite.check(chosen.address("engine"), seconds=120)
        stopping.set()
    return report


async def test_llamacpp_keeps_the_rules(data_dir: Path) -> None:
    """llama.cpp with a model that writes broken UTF-8 keeps the rules, whatever it says."""
    report = await checked(data_dir, LlamaCppSettings(model_path=str(tiny_gguf.tiny_gguf()), workers=1, slots=3))
    assert failures(report) == []
    assert skipped(report) <= {"overload", "lanes", "restart"}


@pytest.mark.timeout(300)
async def test_a_model_that_embeds_keeps_the_rules(data_dir: Path) -> None:
    """Of a model that only embeds, the rules about text and pieces can't be seen, and it keeps all others."""
    report = await checked(data_dir, LlamaCppSettings(model_path=str(minilm_gguf()), workers=1))
    assert report.endpoint == "/v1/embeddings"
    assert failures(report) == []
    assert skipped(report) <= {"overload", "lanes", "restart", "stream_order", "stream_text"}

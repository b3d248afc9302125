"""examples/parrot.py is an engine that a stranger could have written: it keeps the rules, and a mesh's own code isn't in it."""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.check import suite
from haywain import rpc
from haywain.engine.v1 import engine_pb2 as pb
from haywain.engine.v1 import engine_pb2_grpc

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "parrot.py"


class Example:
    """The example's process."""

    def __init__(self, address: str) -> None:
        """Not started yet."""
        self.address = address
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it; it serves soon."""
        self.process = await asyncio.create_subprocess_exec(sys.executable, str(EXAMPLE), self.address)

    async def stop(self) -> None:
        """Kill it."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def restart(self) -> None:
        """Kill it, and start it anew."""
        await self.stop()
        await self.start()


@pytest.fixture
async def example(data_dir: Path) -> AsyncIterator[Example]:
    """Give it, running."""
    running = Example(f"unix:{data_dir}/parrot.sock")
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def test_the_example_keeps_the_rules(example: Example) -> None:
    """Every rule passes, killed and started anew, but for those about streamed answers, which it doesn't claim to have."""
    async with rpc.channel(example.address) as channel:
        await rpc.call(engine_pb2_grpc.EngineServiceStub(channel).DescribeEngine, pb.DescribeEngineRequest(), timeout=60)
    report = await suite.check(example.address, restart=example.restart, seconds=120)
    assert [(one.rule, one.expected, one.seen) for one in report.rules if one.outcome == "fail"] == []
    assert {one.rule for one in report.rules if one.outcome == "skip"} <= {"stream_order", "stream_text", "overload", "lanes"}


def test_the_example_uses_stubs_only() -> None:
    """What it imports of Haywain is generated from the protos."""
    tree = ast.parse(EXAMPLE.read_text("utf-8"))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {module for module in modules if module.split(".")[0] in {"haywain", "engine", "services", "gateway"}}
    assert ours == {"haywain.engine.v1", "haywain.scheduler.v1"}

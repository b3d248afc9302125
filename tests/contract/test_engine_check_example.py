"""examples/parrot.py is an engine that a stranger could have written: it keeps the rules, and a mesh's own code isn't in it."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from haywain import rpc
from haywain.__main__ import main
from haywain.engine.v1 import engine_pb2 as pb
from haywain.engine.v1 import engine_pb2_grpc

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "parrot.py"


async def test_the_example_keeps_the_rules(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`haywain engine check` finds it good, killed and started anew by `--restart`; it doesn't claim to stream."""
    address, second = f"unix:{data_dir}/parrot.sock", data_dir / "second.pid"
    example = await asyncio.create_subprocess_exec(sys.executable, str(EXAMPLE), address)
    again = f"kill -9 {example.pid}; '{sys.executable}' '{EXAMPLE}' {address} & echo $! > {second}"
    try:
        async with rpc.channel(address) as channel:
            await rpc.call(engine_pb2_grpc.EngineServiceStub(channel).DescribeEngine, pb.DescribeEngineRequest(), timeout=60)
        command = ["engine", "check", address, "--json", "--seconds", "120", "--restart", again]
        status = await asyncio.to_thread(main, command)
    finally:
        if example.returncode is None:
            example.kill()
        await example.wait()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(second.read_text()), signal.SIGKILL)
    report = json.loads(next(line for line in capsys.readouterr().out.splitlines() if line.startswith("{")))
    assert [one for one in report["rules"] if one["outcome"] == "fail"] == []
    skipped = {one["rule"] for one in report["rules"] if one["outcome"] == "skip"}
    assert skipped <= {"stream_order", "stream_text", "overload", "lanes"}
    assert status == 0


def test_the_example_uses_stubs_only() -> None:
    """What it imports of Haywain is generated from the protos."""
    tree = ast.parse(EXAMPLE.read_text("utf-8"))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {module for module in modules if module.split(".")[0] in {"haywain", "engine", "services", "gateway"}}
    assert ours == {"haywain.engine.v1", "haywain.scheduler.v1"}

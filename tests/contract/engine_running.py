"""An engine with the echo backend in this process, and a caller on its Run stream, as a scheduler has one."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from engine import service
from haywain import rpc
from haywain.engine.v1 import engine_pb2 as pb
from haywain.engine.v1 import engine_pb2_grpc
from haywain.settings import EchoSettings, EngineSettings, Settings

__all__ = ["CHAT", "Caller", "Running", "engine_with", "sequence"]

CHAT = "/v1/chat/completions"


def sequence(local_id: int, text: str = "a b", **fields: Any) -> pb.Sequence:
    """Make a chat sequence."""
    body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": text}], **fields.pop("body", {})})
    known = {"model": "echo", "endpoint": CHAT, "lane": pb.LANE_STANDARD, "attempt": 1, **fields}
    return pb.Sequence(sequence_id=local_id, request=body.encode(), **known)


class Caller:
    """One Run stream, as a scheduler has it; keeps every message."""

    def __init__(self, stub: engine_pb2_grpc.EngineServiceStub) -> None:
        """Open the stream."""
        self._requests: asyncio.Queue[pb.RunRequest | None] = asyncio.Queue()
        self.calling: Any = stub.Run(self._read())
        self.messages: list[pb.RunResponse] = []
        self.credits = 0
        self.results: dict[int, pb.SequenceResult] = {}
        self.order: list[int] = []

    async def _read(self) -> AsyncIterator[pb.RunRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    def send(self, *sequences: pb.Sequence, cancel: tuple[int, ...] = ()) -> None:
        """Send one message."""
        self._requests.put_nowait(pb.RunRequest(sequences=sequences, cancel_sequence_ids=cancel))

    def close(self) -> None:
        """Close the caller's side."""
        self._requests.put_nowait(None)

    async def next(self) -> pb.RunResponse | None:
        """Read one message, None at the end of the stream."""
        message = await self.calling.read()
        if not isinstance(message, pb.RunResponse):
            return None
        self.messages.append(message)
        self.credits += message.credits
        for result in message.results:
            assert result.sequence_id not in self.results, "two results for one sequence"
            self.results[result.sequence_id] = result
            self.order.append(result.sequence_id)
        return message

    async def until(self, done: Callable[[], bool]) -> None:
        """Read until a condition holds."""
        async with asyncio.timeout(10):
            while not done():
                assert await self.next() is not None, "the stream ended early"

    async def ended(self, *local_ids: int) -> list[pb.SequenceResult]:
        """Read until all of these have results."""
        await self.until(lambda: all(local_id in self.results for local_id in local_ids))
        return [self.results[local_id] for local_id in local_ids]


class Running:
    """An engine process's insides, in this process."""

    def __init__(self, stub: engine_pb2_grpc.EngineServiceStub, stopping: asyncio.Event, serving: asyncio.Task[None]) -> None:
        """Made by `engine_with`."""
        self.stub = stub
        self.stopping = stopping
        self.serving = serving

    async def open(self) -> Caller:
        """Open a stream and read its first credits."""
        caller = Caller(self.stub)
        await caller.next()
        return caller


@contextlib.asynccontextmanager
async def engine_with(data_dir: Path, **echo: Any) -> AsyncIterator[Running]:
    """Run `serve` with these echo settings."""
    settings = Settings(data_dir=str(data_dir), engine=EngineSettings(backend="echo", echo=EchoSettings(**echo)))
    stopping = asyncio.Event()
    serving = asyncio.create_task(service.serve(settings, stopping))
    async with rpc.channel(settings.address("engine")) as channel:
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        await rpc.call(stub.DescribeEngine, pb.DescribeEngineRequest())
        try:
            yield Running(stub, stopping, serving)
        finally:
            stopping.set()
            await serving

"""An engine that breaks one rule: a real one with the echo backend, and between it and its callers one who changes what is said."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
from engine_running import engine_with
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from haywain import rpc
from haywain.engine.v1 import engine_pb2 as pb
from haywain.engine.v1 import engine_pb2_grpc

__all__ = ["Liar", "Lying", "changed", "lying"]


class Liar(engine_pb2_grpc.EngineServiceServicer):
    """Passes everything on, and tells no lie yet: see tests/contract/engine_lies.py."""

    def __init__(self, stub: Any) -> None:
        """`stub` is the real engine's."""
        self.stub = stub
        self.health = health_pb2.HealthCheckResponse.SERVING
        self.kept: list[Any] = []
        """calls that are never ended, for a lie"""
        self.tasks: set[asyncio.Task[Any]] = set()
        self.starts = 1
        self.life: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """done when this incarnation ends"""

    def describe(self, engine: pb.Engine) -> None:
        """Change the description."""

    def ask(self, request: pb.RunRequest) -> None:
        """Change what the engine is asked."""

    def say(self, response: pb.RunResponse) -> Iterator[pb.RunResponse]:
        """Change what it says."""
        yield response

    async def DescribeEngine(self, request: pb.DescribeEngineRequest, context: Any) -> pb.DescribeEngineResponse:
        """Describe the real engine."""
        answer: pb.DescribeEngineResponse = await self.stub.DescribeEngine(request)
        answer.engine.incarnation += f"-{self.starts}"
        self.describe(answer.engine)
        return answer

    def broke(self, call: Any) -> None:
        """Notice that the caller's stream broke."""
        call.cancel()

    async def Run(self, requests: AsyncIterator[pb.RunRequest], context: Any) -> AsyncIterator[pb.RunResponse]:
        """Pass the stream on."""
        call = self.stub.Run()
        asking = asyncio.create_task(self._ask(requests, call))
        try:
            # Not awaited: grpc.aio cancels the call whose read or write is cancelled, and that is for `broke` to decide.
            while True:
                reading = self._kept(call.read())
                await asyncio.wait({reading, self.life}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "Stopped.")
                if not isinstance(response := reading.result(), pb.RunResponse):
                    break
                for message in self.say(response):
                    yield message
        finally:
            asking.cancel()
            if not call.done():
                self.broke(call)

    def _kept(self, doing: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(doing)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _ask(self, requests: AsyncIterator[pb.RunRequest], call: Any) -> None:
        async for request in requests:
            self.ask(request)
            await call.write(request)
        await asyncio.shield(self._kept(call.done_writing()))


class Lying:
    """A liar that is served."""

    def __init__(self, liar: Liar, address: str) -> None:
        """At an address."""
        self.liar = liar
        self.address = address

    def drop(self) -> None:
        """Let go of what a lie kept."""
        for call in self.liar.kept:
            call.cancel()
        self.liar.kept.clear()

    async def restart(self) -> None:
        """Be another incarnation: all streams end. The socket stays, which no test has to wait for."""
        self.drop()
        self.liar.starts += 1
        self.liar.life.set_result(None)
        self.liar.life = asyncio.get_running_loop().create_future()


@contextlib.asynccontextmanager
async def lying(kind: type[Liar], **echo: Any) -> AsyncIterator[Lying]:
    """Serve a liar."""
    folder = Path(tempfile.mkdtemp(prefix="hw", dir="/tmp"))
    settings = {"slots": 3, "ms_per_token": 30, "hang_containing": "broken_stream", **echo}
    try:
        async with engine_with(folder, **settings) as running:
            liar = kind(running.stub)
            server = grpc.aio.server(options=rpc.OPTIONS)
            engine_pb2_grpc.add_EngineServiceServicer_to_server(liar, server)
            checked = health.HealthServicer()
            checked.set("", liar.health)
            health_pb2_grpc.add_HealthServicer_to_server(checked, server)
            served = Lying(liar, f"unix:{folder}/run/liar.sock")
            server.add_insecure_port(served.address)
            await server.start()
            try:
                yield served
            finally:
                served.drop()
                await server.stop(0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def changed(body: bytes, change: Any) -> bytes:
    """Change a JSON body in place."""
    value = json.loads(body)
    change(value)
    return json.dumps(value).encode()

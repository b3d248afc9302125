"""An upstream backend that runs in a test, and those who wait for its results."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from upstream_server import Request, Upstream

from engine.upstream.backend import UpstreamBackend, create
from haywain.engine.v1 import engine_pb2 as pb
from haywain.settings import EngineSettings, UpstreamSettings

__all__ = ["CHAT", "Results", "Running", "scripted", "started"]

CHAT = "/v1/chat/completions"


class Results:
    """An Emit."""

    def __init__(self) -> None:
        self.deltas: list[bytes] = []
        self._ends: dict[int, asyncio.Future[pb.SequenceResult]] = {}

    def of(self, sequence_id: int) -> asyncio.Future[pb.SequenceResult]:
        """Give what will hold a sequence's end."""
        return self._ends.setdefault(sequence_id, asyncio.get_running_loop().create_future())

    def delta(self, sequence_id: int, body: bytes) -> None:
        """Keep a chunk."""
        self.deltas.append(body)

    def result(self, result: pb.SequenceResult) -> None:
        """Keep an end; a second one is an error."""
        self.of(result.sequence_id).set_result(result)

    def died(self, reason: str) -> None:
        """Never."""
        raise AssertionError(reason)


class Running:
    """A started backend."""

    def __init__(self, backend: UpstreamBackend, results: Results, models: list[pb.ModelDescription]) -> None:
        self.backend = backend
        self.results = results
        self.models = models
        self._last = 0

    def begin(self, text: str = "hello", *, lane: pb.Lane = pb.LANE_STANDARD, endpoint: str = CHAT, **fields: Any) -> int:
        """Submit a chat; its id."""
        self._last += 1
        body = {"model": "m", "messages": [{"role": "user", "content": text}]} | fields
        sequence = pb.Sequence(sequence_id=self._last, model="m", endpoint=endpoint, lane=lane)
        sequence.request = json.dumps(body).encode()
        sequence.stream = bool(fields.get("stream"))
        self.backend.submit([sequence])
        return self._last

    async def chat(self, text: str = "hello", **given: Any) -> pb.SequenceResult:
        """Submit a chat and wait for its end."""
        return await asyncio.wait_for(self.results.of(self.begin(text, **given)), 20)


@contextlib.asynccontextmanager
async def started(url: str, **settings: Any) -> AsyncIterator[Running]:
    """Start a backend."""
    backend = create(EngineSettings(backend="upstream", upstream=UpstreamSettings(url=url, **settings)))
    results = Results()
    try:
        yield Running(backend, results, await backend.start(results))
    finally:
        await backend.close()


def scripted(server: Upstream, *replies: bytes | None) -> None:
    """Answer with these, one after the other, the last again and again."""
    left = list(replies)

    async def answer(request: Request) -> bytes | None:
        return left.pop(0) if len(left) > 1 else left[0]

    server.answer = answer

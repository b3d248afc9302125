"""A Triton backend that runs in a test, and those who wait for its results."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from triton_fixture import TEMPLATE, TritonServer

from engine.triton.backend import TritonBackend
from haywain.engine.v1 import engine_pb2 as pb
from haywain.settings import TritonSettings

__all__ = ["CHAT", "COMPLETIONS", "EMBEDDINGS", "Results", "Running", "seen", "settings", "started"]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"


class Results:
    """An Emit that hands results to those who wait for them."""

    def __init__(self) -> None:
        self._results: dict[int, asyncio.Future[pb.SequenceResult]] = {}
        self.deltas: dict[int, list[dict[str, Any]]] = {}
        self.spoke = asyncio.Event()
        self.death: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def of(self, sequence_id: int) -> asyncio.Future[pb.SequenceResult]:
        """Give what will hold a sequence's result."""
        return self._results.setdefault(sequence_id, asyncio.get_running_loop().create_future())

    def delta(self, sequence_id: int, body: bytes) -> None:
        """Keep a chunk."""
        self.deltas.setdefault(sequence_id, []).append(json.loads(body))
        self.spoke.set()

    def result(self, result: pb.SequenceResult) -> None:
        """Keep the end; a second one is an error."""
        self.of(result.sequence_id).set_result(result)

    def died(self, reason: str) -> None:
        """Keep the reason."""
        self.death.set_result(reason)


class Running:
    """A started backend."""

    def __init__(self, backend: TritonBackend, results: Results, model: pb.ModelDescription) -> None:
        self.backend = backend
        self.results = results
        self.model = model
        self._numbers = itertools.count(1)

    def submit(self, endpoint: str, lane: int = pb.LANE_STANDARD, **body: Any) -> int:
        """Send a request; its id."""
        number = next(self._numbers)
        request = json.dumps({"model": self.model.model, **body}).encode()
        stream = bool(body.get("stream"))
        sequence = pb.Sequence(sequence_id=number, model=self.model.model, endpoint=endpoint, request=request, stream=stream)
        sequence.lane = lane  # type: ignore[assignment]
        self.backend.submit([sequence])
        return number

    async def end(self, number: int, seconds: float = 30.0) -> pb.SequenceResult:
        """Wait for a result."""
        async with asyncio.timeout(seconds):
            return await self.results.of(number)

    async def ask(self, endpoint: str, **body: Any) -> dict[str, Any]:
        """Send a request and wait for its body, which must be good."""
        result = await self.end(self.submit(endpoint, **body))
        assert result.status_code == 200, result
        return dict(json.loads(result.body))

    async def away(self) -> None:
        """Wait until it is known that the model is away: someone who waits for an answer is told."""
        async with asyncio.timeout(60):
            while (result := await self.end(self.submit(COMPLETIONS, pb.LANE_INTERACTIVE, prompt="anybody"))).status_code == 200:
                continue
        assert (result.status_code, result.error.code) == (503, "engine_unavailable"), result

    async def refused(self, endpoint: str, **body: Any) -> pb.SequenceResult:
        """Send a request and wait for its error."""
        result = await self.end(self.submit(endpoint, **body))
        assert result.status_code != 200, result
        return result


def settings(triton: TritonServer, model: str, folder: Path | None = None, **more: Any) -> TritonSettings:
    """Give settings for a model of the server; with a folder, its chat template is there."""
    if folder is not None:
        (folder / "template.jinja").write_text(TEMPLATE, "utf-8")
        more.setdefault("template", str(folder / "template.jinja"))
    return TritonSettings(url=triton.url, model=model, **more)


@contextlib.asynccontextmanager
async def started(chosen: TritonSettings) -> AsyncIterator[Running]:
    """Run a backend."""
    backend = TritonBackend(chosen)
    results = Results()
    try:
        async with asyncio.timeout(60):
            (model,) = await backend.start(results)
        yield Running(backend, results, model)
    finally:
        await backend.close()


async def seen(triton: TritonServer, containing: str, times: int = 1, seconds: float = 20.0) -> dict[str, Any]:
    """Wait until the model has logged a request so many times, and give what it was asked."""
    async with asyncio.timeout(seconds):
        while len(found := triton.requests(containing)) < times:  # noqa: ASYNC110 - it is another process's file
            await asyncio.sleep(0.01)
    return found[0]

"""A llama.cpp backend that runs in a test, and those who wait for its results."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import tiny_gguf
from family import below

from engine.llamacpp.backend import LlamaCppBackend, create
from haywain.engine.v1 import engine_pb2 as pb
from haywain.settings import EngineSettings, LlamaCppSettings

__all__ = ["ENDPOINT", "Results", "Running", "decoders", "settings", "started"]

ENDPOINT = "/v1/chat/completions"


def decoders() -> list[psutil.Process]:
    """Find the decoder processes of this process; tests may have other children, a database for one."""
    return below(psutil.Process(), "engine.llamacpp.decoder")


class Results:
    """An Emit that hands results to those who wait for them."""

    def __init__(self) -> None:
        self._results: dict[int, asyncio.Future[pb.SequenceResult]] = {}
        self.deltas: dict[int, list[dict[str, Any]]] = {}
        self.began = asyncio.Event()
        self.death: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def of(self, sequence_id: int) -> asyncio.Future[pb.SequenceResult]:
        """Give what will hold a sequence's result."""
        return self._results.setdefault(sequence_id, asyncio.get_running_loop().create_future())

    def delta(self, sequence_id: int, body: bytes) -> None:
        """Keep a chunk."""
        chunk = json.loads(body)
        self.deltas.setdefault(sequence_id, []).append(chunk)
        if any(choice.get("delta", choice).get("content") for choice in chunk["choices"]):
            self.began.set()

    def result(self, result: pb.SequenceResult) -> None:
        """Keep the end; a second one is an error."""
        self.of(result.sequence_id).set_result(result)

    def died(self, reason: str) -> None:
        """Keep the reason."""
        self.death.set_result(reason)


class Running:
    """A started backend and its results."""

    def __init__(self, backend: LlamaCppBackend, results: Results, models: list[pb.ModelDescription]) -> None:
        self.backend = backend
        self.results = results
        self.models = models
        self._ids = itertools.count(1)

    def begin(
        self,
        content: Any = "hello",
        *,
        lane: pb.Lane = pb.LANE_STANDARD,
        endpoint: str = ENDPOINT,
        asked: Mapping[str, bool] | None = None,
        **fields: Any,
    ) -> int:
        """Submit a request, a chat of one message by default; fields that are `...` are left out. Give the sequence's id.

        `asked` is what its batch asks for: deterministic, pack.
        """
        sequence_id = next(self._ids)
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 8} | fields
        body = {name: value for name, value in body.items() if value is not ...}
        sequence = pb.Sequence(sequence_id=sequence_id, model="tiny", endpoint=endpoint, lane=lane, **(asked or {}))
        sequence.request = json.dumps(body).encode()
        sequence.stream = bool(fields.get("stream"))
        self.backend.submit([sequence])
        return sequence_id

    async def chat(self, content: Any = "hello", **fields: Any) -> pb.SequenceResult:
        """Submit a chat and wait for its end."""
        return await asyncio.wait_for(self.results.of(self.begin(content, **fields)), 60)

    async def complete(self, prompt: Any, **fields: Any) -> pb.SequenceResult:
        """Submit a /v1/completions request and wait for its end."""
        return await self.chat(..., endpoint="/v1/completions", prompt=prompt, messages=..., **fields)

    async def ended(self, *sequence_ids: int) -> list[pb.SequenceResult]:
        """Wait for these."""
        return list(await asyncio.wait_for(asyncio.gather(*map(self.results.of, sequence_ids)), 60))


def settings(path: Path | str, **changes: Any) -> EngineSettings:
    """Make settings: two decoders of three slots, without a GPU."""
    chosen = {"workers": 2, "slots": 3, "gpu_layers": 0} | changes
    return EngineSettings(llamacpp=LlamaCppSettings(model_path=str(path), **chosen))


@contextlib.asynccontextmanager
async def started(path: Path | None = None, **changes: Any) -> AsyncIterator[Running]:
    """Run a backend; nothing of it is left afterwards."""
    backend = create(settings(path or tiny_gguf.tiny_gguf(), **changes))
    results = Results()
    models = await backend.start(results)
    pids = backend.decoder_pids
    yield Running(backend, results, models)
    pids += backend.decoder_pids
    await backend.close()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]

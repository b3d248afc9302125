"""An engine in the test's process: a real gRPC server whose answers a test decides."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from haywain import rpc
from haywain.engine.v1 import engine_pb2, engine_pb2_grpc
from haywain.scheduler.v1 import scheduler_pb2 as pb

__all__ = ["CHAT", "EchoEngine", "answer"]

CHAT = "/v1/chat/completions"
_BEAT_SECONDS = 0.1
"""Its heartbeat is nothing but time."""
Answer = engine_pb2.SequenceResult | None
Results = asyncio.Queue[engine_pb2.RunResponse | None]


def answer(sequence: engine_pb2.Sequence) -> engine_pb2.SequenceResult:
    """Answer a sequence with its own last message."""
    content = json.loads(sequence.request)["messages"][-1]["content"]
    body = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": sequence.model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }  # fmt: skip
    return engine_pb2.SequenceResult(
        sequence_id=sequence.sequence_id,
        status_code=200,
        body=json.dumps(body).encode(),
        usage=engine_pb2.Usage(input_tokens=3, output_tokens=2),
        queue_ms=1,
        run_ms=2,
    )


class EchoEngine(engine_pb2_grpc.EngineServiceServicer):
    """An engine; `respond` decides on each sequence: a result, or None for no answer until `release` or a cancel."""

    Respond = Callable[[engine_pb2.Sequence], Answer]

    def __init__(self, folder: Path, engine_id: str = "e0", *, models: Sequence[str] = ("echo",), slots: int = 8) -> None:
        """It runs after `start`."""
        self.address = f"unix:{folder}/run/{engine_id}.sock"
        self.description = engine_pb2.Engine(
            engine_id=engine_id,
            incarnation="1",
            backend="echo",
            version="1",
            address=self.address,
            slots=slots,
            models=[engine_pb2.ModelDescription(model=model, digest="sha256:0", endpoints=[CHAT]) for model in models],
        )
        self.respond: EchoEngine.Respond = answer
        self.sequences: list[engine_pb2.Sequence] = []
        self.cancelled: list[int] = []
        self.held: dict[int, engine_pb2.Sequence] = {}
        self.most = 0
        """Most sequences that were in flight at the same time."""
        self.load: engine_pb2.Load | None = None
        self.streams = 0
        self.describes = asyncio.Event()
        """Cleared, it doesn't answer when it is asked what it is."""
        self.describes.set()
        self.out: Results = asyncio.Queue()
        self._in_flight = 0
        self._server: contextlib.AsyncExitStack | None = None
        self._beating: asyncio.Task[None] | None = None

    async def start(self, scheduler: Any) -> None:
        """Serve, and register by heartbeats with a scheduler's stub."""
        await self.serve()
        await self.register(scheduler)
        self._beating = asyncio.create_task(self._beat(scheduler))

    async def serve(self) -> None:
        """Serve, without a word to anybody."""
        self._server = contextlib.AsyncExitStack()
        Path(self.address.removeprefix("unix:")).parent.mkdir(exist_ok=True)
        server = grpc.aio.server(options=rpc.OPTIONS)
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self, server)
        server.add_insecure_port(self.address)
        await server.start()
        self._server.push_async_callback(server.stop, 0)

    async def register(self, scheduler: Any) -> None:
        """Register once."""
        await rpc.call(scheduler.RegisterEngine, pb.RegisterEngineRequest(engine=self.description, load=self.load))

    async def _beat(self, scheduler: Any) -> None:
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            with contextlib.suppress(Exception):
                await self.register(scheduler)

    async def kill(self) -> None:
        """Vanish without a word."""
        if self._beating is not None:
            self._beating.cancel()
        if self._server is not None:
            await self._server.aclose()
        self._server = self._beating = None

    async def revive(self, scheduler: Any) -> None:
        """Come back as a new incarnation."""
        await self.kill()
        self.description.incarnation += "+"
        self.held.clear()
        await self.start(scheduler)

    async def DescribeEngine(self, request: engine_pb2.DescribeEngineRequest, context: Any) -> engine_pb2.DescribeEngineResponse:
        """Say what it is, unless it hangs."""
        await self.describes.wait()
        return engine_pb2.DescribeEngineResponse(engine=self.description, load=self.load)

    async def Run(self, requests: AsyncIterator[engine_pb2.RunRequest], context: Any) -> AsyncIterator[engine_pb2.RunResponse]:
        """Grant credits, take sequences, send what `respond` says."""
        self.streams += 1
        self._in_flight = 0
        self.out = out = asyncio.Queue()
        out.put_nowait(engine_pb2.RunResponse(credits=self.description.slots))
        reading = asyncio.create_task(self._read(requests, out))
        try:
            while (response := await out.get()) is not None:
                yield response
        finally:
            reading.cancel()

    def release(self, respond: Callable[[engine_pb2.Sequence], Answer] = answer) -> None:
        """Answer all that is held."""
        held, self.held = self.held, {}
        self._send([result for sequence in held.values() if (result := respond(sequence)) is not None], self.out)

    def _send(self, results: list[engine_pb2.SequenceResult], out: Results) -> None:
        self._in_flight -= len(results)
        out.put_nowait(engine_pb2.RunResponse(results=results, credits=len(results)))

    async def _read(self, requests: AsyncIterator[engine_pb2.RunRequest], out: Results) -> None:
        """Answer on the stream that was asked: what one that broke has left is nothing to the next, which counts from 1 again."""
        async for request in requests:
            results = []
            self._in_flight += len(request.sequences)
            self.most = max(self.most, self._in_flight)
            for sequence in request.sequences:
                self.sequences.append(sequence)
                result = self.respond(sequence)
                if result is None:
                    self.held[sequence.sequence_id] = sequence
                else:
                    results.append(result)
            self.cancelled += request.cancel_sequence_ids
            for sequence_id in request.cancel_sequence_ids:
                if self.held.pop(sequence_id, None) is not None:
                    error = engine_pb2.SequenceError(code="cancelled", message="cancelled")
                    results.append(engine_pb2.SequenceResult(sequence_id=sequence_id, status_code=499, error=error))
            if results:
                self._send(results, out)

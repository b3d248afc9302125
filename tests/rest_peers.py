"""Fake peers of the gateway: real gRPC servers that answer by script. What a prompt says decides what becomes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from batches_peers import SchedulerPeer

from engine import answers, echo_text
from haywain import errors, openai
from haywain.blobs import DirectoryBlobStore
from haywain.clock import timestamp
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2
from haywain.settings import SchedulerSettings
from services.scheduler.calls import Call
from services.scheduler.model_lease_service import ModelLeaseServicer
from services.scheduler.model_leases import ModelLeases

__all__ = ["MODELS", "ScriptedScheduler"]

SCRIPTS = ("say", "refuse", "busy", "break", "lose", "crash", "wait", "late", "nothing")
LATE_SECONDS = 1.5
CREATED = 1_700_000_000
_READY, _DRAINING = scheduler_pb2.EngineStatus.STATE_READY, scheduler_pb2.EngineStatus.STATE_DRAINING


def _model(name: str, **more: Any) -> engine_pb2.ModelDescription:
    return engine_pb2.ModelDescription(
        model=name,
        create_time=timestamp(CREATED),
        owned_by="tests",
        **{"endpoints": ["/v1/chat/completions"], "fields": sorted(openai.CHAT_FIELDS - openai.TOOL_FIELDS), **more},
    )


MODELS = [
    _model("Qwen/Qwen3-0.6B"),
    _model("echo", aliases=["echo-latest"]),
    _model("narrow", fields=["model", "messages", "max_tokens"]),
    _model("texts", endpoints=["/v1/completions"], fields=sorted(openai.COMPLETION_FIELDS)),
    _model("rented", aliases=["rented-latest"]),
    _model("vectors", endpoints=["/v1/embeddings"], fields=sorted(openai.EMBEDDING_FIELDS)),
]


class ScriptedScheduler(ModelLeaseServicer, SchedulerPeer):
    """A scheduler with six models and one engine; the last message of a chat request is the script of its answer, else an echo.

    Its leases are the real ones. Batches of the model `echo` are done at once, others wait until they are stopped.
    """

    def __init__(self, blobs: DirectoryBlobStore, leases: ModelLeases) -> None:
        """Start with an engine that is ready."""
        SchedulerPeer.__init__(self, blobs)
        ModelLeaseServicer.__init__(self, leases, SchedulerSettings(), self._models)
        self._lent = leases
        self.models = MODELS
        self.ready = True
        self.requests: list[scheduler_pb2.CompleteRequest] = []
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()

    def engines(self) -> list[scheduler_pb2.EngineStatus]:
        """List the one engine."""
        engine = engine_pb2.Engine(engine_id="engine-0", backend="echo", models=MODELS, slots=128)
        return [scheduler_pb2.EngineStatus(engine=engine, state=_READY if self.ready else _DRAINING, active=3)]

    async def SubmitBatch(self, request: scheduler_pb2.SubmitBatchRequest, context: Any) -> scheduler_pb2.SubmitBatchResponse:
        """Take a batch in."""
        answer = await super().SubmitBatch(request, context)
        if request.shards and request.shards[0].model == "echo":
            self.run(request.batch_id, completed=request.row_count)
        return answer

    async def SealBatch(self, request: scheduler_pb2.SealBatchRequest, context: Any) -> scheduler_pb2.SealBatchResponse:
        """End the batch's lease with it."""
        await self._lent.batch_ended(request.batch_id)
        sealed: scheduler_pb2.SealBatchResponse = await SchedulerPeer.SealBatch(self, request, context)
        return sealed

    async def _models(self, batch_id: str) -> set[str]:
        known = self.batches.get(batch_id)
        return {shard.model for shard in known.request.shards} if known is not None else set()

    async def ListEngines(self, request: scheduler_pb2.ListEnginesRequest, context: Any) -> scheduler_pb2.ListEnginesResponse:
        """List the one."""
        return scheduler_pb2.ListEnginesResponse(engines=self.engines())

    async def ReadResults(
        self, request: scheduler_pb2.ReadResultsRequest, context: Any
    ) -> AsyncIterator[scheduler_pb2.ReadResultsResponse]:
        """Have kept no journal."""
        if request.batch_id:
            raise errors.BatchMissing
        yield scheduler_pb2.ReadResultsResponse()

    async def GetPoolStatus(self, request: scheduler_pb2.GetPoolStatusRequest, context: Any) -> scheduler_pb2.GetPoolStatusResponse:
        """Tell numbers that all differ."""
        return scheduler_pb2.GetPoolStatusResponse(
            intake_rows=5_000_000_000,
            intake_capacity=6_000_000_000,
            slots_active=3,
            slots_capacity=128,
            active_batches=2,
            engines=self.engines(),
        )

    async def Complete(self, request: scheduler_pb2.CompleteRequest, context: Any) -> AsyncIterator[scheduler_pb2.CompleteResponse]:
        """Play what the last message says: a word, then how many deltas come first."""
        self.requests.append(request)
        await self._lent.admit(Call(request))
        script, count = _script(request)
        async for delta in _deltas(script, count):
            yield delta
        match script:
            case "say" | "late":
                yield _result(200, b'{"object":"chat.completion","big":9007199254740993,"none":null}')
            case "refuse":
                yield _result(422, openai.error_body("Not with me.", code="context_length_exceeded", param="messages"))
            case "busy":
                raise errors.CapacityExceeded("Every slot is taken.", retry_after=7)
            case "break":
                yield _result(500, openai.error_body("The engine broke.", code="engine_error", kind="server_error"))
            case "lose":
                raise errors.Unavailable(retry_after=2)
            case "crash":
                raise ValueError("secret")
            case "wait":
                self.waiting.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.set()
            case "":
                yield scheduler_pb2.CompleteResponse(result=_echoed(request))


def _script(request: scheduler_pb2.CompleteRequest) -> tuple[str, int]:
    try:
        script, _, count = json.loads(request.request)["messages"][-1]["content"].partition(" ")
    except (AttributeError, LookupError, TypeError):
        return "", 0
    return (script, int(count or 0)) if script in SCRIPTS else ("", 0)


async def _deltas(script: str, count: int) -> AsyncIterator[scheduler_pb2.CompleteResponse]:
    if script == "late":
        await asyncio.sleep(LATE_SECONDS)
    for number in range(count):
        yield scheduler_pb2.CompleteResponse(delta=engine_pb2.SequenceDelta(body=b'{"n":%d}' % number))


def _echoed(request: scheduler_pb2.CompleteRequest) -> engine_pb2.SequenceResult:
    """Answer as the echo engine does: what can be wrong with a body is its business."""
    answer = {"/v1/completions": echo_text.completion, "/v1/embeddings": echo_text.embedding}.get(request.endpoint, echo_text.chat)
    try:
        return answer(1, request.request, False).result
    except errors.HaywainError as error:
        return answers.error_result(1, error)


def _result(status: int, body: bytes) -> scheduler_pb2.CompleteResponse:
    return scheduler_pb2.CompleteResponse(result=engine_pb2.SequenceResult(status_code=status, body=body))

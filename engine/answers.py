"""What an engine answers: bodies as OpenAI's JSON, whole or chunk by chunk, and results around them."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any, Final

import grpc

from haywain import errors, openai
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["ChatAnswer", "TextAnswer", "answer_result", "cancelled", "engine_error", "error_result", "row_timeout"]

_STATUS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.OUT_OF_RANGE: 413,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
_STATUS_BY_CODE: Final = {"cancelled": 499}
_PROCESS: Final = os.urandom(8).hex()
_answers = itertools.count()


class ChatAnswer:
    """Makes the bodies of one answer of /v1/chat/completions; all of them share id, time and model."""

    __slots__ = ("created", "fingerprint", "id", "model")

    def __init__(self, model: str, *, fingerprint: str | None = None) -> None:
        """`model` is the id as the caller named it."""
        self.id = f"chatcmpl-{_PROCESS}{next(_answers):010x}"
        self.created = int(time.time())
        self.model = model
        self.fingerprint = fingerprint

    def whole(self, choices: list[openai.ChatChoice], usage: openai.CompletionUsage) -> bytes:
        """Encode a `chat.completion`."""
        return openai.encode(
            openai.ChatCompletion(
                id=self.id,
                created=self.created,
                model=self.model,
                choices=choices,
                usage=usage,
                system_fingerprint=self.fingerprint,
            )
        )

    def role_chunk(self, index: int = 0) -> bytes:
        """Encode a choice's first chunk."""
        return self._chunk([openai.ChatChunkChoice(index=index, delta=openai.ChatDelta(role="assistant", content=""))])

    def content_chunk(self, text: str, index: int = 0, *, reasoning: bool = False, logprobs: Any = None) -> bytes:
        """Encode a piece of a choice's text, or of its reasoning."""
        delta = openai.ChatDelta(reasoning_content=text) if reasoning else openai.ChatDelta(content=text)
        return self._chunk([openai.ChatChunkChoice(index=index, delta=delta, logprobs=logprobs)])

    def call_chunk(self, call: openai.ToolCallDelta, index: int = 0) -> bytes:
        """Encode a tool call of a choice."""
        return self._chunk([openai.ChatChunkChoice(index=index, delta=openai.ChatDelta(tool_calls=[call]))])

    def final_chunk(self, finish_reason: str, index: int = 0) -> bytes:
        """Encode a choice's last chunk."""
        return self._chunk([openai.ChatChunkChoice(index=index, delta=openai.ChatDelta(), finish_reason=finish_reason)])

    def usage_chunk(self, usage: openai.CompletionUsage) -> bytes:
        """Encode the stream's last chunk, for `stream_options.include_usage`."""
        return self._chunk([], usage)

    def _chunk(self, choices: list[openai.ChatChunkChoice], usage: openai.CompletionUsage | None = None) -> bytes:
        return openai.encode(
            openai.ChatChunk(
                id=self.id,
                created=self.created,
                model=self.model,
                choices=choices,
                usage=usage,
                system_fingerprint=self.fingerprint,
            )
        )


class TextAnswer:
    """Makes the bodies of one answer of /v1/completions; all of them share id, time and model."""

    __slots__ = ("created", "fingerprint", "id", "model")

    def __init__(self, model: str, *, fingerprint: str | None = None) -> None:
        """`model` is the id as the caller named it."""
        self.id = f"cmpl-{_PROCESS}{next(_answers):010x}"
        self.created = int(time.time())
        self.model = model
        self.fingerprint = fingerprint

    def whole(self, choices: list[openai.TextChoice], usage: openai.CompletionUsage | None) -> bytes:
        """Encode a `text_completion`; with no choices, a stream's last chunk."""
        return openai.encode(
            openai.TextCompletion(
                id=self.id,
                created=self.created,
                model=self.model,
                choices=choices,
                usage=usage,
                system_fingerprint=self.fingerprint,
            )
        )

    def chunk(self, text: str, index: int = 0, *, finish_reason: str | None = None, logprobs: Any = None) -> bytes:
        """Encode a piece of a choice's text; a choice's last one has the finish reason."""
        return self.whole([openai.TextChoice(index=index, text=text, finish_reason=finish_reason, logprobs=logprobs)], None)


def answer_result(
    sequence_id: int, body: bytes, usage: openai.CompletionUsage, *, queue_ms: int = 0, run_ms: int = 0
) -> pb.SequenceResult:
    """Make the result of a sequence that went well; `usage` is the one in the body."""
    result = pb.SequenceResult()  # one by one is quicker than by keywords
    result.sequence_id, result.status_code, result.body = sequence_id, 200, body
    if queue_ms or run_ms:
        result.queue_ms, result.run_ms = queue_ms, run_ms
    used = result.usage
    used.input_tokens = usage.prompt_tokens
    used.output_tokens = usage.completion_tokens
    if cached := usage.prompt_tokens_details.cached_tokens:
        used.cached_tokens = cached
    if reasoning := usage.completion_tokens_details.reasoning_tokens:
        used.reasoning_tokens = reasoning
    return result


def error_result(sequence_id: int, error: errors.HaywainError, *, retryable: bool | None = None) -> pb.SequenceResult:
    """Make the result of a sequence that failed: the status by the error's class, the body an OpenAI envelope.

    An error without a code is an `engine_error`. `retryable` (try the row elsewhere) is the class's unless given.
    """
    code = error.code or "engine_error"
    status = _STATUS_BY_CODE.get(code) or _STATUS.get(type(error).status, 500)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return pb.SequenceResult(
        sequence_id=sequence_id,
        status_code=status,
        body=openai.error_body(error.message, code=code, param=error.param, kind=kind),
        error=pb.SequenceError(code=code, message=error.message, param=error.param),
        retryable=type(error).retryable if retryable is None else retryable,
    )


def engine_error(sequence_id: int, message: str, *, retryable: bool = False) -> pb.SequenceResult:
    """Make the result of a sequence that the engine couldn't finish: 500 `engine_error`."""
    return error_result(sequence_id, errors.HaywainError(message, code="engine_error"), retryable=retryable)


def cancelled(sequence_id: int) -> pb.SequenceResult:
    """Make the result of a sequence that was cancelled: 499."""
    return error_result(sequence_id, errors.HaywainError("The request was cancelled.", code="cancelled"))


def row_timeout(sequence_id: int, seconds: float) -> pb.SequenceResult:
    """Make the result of a sequence whose deadline passed `seconds` after it arrived: 504, of no use elsewhere either."""
    message = f"The row was not finished by its deadline, {seconds:.3f} s after it reached the engine."
    return error_result(sequence_id, errors.DeadlineExceeded(message, code="row_timeout"), retryable=False)

"""The wire: OpenAI's JSON as structs, field for field. A field without a value is present and null.

Everything that leaves as JSON goes through `encode`, which escapes to ASCII: a client that splits lines on U+2028 still works.
"""

from __future__ import annotations

import codecs
from typing import Any, Literal

import msgspec

__all__ = [
    "CHAT_FIELDS", "COMPLETION_FIELDS", "EMBEDDING_FIELDS", "ENDPOINTS", "OTHER_FIELDS", "TOOL_FIELDS", "ChatChoice", "ChatChunk",
    "ChatChunkChoice", "ChatCompletion", "ChatDelta", "ChatMessage", "CompletionUsage", "Embedding", "EmbeddingList",
    "EmbeddingUsage", "ErrorBody", "ErrorEnvelope", "FunctionCall", "TextChoice", "TextCompletion", "ToolCall", "ToolCallDelta",
    "ascii_json", "asks_for_nothing", "encode", "error_body",
]  # fmt: skip

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")

CHAT_FIELDS = frozenset(
    {
        "model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed",
        "presence_penalty", "frequency_penalty", "repeat_penalty", "logit_bias", "logprobs", "top_logprobs", "n",
        "response_format", "chat_template_kwargs", "user", "metadata", "stream", "stream_options", "max_context_length",
        "tools", "tool_choice", "parallel_tool_calls",
    }
)  # fmt: skip
"""Body fields of /v1/chat/completions that an engine may honour; `stream` never in a batch.

`max_context_length`, tokens of prompt and answer together, is not OpenAI's: a batch gives it to all its rows.
"""

TOOL_FIELDS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
"""Those of a chat that only models with tools honour."""

_CHAT_ONLY = {"messages", "max_completion_tokens", "top_logprobs", "chat_template_kwargs"} | TOOL_FIELDS
COMPLETION_FIELDS = CHAT_FIELDS - _CHAT_ONLY | {"prompt", "echo"}
"""The same of /v1/completions."""

EMBEDDING_FIELDS = frozenset({"model", "input", "dimensions", "encoding_format", "user"})
"""The same of /v1/embeddings."""

OTHER_FIELDS = frozenset(
    {
        "audio", "best_of", "function_call", "functions", "modalities", "moderation", "prediction",
        "prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "safety_identifier", "service_tier", "store", "suffix",
        "verbosity", "web_search_options",
    }
)  # fmt: skip
"""Fields that OpenAI's API has and that no engine honours on any endpoint: unsupported rather than unknown."""

_PUBLIC_FIELDS = CHAT_FIELDS | COMPLETION_FIELDS | EMBEDDING_FIELDS | OTHER_FIELDS


def asks_for_nothing(field: str, value: Any) -> bool:
    """Tell whether a member of a body means what its absence means, whoever honours it: clients write out what they leave unset.

    That is a null; and false, but only of fields that are known: who knows what is on unless somebody says otherwise?
    """
    return value is None or (value is False and field in _PUBLIC_FIELDS)


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2)), error.end


codecs.register_error("haywain_json", _escape)


def ascii_json(data: bytes) -> bytes:
    """Escape every non-ASCII character of UTF-8 JSON; they occur inside strings only, so the value stays the same."""
    return data if data.isascii() else data.decode("utf-8").encode("ascii", "haywain_json")


_encoder = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    """Encode as ASCII JSON, fields in the order of declaration."""
    return ascii_json(_encoder.encode(value))


class ErrorBody(msgspec.Struct, kw_only=True):
    """What is inside the envelope."""

    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(msgspec.Struct):
    """The body of every non-2xx answer."""

    error: ErrorBody


def error_body(message: str, *, code: str = "", param: str = "", kind: str = "invalid_request_error") -> bytes:
    """Encode an error envelope; empty texts become null."""
    return encode(ErrorEnvelope(ErrorBody(message=message, type=kind, param=param or None, code=code or None)))


class PromptTokensDetails(msgspec.Struct):
    """Part of `usage`."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    """Part of `usage`."""

    reasoning_tokens: int = 0


class CompletionUsage(msgspec.Struct):
    """`usage` of a completion, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails

    @classmethod
    def of(cls, prompt: int, completion: int, cached: int = 0, reasoning: int = 0) -> CompletionUsage:
        """Make from counts."""
        details = PromptTokensDetails(cached), CompletionTokensDetails(reasoning)
        return cls(prompt, completion, prompt + completion, *details)


class FunctionCall(msgspec.Struct):
    """Part of a tool call; `arguments` are JSON."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool that the model wants called."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ToolCallDelta(msgspec.Struct, kw_only=True):
    """A tool call in a chunk, whole; `index` counts the calls of a choice."""

    index: int
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(msgspec.Struct, kw_only=True):
    """The answer of a choice; `tool_calls` is absent where there are none."""

    role: str = "assistant"
    content: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of `n` answers. `finish_reason`: stop, length, tool_calls, content_filter."""

    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: Any = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """A whole answer of /v1/chat/completions; `created` in Unix seconds."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    system_fingerprint: str | None = None


class ChatDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a chunk adds; absent members add nothing."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """One choice of a chunk."""

    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: Any = None


class ChatChunk(msgspec.Struct, kw_only=True):
    """A piece of a streamed answer; the last one of a stream may carry `usage` and no choices."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | None = None
    system_fingerprint: str | None = None


class TextChoice(msgspec.Struct, kw_only=True):
    """One answer of /v1/completions; `finish_reason` is null in all chunks of a stream but a choice's last."""

    index: int
    text: str
    finish_reason: str | None
    logprobs: Any = None


class TextCompletion(msgspec.Struct, kw_only=True):
    """A whole answer of /v1/completions, or a piece of a streamed one, which has the same shape."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: CompletionUsage | None = None
    system_fingerprint: str | None = None


class EmbeddingUsage(msgspec.Struct):
    """`usage` of /v1/embeddings, in tokens."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct, kw_only=True):
    """The vector of one input: numbers, or base64 of little-endian 32-bit floats."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct, kw_only=True):
    """A whole answer of /v1/embeddings, in the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage

"""What clients send, as structs: for the OpenAPI document only. What is accepted is decided where a body is read; tests compare.

Fields that may be left out have defaults; None: not given, and a null counts as not given.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = [
    "BatchCreation", "BatchUpdate", "ChatRequest", "CompletionRequest", "EmbeddingRequest", "FileUpload", "LeaseCreation",
    "LeaseHandover", "LeaseRenewal", "PartUpload", "UploadCompletion", "UploadCreation",
]  # fmt: skip

Seconds = Annotated[int, Meta(ge=3_600, le=2_592_000)]
Metadata = dict[str, Annotated[str, Meta(max_length=512)]]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Bytes = Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})]


class ExpiresAfter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """When a file expires."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Seconds


class FileUpload(msgspec.Struct, kw_only=True):
    """A form. Without an expiry, files of purpose `batch` live for 30 days, others for ever."""

    file: Bytes
    purpose: Annotated[str, Meta(min_length=1)]
    expires_after_anchor: Literal["created_at"] | None = msgspec.field(name="expires_after[anchor]", default=None)
    expires_after_seconds: Seconds | None = msgspec.field(name="expires_after[seconds]", default=None)


class UploadCreation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A file that will come in parts."""

    filename: Annotated[str, Meta(min_length=1)]
    purpose: Annotated[str, Meta(min_length=1)]
    bytes: Annotated[int, Meta(ge=0)]
    mime_type: Annotated[str, Meta(min_length=1)]
    expires_after: ExpiresAfter | None = None


class PartUpload(msgspec.Struct, kw_only=True):
    """A form."""

    data: Bytes


class UploadCompletion(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The parts in their order, and what they should add up to."""

    part_ids: list[str]
    md5: str | None = None


class BatchCreation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A batch: of an input file, or of records right here. Sampling is for rows that don't set it themselves."""

    input_file_id: Annotated[str, Meta(min_length=1)] | None = None
    requests: Annotated[list[Any], Meta(min_length=1, max_length=1_000, description="Lines, instead of a file.")] | None = None
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"] = "/v1/chat/completions"
    completion_window: str = "24h"
    metadata: Annotated[Metadata, Meta(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None
    model: Annotated[str, Meta(min_length=1, description="What lines without a `model` run on.")] | None = None
    priority: Literal["standard", "expedited"] | None = None
    invalid_rows: Annotated[Literal["fail", "reject"], Meta(description="A bad line fails the batch, or itself.")] | None = None
    pack: Annotated[bool, Meta(description="Of embeddings: rows may share a sequence.")] | None = None
    deterministic: Annotated[bool, Meta(description="A row's text doesn't depend on what runs beside it.")] | None = None
    max_decoding_length: Count | None = None
    max_context_length: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


class BatchUpdate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """New metadata, in place of all that was there."""

    metadata: Annotated[Metadata, Meta(max_length=32)] | None


class LeaseCreation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A model, and for how long; at most `scheduler.model_lease_seconds_max`, which is 7,200 unless it was set."""

    model: Annotated[str, Meta(min_length=1)]
    ttl_seconds: Annotated[int, Meta(ge=1)] | None = None
    holder: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    metadata: Annotated[Metadata, Meta(max_length=16)] | None = None


class LeaseRenewal(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How long it lasts from now on; as long as it was granted for, by default."""

    ttl_seconds: Annotated[int, Meta(ge=1)] | None = None


class LeaseHandover(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The lease that the batch gets."""

    lease_id: Annotated[str, Meta(min_length=1)]


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A schema that the answer follows."""

    name: str = ""
    description: str | None = None
    schema: dict[str, Any]
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the answer must be; `json_schema` where `type` says so."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Function(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may ask for; `parameters` is a JSON schema."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool that the model may ask for."""

    type: Literal["function"]
    function: Function


class FunctionName(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which function."""

    name: str


class NamedChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The function that must be asked for."""

    type: Literal["function"]
    function: FunctionName


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How to stream; only with `stream`."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Generation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both completions have in common. An engine may honour fewer fields; the others are refused by name."""

    model: str
    max_tokens: Count | None = None
    max_context_length: Annotated[int, Meta(ge=1, le=2**31 - 1, description="Tokens of prompt and answer together.")] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Share | None = None
    stop: str | Annotated[list[str], Meta(max_length=4)] | None = None
    seed: int | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None
    metadata: Annotated[Metadata, Meta(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message. Only an assistant's with tool calls may have no content."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class ChatRequest(Generation, kw_only=True, forbid_unknown_fields=True):
    """A chat to go on with."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None


class CompletionRequest(Generation, kw_only=True, forbid_unknown_fields=True):
    """Texts to go on with: a text, token ids, or several of one kind."""

    prompt: str | list[Any]
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to embed: a text, token ids, or several of one kind."""

    model: str
    input: str | list[Any]
    dimensions: Annotated[int, Meta(ge=1, le=8_192)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None

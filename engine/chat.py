"""The request of /v1/chat/completions: decoded, checked, and in the form that templates want.

What goes back is made by engine/answers.py.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Final, Literal

import msgspec

from engine import invalid
from haywain.openai import CHAT_FIELDS

__all__ = ["ChatRequest", "JsonSchema", "Message", "ResponseFormat", "StreamOptions", "TextPart", "parse_chat"]

MAX_INT: Final = 2**31 - 1
"""what a count may be at most: it ends in a C int"""

_Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_ALLOWED: Final = {
    "messages.role": ("system", "developer", "user", "assistant", "tool"),
    "messages.content.type": ("text",),
    "response_format.type": ("text", "json_object", "json_schema"),
}


class TextPart(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message. What an assistant's answer carries besides its text is taken back without complaint."""

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

    @property
    def text(self) -> str:
        """The content as one text; parts are joined by line feeds."""
        content = self.content
        if type(content) is str:
            return content
        return "\n".join(part.text for part in content) if isinstance(content, list) else ""

    def for_template(self) -> dict[str, Any]:
        """Make the dict that a chat template iterates over; `developer` is called `system`, which every template knows."""
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.text}
        for field in ("name", "tool_calls", "tool_call_id", "reasoning_content"):
            value = getattr(self, field)
            if value is not None:
                message[field] = value
        return message


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`response_format.json_schema`"""

    name: str = ""
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`response_format`; `json_schema` is set exactly when `type` says so."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`stream_options`"""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A body of /v1/chat/completions. None: not given; a null counts as not given."""

    model: str
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=MAX_INT)] | None = None
    """-1 and 0: no limit"""
    min_p: _Share | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=4)] | None = None
    seed: int | None = None
    """of any size; an engine takes what it can of it"""
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repeat_penalty: Annotated[float, msgspec.Meta(gt=0, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]] | None = None
    """by token id, in decimal"""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    user: str | None = None
    metadata: Annotated[dict[str, str], msgspec.Meta(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def max_output(self) -> int | None:
        """How many tokens may be generated; None for as many as fit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def stops(self) -> list[str]:
        """The stop strings, none of them empty."""
        stop = self.stop
        if stop is None:
            return []
        return [stop] if isinstance(stop, str) else stop

    @property
    def choices(self) -> int:
        """How many answers are wanted: `n`, 1 by default."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def for_template(self) -> list[dict[str, Any]]:
        """Make the list of messages that a chat template iterates over."""
        return [message.for_template() for message in self.messages]


_decoder = msgspec.json.Decoder(ChatRequest)


@functools.lru_cache(maxsize=64)
def _refused(honoured: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(CHAT_FIELDS - honoured - {"model", "messages"}))


def parse_chat(body: bytes, honoured: frozenset[str] = CHAT_FIELDS) -> ChatRequest:
    """Decode and check a body; fields outside `honoured` (the ModelDescription's `fields`) are refused by name.

    Raises InvalidRequest with OpenAI's message, `param` (a dotted path: `messages[0].role`) and code.
    """
    try:
        request = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid.explain(error, body, _ALLOWED, CHAT_FIELDS) from None
    for field in _refused(honoured):
        if getattr(request, field) is not None:
            raise invalid.unsupported_parameter(field)
    for index, message in enumerate(request.messages):
        if message.content is None and not (message.role == "assistant" and message.tool_calls):
            raise invalid.missing_parameter(f"messages[{index}].content")
    if request.stop is not None and "" in request.stops:
        raise invalid.invalid_value("stop", "a stop string has at least 1 character, but one has 0")
    _check_together(request)
    return request


def _check_together(request: ChatRequest) -> None:
    """Check what fields say about each other, and free-form keys."""
    if request.stream_options is not None and not request.stream:
        raise invalid.invalid_value("stream_options", "it is only allowed when 'stream' is true")
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid.invalid_value("top_logprobs", "it is only allowed when 'logprobs' is true")
    if request.response_format is not None:
        wanted = request.response_format
        if wanted.type == "json_schema" and (wanted.json_schema is None or wanted.json_schema.schema is None):
            where = "response_format.json_schema" if wanted.json_schema is None else "response_format.json_schema.schema"
            raise invalid.missing_parameter(where)
    if request.logit_bias:
        wrong = next((key for key in request.logit_bias if not (key.isascii() and key.isdigit())), None)
        if wrong is not None:
            raise invalid.invalid_value("logit_bias", f"keys are token ids in decimal, but one is '{wrong[:40]}'")
    for key, value in (request.metadata or {}).items():
        if len(key) > 64 or len(value) > 512:
            found = f"{len(key)} and {len(value)}"
            raise invalid.invalid_value(
                f"metadata.{key[:64]}", f"keys have <= 64 characters, values <= 512, but these have {found}"
            )

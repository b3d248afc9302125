"""The request of /v1/chat/completions: decoded, checked, and in the form that templates want.

What goes back is made by engine/answers.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, Final, Literal

import msgspec

from engine import invalid
from engine import tools as calling
from engine.sampling import FORMATS, Count, Sampling
from engine.tools import NamedChoice, Tool
from haywain.openai import CHAT_FIELDS, asks_for_nothing

__all__ = ["ChatRequest", "Message", "TextPart", "parse_chat"]

_ALLOWED: Final = {
    "messages.role": ("system", "developer", "user", "assistant", "tool"),
    "messages.content.type": ("text",),
    "response_format.type": FORMATS,
    "tools.type": ("function",),
    "tool_choice": calling.CHOICES,
    "tool_choice.type": ("function",),
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
                message[field] = list(map(_decoded, value)) if field == "tool_calls" else value
        return message


def _decoded(call: dict[str, Any]) -> dict[str, Any]:
    """Copy a tool call with its arguments as an object, which is what templates write out as JSON."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"])
    except msgspec.DecodeError:
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


class ChatRequest(Sampling, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A body of /v1/chat/completions. None: not given; a null counts as not given."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[Tool], msgspec.Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    """false: at most one call"""

    @property
    def max_output(self) -> int | None:
        """How many tokens may be generated; None for as many as fit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def for_template(self) -> list[dict[str, Any]]:
        """Make the list of messages that a chat template iterates over."""
        return [message.for_template() for message in self.messages]


_decoder = msgspec.json.Decoder(ChatRequest)


@functools.lru_cache(maxsize=64)
def _refused(honoured: frozenset[str]) -> tuple[tuple[str, ...], Callable[[ChatRequest], Any], Any]:
    """Give what is refused, what reads all of it at once, and what that reads in most requests."""
    fields = tuple(sorted(CHAT_FIELDS - honoured - {"model", "messages"}))
    return fields, attrgetter(*(fields or ("model",))), (None,) * len(fields)


def parse_chat(body: bytes, honoured: frozenset[str] = CHAT_FIELDS) -> ChatRequest:
    """Decode and check a body; fields outside `honoured` (the ModelDescription's `fields`) are refused by name.

    Raises InvalidRequest with OpenAI's message, `param` (a dotted path: `messages[0].role`) and code.
    """
    request = invalid.decode(body, _decoder, _ALLOWED, CHAT_FIELDS)
    fields, read, unset = _refused(honoured)
    if read(request) != unset:  # nearly never
        for field in fields:
            if not asks_for_nothing(field, getattr(request, field)):
                raise invalid.unsupported_parameter(field)
    for index, message in enumerate(request.messages):
        if message.content is None and not (message.role == "assistant" and message.tool_calls):
            raise invalid.missing_parameter(f"messages[{index}].content")
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid.invalid_value("top_logprobs", "it is only allowed when 'logprobs' is true")
    request.check()
    wants_json = request.response_format is not None and request.response_format.type != "text"
    calling.check(request.tools or [], request.tool_choice, answer_is_json=wants_json)
    return request

"""What the requests of all generating endpoints have in common: how to choose tokens and when to stop."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from engine import invalid

__all__ = ["FORMATS", "MAX_INT", "Count", "JsonSchema", "ResponseFormat", "Sampling", "StreamOptions"]

MAX_INT: Final = 2**31 - 1
"""what a count may be at most: it ends in a C int"""
FORMATS: Final = ("text", "json_object", "json_schema")

Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`response_format.json_schema`"""

    name: str = ""
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`response_format`; `json_schema` and its schema are there when `type` says so."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`stream_options`"""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Sampling(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Fields of a body. None: not given; a null counts as not given."""

    model: str
    max_tokens: Count | None = None
    max_context_length: Count | None = None
    """tokens of prompt and answer together"""
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
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None
    metadata: Annotated[dict[str, str], msgspec.Meta(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

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

    def check(self) -> None:
        """Check what a type can't say: what fields say about each other, and free-form keys. Raises InvalidRequest."""
        if self.stop is not None and "" in self.stops:
            raise invalid.invalid_value("stop", "a stop string has at least 1 character, but one has 0")
        if self.stream_options is not None and not self.stream:
            raise invalid.invalid_value("stream_options", "it is only allowed when 'stream' is true")
        if self.response_format is not None and self.response_format.type == "json_schema":
            schema = self.response_format.json_schema
            if schema is None or schema.schema is None:
                raise invalid.missing_parameter("response_format.json_schema" + ("" if schema is None else ".schema"))
        if self.logit_bias:
            wrong = next((key for key in self.logit_bias if not _is_token_id(key)), None)
            if wrong is not None:
                raise invalid.invalid_value("logit_bias", f"keys are token ids in decimal, but one is '{wrong[:40]}'")
        for key, value in (self.metadata or {}).items():
            if len(key) > 64 or len(value) > 512:
                found = f"{len(key)} and {len(value)}"
                raise invalid.invalid_value(
                    f"metadata.{key[:64]}", f"keys have <= 64 characters, values <= 512, but these have {found}"
                )


def _is_token_id(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= MAX_INT

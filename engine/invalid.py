"""From a body that doesn't decode to an InvalidRequest that says, in OpenAI's words, which field is at fault and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from haywain import openai
from haywain.errors import InvalidRequest

__all__ = [
    "context_exceeded",
    "decode",
    "explain",
    "invalid_value",
    "missing_parameter",
    "unknown_parameter",
    "unsupported_parameter",
]

_LOCATED = re.compile(r"(?P<what>.*?)(?: - at `(?P<key>key in )?\$(?P<path>[^`]*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_TYPE = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`")
_LENGTH = re.compile(r"Expected `(?P<wanted>array|str|object)` of length (?P<limit>[<>]= \d+)")
_RANGE = re.compile(r"Expected `(?:int|float)` (?P<limit>[<>]=? .+)")

_NOUNS: Final = {
    "int": "an integer", "float": "a number", "str": "a string", "bool": "a boolean", "array": "an array",
    "object": "an object", "null": "null",
}  # fmt: skip
_PARTS: Final = {"array": "elements", "str": "characters", "object": "members"}
_ANY: Final = "[...]"
"""how msgspec writes a key of a free-form object, whichever it is"""
_SHOWN: Final = 100
"""characters of a caller's value that a message repeats"""

_T = TypeVar("_T")
_OF_OTHERS: Final = (openai.COMPLETION_FIELDS | openai.EMBEDDING_FIELDS) - openai.CHAT_FIELDS
"""fields of one endpoint that aren't another's: unsupported rather than unknown"""
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NOTHING: Final = {b"null": None, b"false": False}


def decode(body: bytes, decoder: msgspec.json.Decoder[_T], values: Mapping[str, tuple[str, ...]], known: frozenset[str]) -> _T:
    """Decode a body; members that nobody knows and that ask for nothing are as if they weren't there. Raises as `explain` says."""
    try:
        try:
            return decoder.decode(body)
        except msgspec.ValidationError:
            members = _members.decode(body)
            asked = {name: value for name, value in members.items() if name in known or not _is_nothing(name, bytes(value))}
            if len(asked) == len(members):
                raise
            return decoder.decode(msgspec.json.encode(asked))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise explain(error, body, values, known) from None


def _is_nothing(name: str, value: bytes) -> bool:
    return value in _NOTHING and openai.asks_for_nothing(name, _NOTHING[value])


def missing_parameter(param: str) -> InvalidRequest:
    """Make the error for a field that must be there."""
    return InvalidRequest(f"Missing required parameter: '{_short(param)}'.", code="missing_required_parameter", param=param)


def unknown_parameter(param: str) -> InvalidRequest:
    """Make the error for a field that doesn't exist."""
    return InvalidRequest(f"Unknown parameter: '{_short(param)}'.", code="unknown_parameter", param=param)


def unsupported_parameter(param: str) -> InvalidRequest:
    """Make the error for a field that exists and isn't honoured here; it is refused rather than ignored."""
    return InvalidRequest(
        f"Unsupported parameter: '{_short(param)}' is not supported with this model.", code="unsupported_parameter", param=param
    )


def invalid_value(param: str, why: str) -> InvalidRequest:
    """Make the error for a value that can't be: `why` names the limit and the measured value."""
    return InvalidRequest(f"Invalid value for '{_short(param)}': {why}.", code="invalid_value", param=param)


def explain(error: Exception, body: bytes, values: Mapping[str, tuple[str, ...]], known: frozenset[str]) -> InvalidRequest:
    """Translate what msgspec, or the stack, said about `body`.

    `values` holds the allowed values of closed fields, by dotted path without indices (`messages.role`); `known` the fields of
    the endpoint.
    """
    if isinstance(error, RecursionError):
        return InvalidRequest("We could not parse the JSON body of your request: it is nested too deeply.", code="invalid_json")
    if not isinstance(error, msgspec.ValidationError):
        return InvalidRequest(f"We could not parse the JSON body of your request: {error}.", code="invalid_json")
    located = _LOCATED.fullmatch(str(error))
    what, path = (located["what"], (located["path"] or "").removeprefix(".")) if located else (str(error), "")
    if found := _MISSING.fullmatch(what):
        return missing_parameter(_join(path, found["name"]))
    if found := _UNKNOWN.fullmatch(what):
        name = found["name"]
        if not path and name in known | openai.OTHER_FIELDS | _OF_OTHERS:
            return unsupported_parameter(name)
        return unknown_parameter(_join(path, name))
    if found := _TYPE.fullmatch(what):
        wanted = " or ".join(_NOUNS.get(name, name) for name in found["wanted"].split(" | ") if name != "null")
        got = _NOUNS.get(found["got"], found["got"])
        field, within, _ = path.partition(_ANY)
        subject = f"{'a value of ' if within else ''}'{_short(field)}'" if path else "the request body"
        message = f"Invalid type for {subject}: expected {wanted}, but got {got} instead."
        return InvalidRequest(message, code="invalid_type", param=field)
    return _value_error(what, path, body, values)


def _value_error(what: str, path: str, body: bytes, values: Mapping[str, tuple[str, ...]]) -> InvalidRequest:
    path, within, _ = path.partition(_ANY)
    value = _at(body, path)
    if found := _LENGTH.fullmatch(what):
        parts = _PARTS[found["wanted"]]
        return invalid_value(path, f"expected {found['limit']} {parts}, but got {len(value) if value is not None else 'none'}")
    if found := _RANGE.fullmatch(what):
        if within and isinstance(value, dict):
            numbers = [number for number in value.values() if isinstance(number, int | float)]
            value = (max if found["limit"].startswith("<") else min)(numbers, default=None)
        return invalid_value(path, f"expected a value {found['limit']}, but got {_short(str(value))}")
    allowed = values.get(re.sub(r"\[[^\]]*\]", "", path))
    if allowed:
        names = ", ".join(f"'{name}'" for name in allowed)
        return invalid_value(path, f"'{_short(str(value))}' is none of the supported values {names}")
    return invalid_value(path, _short(what))


def _at(body: bytes, path: str) -> Any:
    """Find the value at a dotted path, None when it can't be found."""
    try:
        value: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:  # a number past every limit
        return None
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def context_exceeded(prompt: int, context: int | None, asked: int | None, param: str) -> InvalidRequest:
    """Say that a prompt of so many tokens leaves no room: in the model's context, or in what the request allows itself."""
    if asked is not None and (context is None or asked <= context):
        limit = f"This request's max_context_length is {asked} tokens."
    else:
        limit = f"This model's maximum context length is {context} tokens."
    return InvalidRequest(
        f"{limit} However, your {param} resulted in {prompt} tokens, and at least 1 is needed for the answer.",
        code="context_length_exceeded",
        param=param,
    )

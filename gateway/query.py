"""Query strings and pages. Envoy hands the raw query over in `x-haywain-query`; what a route doesn't know is refused by name."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import parse_qsl

import msgspec

from gateway.answer import Context, header
from haywain import errors

__all__ = ["Page", "integer", "one_of", "parameters"]


_T = TypeVar("_T")


class Page(msgspec.Struct, Generic[_T], kw_only=True):
    """A page of a list; ids are null when it is empty."""

    object: Literal["list"] = "list"
    data: list[_T]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False

    @classmethod
    def of(cls, data: list[Any], *, has_more: bool) -> Page[Any]:
        """Make a page of objects that have an `id`."""
        return cls(data=data, first_id=data[0].id, last_id=data[-1].id, has_more=has_more) if data else cls(data=[])


def parameters(context: Context, known: Collection[str] = ()) -> dict[str, str]:
    """Read the query parameters. Raises InvalidRequest for an unknown or repeated one, and for what is no UTF-8."""
    try:
        pairs = parse_qsl(header(context, "x-haywain-query"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise errors.InvalidRequest("The query string is not valid: it must be UTF-8, with at most 100 parameters.") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            raise errors.InvalidRequest(f"Unknown query parameter: '{name}'.", code="unknown_parameter", param=name)
        if name in found:
            raise errors.InvalidRequest(f"Duplicate query parameter: '{name}'.", param=name)
        found[name] = value
    return found


def integer(name: str, text: str, least: int, most: int) -> int:
    """Read an integer parameter. Raises InvalidRequest that names the limit and the value."""
    if not re.fullmatch(r"-?[0-9]+", text):
        what = "a decimal number" if re.fullmatch(r"-?[0-9]*\.[0-9]+", text) else "a string"
        raise errors.InvalidRequest(
            f"Invalid type for '{name}': expected an integer, but got {what} instead.", code="invalid_type", param=name
        )
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    negative = text.startswith("-")
    value = int(text) if len(text) <= 40 else (least - 1 if negative else most + 1)
    if value > most:
        raise errors.InvalidRequest(
            f"Invalid '{name}': integer above maximum value. Expected a value <= {most}, but got {shown} instead.",
            code="integer_above_max_value",
            param=name,
        )
    if value < least:
        raise errors.InvalidRequest(
            f"Invalid '{name}': integer below minimum value. Expected a value >= {least}, but got {shown} instead.",
            code="integer_below_min_value",
            param=name,
        )
    return value


def one_of(name: str, text: str, supported: Collection[str]) -> str:
    """Check a word. Raises InvalidRequest that names the supported ones."""
    if text not in supported:
        words = [f"'{word}'" for word in supported]
        listed = " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
        raise errors.InvalidRequest(f"Invalid value: '{text}'. Supported values are: {listed}.", param=name)
    return text

"""JSON request bodies, field by field: what has the wrong type, is out of range or unknown is refused with its name.

A `Body` hands fields out by type and, at the end, refuses what nobody asked for. The texts are OpenAI's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from gateway.query import one_of
from haywain import errors, strict_json

__all__ = ["Body", "decoded", "type_error"]

OFF_LOOP_BYTES = 256 * 1024
_TYPES: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal number",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


async def decoded(data: bytes) -> dict[str, Any]:
    """Decode a body that must be a JSON object. Raises InvalidRequest."""
    try:
        # Large ones would keep the loop from everybody else for milliseconds.
        value = await asyncio.to_thread(strict_json.decode, data) if len(data) > OFF_LOOP_BYTES else strict_json.decode(data)
    except strict_json.NotJSON as error:
        raise errors.InvalidRequest(
            f"We could not parse the JSON body of your request: {str(error)[:200]}.", code="invalid_json"
        ) from None
    if not isinstance(value, dict):
        raise errors.InvalidRequest(
            f"Invalid body: expected an object, but got {_TYPES[type(value)]} instead.", code="invalid_type"
        )
    return value


def type_error(param: str, expected: str, value: Any) -> errors.InvalidRequest:
    """Make the error for a field of a wrong type."""
    got = "an empty string" if value == "" else _TYPES[type(value)]
    return errors.InvalidRequest(
        f"Invalid type for '{param}': expected {expected}, but got {got} instead.", code="invalid_type", param=param
    )


class Body:
    """The members of an object; `prefix` is its own name, with a dot, when it is a member itself."""

    def __init__(self, members: dict[str, Any], prefix: str = "") -> None:
        """Start with nothing asked for."""
        self._members = members
        self._prefix = prefix
        self._asked: set[str] = set()

    def _take(self, name: str, expected: str, *kinds: type, nullable: bool = True) -> Any:
        self._asked.add(name)
        value = self._members.get(name)
        if value is None and (nullable or name not in self._members):
            return None
        if type(value) not in kinds:
            raise type_error(self._prefix + name, expected, value)
        return value

    def required(self, name: str) -> str:
        """Take a string that must be there and not be empty."""
        value = self._take(name, "a string", str, nullable=False)
        if value is None:
            raise errors.InvalidRequest(
                f"Missing required parameter: '{self._prefix}{name}'.", code="missing_required_parameter", param=self._prefix + name
            )
        return self._not_empty(name, value)

    def string(self, name: str, default: str = "") -> str:
        """Take a string that must not be empty; null is no string."""
        value = self._take(name, "a string", str, nullable=False)
        return default if value is None else self._not_empty(name, value)

    def word(self, name: str, default: str, supported: Collection[str]) -> str:
        """Take one of the supported words."""
        value = self._take(name, "a string", str)
        return default if value is None else one_of(self._prefix + name, value, supported)

    def boolean(self, name: str) -> bool:
        """Take a boolean, false by default."""
        return bool(self._take(name, "a boolean", bool))

    def integer(self, name: str, least: int = -(2**31), most: int = 2**31 - 1) -> int | None:
        """Take an integer within limits, by default those of the wire."""
        value = self._take(name, "an integer", int)
        param = self._prefix + name
        if value is not None and value > most:
            raise errors.InvalidRequest(
                f"Invalid '{param}': integer above maximum value. Expected a value <= {most}, but got {value} instead.",
                code="integer_above_max_value",
                param=param,
            )
        if value is not None and value < least:
            raise errors.InvalidRequest(
                f"Invalid '{param}': integer below minimum value. Expected a value >= {least}, but got {value} instead.",
                code="integer_below_min_value",
                param=param,
            )
        return None if value is None else int(value)

    def decimal(self, name: str) -> float | None:
        """Take a number."""
        value = self._take(name, "a decimal number", int, float)
        try:
            return None if value is None else float(value)
        except OverflowError:
            raise errors.InvalidRequest(
                f"Invalid '{self._prefix}{name}': the number is too large.", param=self._prefix + name
            ) from None

    def member(self, name: str) -> Body | None:
        """Take an object."""
        value = self._take(name, "an object", dict)
        return None if value is None else Body(value, f"{self._prefix}{name}.")

    def strings(self, name: str) -> dict[str, str]:
        """Take an object whose values are all strings."""
        members = self._take(name, "an object", dict) or {}
        for key, value in members.items():
            if type(value) is not str:
                raise type_error(f"{self._prefix}{name}.{key}", "a string", value)
        return dict(members)

    def given(self, name: str) -> bool:
        """Take anything; tell whether there is something."""
        self._asked.add(name)
        return self._members.get(name) is not None

    def array(self, name: str) -> list[Any] | None:
        """Take an array of anything."""
        value: list[Any] | None = self._take(name, "an array", list)
        return value

    def texts(self, name: str) -> list[str]:
        """Take an array of strings that must be there."""
        members = self._take(name, "an array of strings", list, nullable=False)
        if members is None:
            param = self._prefix + name
            raise errors.InvalidRequest(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)
        for number, value in enumerate(members):
            if type(value) is not str:
                raise type_error(f"{self._prefix}{name}[{number}]", "a string", value)
        return list(members)

    def finish(self) -> None:
        """Refuse members that nobody asked for."""
        for name in self._members:
            if name not in self._asked:
                param = self._prefix + name
                raise errors.InvalidRequest(f"Unknown parameter: '{param}'.", code="unknown_parameter", param=param)

    def _not_empty(self, name: str, value: str) -> str:
        if not value:
            param = self._prefix + name
            raise errors.InvalidRequest(f"Invalid value for '{param}': it must not be empty.", param=param)
        return value

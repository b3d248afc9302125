"""`tools` of a chat: functions that the model may ask for, and what a request says about asking."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from engine import invalid

__all__ = ["CHOICES", "Function", "NamedChoice", "Tool", "check"]

CHOICES = ("none", "auto", "required")


class Function(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`tools[].function`"""

    name: Annotated[str, msgspec.Meta(pattern=r"\A[a-zA-Z0-9_.-]{1,64}\Z")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An entry of `tools`."""

    type: Literal["function"]
    function: Function


class FunctionName(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`tool_choice.function`"""

    name: str


class NamedChoice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A `tool_choice` that wants one function called."""

    type: Literal["function"]
    function: FunctionName


def check(tools: list[Tool], choice: str | NamedChoice | None, *, answer_is_json: bool) -> None:
    """Check what tools and `tool_choice` say about each other. Raises InvalidRequest."""
    if not tools:
        if choice not in (None, "none"):
            raise invalid.invalid_value("tool_choice", "it is only allowed when 'tools' are given")
        return
    names = _names(tools)
    if isinstance(choice, NamedChoice) and choice.function.name not in names:
        raise invalid.invalid_value("tool_choice", f"'{choice.function.name[:64]}' is none of the functions in 'tools'")
    if choice == "none":
        return
    if answer_is_json:
        raise invalid.invalid_value("response_format", "it is not possible together with tools that may be called")
    strict = next((place for place, tool in enumerate(tools) if tool.function.strict), None)
    if strict is not None and choice in (None, "auto"):
        why = "arguments are only enforced when 'tool_choice' is 'required' or names a function"
        raise invalid.invalid_value(f"tools[{strict}].function.strict", why)


def _names(tools: list[Tool]) -> set[str]:
    names: set[str] = set()
    for place, tool in enumerate(tools):
        function = tool.function
        if function.name in names:
            raise invalid.invalid_value("tools", f"the function '{function.name}' is there more than once")
        names.add(function.name)
        kind = (function.parameters or {}).get("type", "object")
        if kind != "object":
            raise invalid.invalid_value(f"tools[{place}].function.parameters", f"its type is 'object', not {str(kind)[:40]!r}")
    return names

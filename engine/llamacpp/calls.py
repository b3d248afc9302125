"""Grammars of answers that must call tools, and of answers behind reasoning."""

from __future__ import annotations

import re
from typing import Any, Final

from engine import invalid
from engine.llamacpp import schema
from engine.sampling import JsonSchema, ResponseFormat
from engine.speech import Dialect
from engine.tools import NamedChoice, Tool
from haywain.errors import InvalidRequest

__all__ = ["after_reasoning", "gbnf"]

_ROOT: Final = re.compile(r"^root\s*::=", re.MULTILINE)
_THOUGHT: Final = 'root ::= ( [^<] | "<" [^/] | "</" [^t] )* "</think>" [ \\n]* haywain-answer\n'
_FORMS: Final = {
    "hermes": ('"<tool_call>\\n" haywain-call "\\n</tool_call>"', '( "\\n<tool_call>\\n" haywain-call "\\n</tool_call>" )*', ""),
    "mistral": ('"[TOOL_CALLS]" " "? "[" haywain-call', '( ", " haywain-call )*', '"]"'),
    "llama": ("haywain-call", '( "; " haywain-call )*', ""),
}
"""by dialect: a call, more calls, the end"""


def gbnf(tools: list[Tool], choice: str | NamedChoice, dialect: Dialect, *, many: bool) -> str:
    """Give the grammar of one or `many` calls, of the function that `choice` names or of any.

    Arguments follow their schema where that can be enforced; where it can't, and `strict` isn't wanted, they are any JSON object.
    Raises InvalidRequest.
    """
    wanted = choice.function.name if isinstance(choice, NamedChoice) else ""
    calls = []
    definitions: dict[str, Any] = {}
    for place, tool in enumerate(tools):
        if wanted in ("", tool.function.name):
            properties = {"name": {"const": tool.function.name}, dialect.arguments: _arguments(tool, place, definitions)}
            calls.append({"type": "object", "properties": properties, "required": list(properties)})
    text = _converted({"anyOf": calls, "$defs": definitions})
    first, more, end = _FORMS[dialect.name]
    return f"root ::= {first} {more if many and not wanted else ''} {end}\n{_ROOT.sub('haywain-call ::=', text)}"


def after_reasoning(grammar: str) -> str:
    """Give the grammar of a text that follows reasoning which the prompt began."""
    return _THOUGHT + _ROOT.sub("haywain-answer ::=", grammar)


def _arguments(tool: Tool, place: int, definitions: dict[str, Any]) -> dict[str, Any]:
    """Give the schema of a function's arguments; what it defines goes to `definitions`, under names of its own."""
    given = tool.function.parameters
    plain: dict[str, Any] = (
        {"type": "object", "properties": {}, "additionalProperties": False} if given is None else {"type": "object"} | given
    )
    try:
        _converted(plain)
    except InvalidRequest as error:
        if tool.function.strict:
            why = f"it can't be enforced: {error.message}"
            raise invalid.invalid_value(f"tools[{place}].function.parameters", why) from None
        return {"type": "object"}
    prefix = f"#/$defs/tool-{place}-"
    for group in ("$defs", "definitions"):
        named: dict[str, Any] = plain.pop(group, {})
        for name, definition in named.items():
            definitions[f"tool-{place}-{group[-4:]}-{name}"] = _renamed(definition, prefix)
    renamed: dict[str, Any] = _renamed(plain, prefix)
    return renamed


def _renamed(value: Any, prefix: str) -> Any:
    if isinstance(value, dict):
        ref = value.get("$ref")
        if isinstance(ref, str):
            _, group, name = ref.split("/", 2)
            return {"$ref": f"{prefix}{group[-4:]}-{name}"}
        return {key: _renamed(member, prefix) for key, member in value.items()}
    return [_renamed(member, prefix) for member in value] if isinstance(value, list) else value


def _converted(wanted: dict[str, Any]) -> str:
    return schema.gbnf(ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=wanted)))

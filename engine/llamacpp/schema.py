"""From `response_format` to a grammar: what the grammar can't hold an answer to is refused by name, never ignored.

The library's converter passes over keywords that it doesn't know, so a schema is walked first and every keyword must be one that it
follows where it stands. Sizes are bounded here: the converter and the grammar's parser spell out every repetition.
"""

from __future__ import annotations

import functools
import json
from typing import Any, Final

import msgspec
from llama_cpp import llama_grammar

from engine import invalid
from engine.sampling import ResponseFormat
from haywain.errors import InvalidRequest

__all__ = ["ANY_JSON", "gbnf"]

ANY_JSON: Final[str] = llama_grammar.JSON_GBNF
_FIELD: Final = "response_format"
_NOTES: Final = frozenset(
    {
        "$comment", "$id", "$schema", "default", "deprecated", "description", "discriminator", "examples", "readOnly", "title",
        "writeOnly",
    }
)  # fmt: skip
_DEFINITIONS: Final = ("$defs", "definitions")
_TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
_FORMATS: Final = ("date", "time", "date-time", "uuid")
_MAX_BYTES: Final = 65_536
_MAX_DEPTH: Final = 32
_MAX_REPEATS: Final = 1_000
_LOOSE_CHARACTER: Final = '\nchar ::= [^"\\\\] |'
_CHARACTER: Final = '\nchar ::= [^"\\\\\\x7F\\x00-\\x1F] |'
"""control characters are escaped in JSON; the converter forgets that"""


def gbnf(wanted: ResponseFormat | None) -> str:
    """Give the grammar in llama.cpp's notation, empty where any text will do. Raises InvalidRequest that names response_format."""
    if wanted is None or wanted.type == "text":
        return ""
    if wanted.type == "json_object":
        return ANY_JSON
    schema = wanted.json_schema.schema if wanted.json_schema is not None else None
    return _converted(msgspec.json.encode(schema))


@functools.lru_cache(maxsize=256)
def _converted(schema: bytes) -> str:
    if len(schema) > _MAX_BYTES:
        raise _refusal(f"the schema has {len(schema)} bytes, at most {_MAX_BYTES} are possible")
    plain = _Walk(msgspec.json.decode(schema)).plain()
    try:
        converter: Any = _Converter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)  # type: ignore[no-untyped-call]
        converter.visit(converter.resolve_refs(plain, "schema"), "")
        text = converter.format_grammar()
    except RecursionError:
        raise _refusal("the schema is too deep, or an object has too many optional properties") from None
    except Exception as error:  # noqa: BLE001 - the converter fails in any way, with assertions too
        raise _refusal(f"the schema can't be made a grammar: {str(error)[:200] or type(error).__name__}") from None
    if len(text) > 4 * _MAX_BYTES:
        raise _refusal(f"the schema's grammar has {len(text)} characters, at most {4 * _MAX_BYTES} are possible")
    return f"\n{text}".replace(_LOOSE_CHARACTER, _CHARACTER)


class _Converter(llama_grammar.SchemaConverter):
    """The library's converter with texts that hold quotes, backslashes and what isn't ASCII."""

    def _format_literal(self, literal: str) -> str:
        text = json.dumps(json.loads(literal), ensure_ascii=False)
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'


class _Walk:
    """Copies a schema without its notes; every keyword left is one that the converter follows where it stands."""

    def __init__(self, schema: Any) -> None:
        """`schema` is decoded JSON."""
        self._schema = schema
        self._names: dict[str, str] = {}
        """of definitions, by how a $ref writes them; their own could be those of the converter's rules"""

    def plain(self) -> dict[str, Any]:
        """Give the copy. Raises InvalidRequest."""
        schema = self._schema
        if not isinstance(schema, dict):
            raise _refusal("the schema is not an object")
        definitions: dict[str, Any] = {}
        for group in _DEFINITIONS:
            for name, definition in _object_at(schema.get(group, {}), f"schema.{group}").items():
                self._names[f"#/{group}/{name}"] = f"haywain-definition-{len(self._names)}"
                definitions[f"#/{group}/{name}"] = definition
        plain = self._copy({name: value for name, value in schema.items() if name not in _DEFINITIONS}, "schema", 0)
        if "$ref" in plain:  # the converter looks at nothing beside one
            plain = {"anyOf": [plain]}
        plain["$defs"] = {self._names[ref]: self._copy(definition, ref, 1) for ref, definition in definitions.items()}
        return plain

    def _copy(self, schema: Any, path: str, depth: int) -> dict[str, Any]:
        if depth > _MAX_DEPTH:
            raise _refusal(f"the schema is nested more than {_MAX_DEPTH} levels deep")
        kept = {name: value for name, value in ({} if schema is True else _object_at(schema, path)).items() if name not in _NOTES}
        if not kept:
            return {"type": "value"}
        for alone in ("$ref", "anyOf", "oneOf"):
            if alone in kept:
                _only(kept, {alone}, path)
                if alone == "$ref":
                    return self._ref(kept[alone], path)
                return {"anyOf": self._list(kept[alone], f"{path}.{alone}", depth)}
        for fixed in ("const", "enum"):
            if fixed in kept:
                _only(kept, {fixed, "type"}, path)
                return _fixed(kept, fixed, path)
        return self._typed(kept, path, depth)

    def _ref(self, ref: Any, path: str) -> dict[str, Any]:
        if ref not in self._names:
            raise _refusal(f"{path}.$ref names none of the schema's definitions")
        return {"$ref": f"#/$defs/{self._names[ref]}"}

    def _typed(self, schema: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        kind = schema.get("type")
        if isinstance(kind, list):
            _only(schema, {"type"}, path)
            return {"anyOf": self._list([{"type": one} for one in kind], path, depth)}
        if kind is None:
            kind = "object" if "properties" in schema else "array" if "items" in schema or "prefixItems" in schema else kind
        if kind == "object":
            return self._object(schema, path, depth)
        if kind == "array":
            return self._array(schema, path, depth)
        if kind == "string":
            return _string(schema, path)
        _only(schema, {"type"}, path)
        if kind not in _TYPES:
            raise _refusal(f"{path} has the type {str(kind)[:50]!r}, which is none of {', '.join(_TYPES)}")
        return {"type": kind}

    def _object(self, schema: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        """Copy an object's schema. Where it lists properties, the answer has no others: that fits `additionalProperties` too."""
        _only(schema, {"type", "properties", "required", "additionalProperties"}, path)
        properties = _object_at(schema.get("properties", {}), f"{path}.properties")
        required = schema.get("required", [])
        missing = [name for name in required if name not in properties] if isinstance(required, list) else [required]
        if missing:
            raise _refusal(f"{path} requires '{str(missing[0])[:50]}', which is none of its properties")
        if "" in properties:
            raise _refusal(f"{path} has a property without a name")
        others = schema.get("additionalProperties", True)
        if properties or others is False:
            copies = {name: self._copy(part, f"{path}.{name[:50]}", depth + 1) for name, part in properties.items()}
            return {"type": "object", "properties": copies, "required": required, "additionalProperties": False}
        if others is True:
            return {"type": "object"}
        return {"type": "object", "additionalProperties": self._copy(others, f"{path}.additionalProperties", depth + 1)}

    def _array(self, schema: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        parts = schema.get("prefixItems", schema.get("items"))
        if isinstance(parts, list):
            _only(schema, {"type", "prefixItems" if "prefixItems" in schema else "items"}, path)
            return {"type": "array", "prefixItems": self._list(parts, f"{path}.items", depth)}
        _only(schema, {"type", "items", "minItems", "maxItems"}, path)
        limits = _limits(schema, ("minItems", "maxItems"), path)
        if limits.get("maxItems") == 0:
            raise _refusal(f"{path}.maxItems must be 1 to {_MAX_REPEATS}")
        return {"type": "array", "items": self._copy(schema.get("items", True), f"{path}.items", depth + 1), **limits}

    def _list(self, schemas: Any, path: str, depth: int) -> list[Any]:
        if not isinstance(schemas, list) or not schemas:
            raise _refusal(f"{path} is not a list of schemas, or has none")
        return [self._copy(schema, f"{path}[{place}]", depth + 1) for place, schema in enumerate(schemas)]


def _fixed(schema: dict[str, Any], keyword: str, path: str) -> dict[str, Any]:
    if keyword == "enum" and not (isinstance(schema["enum"], list) and schema["enum"]):
        raise _refusal(f"{path}.enum has no values")
    return {keyword: schema[keyword]}


def _string(schema: dict[str, Any], path: str) -> dict[str, Any]:
    if "format" in schema:
        _only(schema, {"type", "format"}, path)
        if schema["format"] not in _FORMATS:
            raise _refusal(f"{path}.format can't be enforced, only {', '.join(_FORMATS)} can")
        return {"type": "string", "format": schema["format"]}
    _only(schema, {"type", "minLength", "maxLength"}, path)
    return {"type": "string", **_limits(schema, ("minLength", "maxLength"), path)}


def _limits(schema: dict[str, Any], names: tuple[str, str], path: str) -> dict[str, int]:
    limits = {name: schema[name] for name in names if name in schema}
    for name, limit in limits.items():
        if type(limit) is not int or not 0 <= limit <= _MAX_REPEATS:
            raise _refusal(f"{path}.{name} must be 0 to {_MAX_REPEATS}")
    if limits.get(names[0], 0) > limits.get(names[1], _MAX_REPEATS):
        raise _refusal(f"{path}.{names[0]} is over {names[1]}")
    return limits


def _object_at(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refusal(f"{path} is not an object")
    return value


def _only(schema: dict[str, Any], allowed: set[str], path: str) -> None:
    other = next((name for name in schema if name not in allowed), None)
    if other is not None:
        raise _refusal(f"the keyword '{other[:50]}' at {path} can't be enforced there")


def _refusal(why: str) -> InvalidRequest:
    return invalid.invalid_value(_FIELD, why)

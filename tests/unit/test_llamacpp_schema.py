"""From response_format to a grammar, and what a grammar lets through."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny_gguf

from engine.llamacpp import schema
from engine.llamacpp.grammar import BadGrammarError, Grammar
from engine.llamacpp.vocabulary import Vocabulary
from engine.sampling import JsonSchema, ResponseFormat
from haywain.errors import InvalidRequest


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[Vocabulary]:
    """Give a vocabulary whose first 256 tokens are the bytes."""
    vocabulary = Vocabulary.load(tiny_gguf.tiny_gguf())
    yield vocabulary
    vocabulary.close()


def gbnf(wanted: Any) -> str:
    """Make the grammar of a schema."""
    return schema.gbnf(ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=wanted)))


def takes(vocabulary: Vocabulary, grammar: str, text: str) -> bool:
    """Tell whether a grammar lets a whole text through and then lets it end."""
    state = Grammar(vocabulary, grammar)
    for byte in text.encode():
        if not state.permits(byte):
            return False
        state.accept(byte)
    return state.permits(tiny_gguf.EOS)


PERSON = {
    "$defs": {"value": {"type": ["integer", "null"]}, "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    "title": "Person",
    "type": "object",
    "properties": {
        "description": {"type": "string", "description": "a property that is called like a note", "minLength": 1, "maxLength": 3},
        "age": {"$ref": "#/$defs/value"},
        "tags": {"type": "array", "items": {"enum": ["a", "ü"]}, "maxItems": 2},
        "born": {"type": "string", "format": "date"},
        "chain": {"$ref": "#/$defs/node"},
        "any": {},
    },
    "required": ["description", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "text",
    [
        '{"description":"abc","age":3}',
        '{"description": "é","age": null,"tags":["a","ü"]}',
        '{"description":"a","age":-12,"born":"2024-02-29"}',
        '{"description":"a","age":0,"chain":{"next":{"next":{}}}}',
        '{"description":"a","age":0,"any":[1,{"x":"y"},true]}',
    ],
)
def test_what_fits_the_schema_is_let_through(vocabulary: Vocabulary, text: str) -> None:
    """Definitions, recursion, enums, formats, limits, free values, and names that look like keywords or rules."""
    json.loads(text)
    assert takes(vocabulary, gbnf(PERSON), text)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"description":"abcd","age":3}',
        '{"description":"","age":3}',
        '{"description":"a","age":"3"}',
        '{"description":"a","age":3,"tags":["b"]}',
        '{"description":"a","age":3,"tags":["a","a","a"]}',
        '{"description":"a","age":3,"other":1}',
        '{"description":"\n","age":3}',
        '{"description":"a","age":3',
        '{"description":"a","age":3} x',
    ],
)
def test_what_does_not_fit_is_not(vocabulary: Vocabulary, text: str) -> None:
    """Each breaks one rule of the schema, or of JSON."""
    assert not takes(vocabulary, gbnf(PERSON), text)


@pytest.mark.parametrize("text", ["ü", "a\nb", "a\\b", 'q"q', "😀", "\u2028", "\x7f", "a/b", "root", "\\n"])
def test_names_and_values_of_any_characters_are_followed(vocabulary: Vocabulary, text: str) -> None:
    """Quotes, backslashes, control characters and others in names and fixed values come out as JSON writes them."""
    grammar = gbnf({"type": "object", "properties": {text: {"enum": [text, {text: text}]}}, "required": [text]})
    for value in (text, {text: text}):
        assert takes(vocabulary, grammar, json.dumps({text: value}, ensure_ascii=False))


def test_json_object_means_any_object(vocabulary: Vocabulary) -> None:
    """An object of anything, and nothing but an object."""
    grammar = schema.gbnf(ResponseFormat(type="json_object"))
    assert takes(vocabulary, grammar, '{"a": [1.5e3, "x\\n", null], "b": {}}')
    assert not takes(vocabulary, grammar, "[1]")
    assert schema.gbnf(ResponseFormat(type="text")) == schema.gbnf(None) == ""


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"type": "integer", "minimum": 1}, "'minimum'"),
        ({"type": "string", "pattern": "^a$"}, "'pattern'"),
        ({"type": "string", "format": "email"}, "format"),
        ({"type": "string", "maxLength": 100_000}, "maxLength"),
        ({"type": "string", "minLength": 5, "maxLength": 4}, "minLength"),
        ({"type": "array", "items": {}, "uniqueItems": True}, "'uniqueItems'"),
        ({"type": "object", "required": ["a"]}, "requires 'a'"),
        ({"anyOf": []}, "schema.anyOf is not a list of schemas"),
        ({"anyOf": [{"type": "string"}], "minLength": 3}, "'minLength'"),
        ({"allOf": [{"type": "string"}]}, "'allOf'"),
        ({"enum": []}, "no values"),
        ({"properties": {"": {"type": "null"}}}, "without a name"),
        ({"$ref": "#/$defs/none"}, "definitions"),
        ({"$ref": "https://example.com/schema.json"}, "definitions"),
        ({"type": "date"}, "type 'date', which is none of object, array"),
        ({"type": "object", "properties": {"a": 3}}, "not an object"),
        ({"properties": {str(n): {"type": "null"} for n in range(1_500)}}, "optional"),
        ({"description": "x" * 70_000}, "70018 bytes"),
    ],
)
def test_what_a_grammar_cannot_hold_is_refused_by_name(bad: dict[str, Any], reason: str) -> None:
    """A keyword that would be passed over, and sizes that would blow up, are a 400 that names response_format and the reason."""
    with pytest.raises(InvalidRequest, match=reason) as raised:
        gbnf(bad)
    assert (raised.value.param, raised.value.code) == ("response_format", "invalid_value")


def test_deep_schemas_are_refused() -> None:
    """Nesting is bounded."""
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidRequest, match="nested"):
        gbnf(deep)


def test_a_schema_may_be_one_of_its_definitions(vocabulary: Vocabulary) -> None:
    """A recursive model's schema is a reference and nothing else beside its definitions."""
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}, "required": ["next"]}
    assert takes(vocabulary, gbnf({"$defs": {"Node": node}, "$ref": "#/$defs/Node"}), '{"next":{"next":null}}')


def test_a_definition_that_is_itself_is_a_bad_grammar(vocabulary: Vocabulary) -> None:
    """A rule that begins with itself is refused by the library, with a reason."""
    with pytest.raises(BadGrammarError, match="recursion"):
        Grammar(vocabulary, gbnf({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}))


def test_a_token_that_does_not_fit_never_reaches_the_library(vocabulary: Vocabulary) -> None:
    """The library would end the process: ours is a ValueError, and the grammar stays where it was."""
    state = Grammar(vocabulary, gbnf(PERSON))
    for token in (ord("x"), -1, 10**6, tiny_gguf.EOS):
        with pytest.raises(ValueError, match="token"):
            state.accept(token)
    state.accept(ord("{"))
    state.close()
    state.close()


def test_random_walks_make_json_of_the_schema(vocabulary: Vocabulary) -> None:
    """Whatever is chosen among what fits, the end is JSON with the required members."""
    chance = random.Random(4)
    everything = np.arange(vocabulary.size)
    for _ in range(20):
        state, text = Grammar(vocabulary, gbnf(PERSON | {"properties": PERSON["properties"] | {"any": {"type": "null"}}})), b""
        while len(text) < 2_000:
            fitting = state.permitted(everything).tolist()
            # Towards the end: what closes is likelier to be taken.
            token = chance.choice([one for one in fitting if one in (tiny_gguf.EOS, *b'"}]')] or fitting)
            if vocabulary.ends(token):
                break
            state.accept(token)
            text += vocabulary.piece(token)
        assert {"description", "age"} <= json.loads(text.decode("utf-8", "replace")).keys()

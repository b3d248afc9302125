"""The requests of /v1/completions and /v1/embeddings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.completion import CompletionRequest, EmbeddingRequest, parse_completion, parse_embedding
from haywain.errors import InvalidRequest
from haywain.openai import COMPLETION_FIELDS, EMBEDDING_FIELDS


def test_the_structs_have_exactly_the_fields_of_the_wire() -> None:
    """What the kernel lists for an endpoint is what its struct takes."""
    assert set(CompletionRequest.__struct_fields__) == COMPLETION_FIELDS
    assert set(EmbeddingRequest.__struct_fields__) == EMBEDDING_FIELDS


@pytest.mark.parametrize(
    ("given", "inputs"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_inputs_are_texts_or_token_ids(given: Any, inputs: list[Any]) -> None:
    """A string, strings, token ids and lists of them all become a list of inputs, for both endpoints."""
    assert parse_completion(json.dumps({"model": "m", "prompt": given}).encode()).prompts == inputs
    assert parse_embedding(json.dumps({"model": "m", "input": given}).encode()).inputs == inputs


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({}, "missing_required_parameter", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": [[]]}, "invalid_value", "prompt"),
        ({"prompt": ["a", 1]}, "invalid_value", "prompt"),
        ({"prompt": [-1]}, "invalid_value", "prompt[0]"),
        ({"prompt": 1}, "invalid_type", "prompt"),
        ({"prompt": ["a"] * 2_049}, "invalid_value", "prompt"),
        ({"prompt": "a", "echo": 1}, "invalid_type", "echo"),
        ({"prompt": "a", "suffix": "b"}, "unsupported_parameter", "suffix"),
        ({"prompt": "a", "frob": 1}, "unknown_parameter", "frob"),
        ({"prompt": "a", "stop": [""]}, "invalid_value", "stop"),
    ],
)
def test_a_bad_completion_request_is_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    """Each kind of bad field has its code and its path."""
    with pytest.raises(InvalidRequest) as caught:
        parse_completion(json.dumps({"model": "m", **fields}).encode())
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": ""}, "invalid_value", "input"),
        ({"input": "a", "dimensions": 0}, "invalid_value", "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "invalid_value", "encoding_format"),
        ({"input": "a", "temperature": 1}, "unknown_parameter", "temperature"),
    ],
)
def test_a_bad_embedding_request_is_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    """Each kind of bad field has its code and its path."""
    with pytest.raises(InvalidRequest) as caught:
        parse_embedding(json.dumps({"model": "m", **fields}).encode())
    assert (caught.value.code, caught.value.param) == (code, param)


def test_what_a_backend_does_not_honour_is_refused() -> None:
    """Fields outside the honoured set are refused by name; the required ones always pass."""
    with pytest.raises(InvalidRequest, match="'seed'"):
        parse_completion(b'{"model":"m","prompt":"a","seed":1}', frozenset({"n"}))
    assert parse_embedding(b'{"model":"m","input":"a"}', frozenset()).inputs == ["a"]

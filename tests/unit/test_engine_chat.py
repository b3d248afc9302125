"""The chat request: what is taken, what is refused, and in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.chat import ChatRequest, parse_chat
from haywain.errors import InvalidRequest
from haywain.openai import CHAT_FIELDS

USER = {"role": "user", "content": "hi"}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def refused(data: bytes, honoured: frozenset[str] = CHAT_FIELDS) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(data, honoured)
    return caught.value


def test_every_honoured_field_is_taken() -> None:
    """A body with every field of CHAT_FIELDS is decoded, and the struct has exactly those fields."""
    request = parse_chat(
        body(
            max_tokens=5, max_completion_tokens=7, temperature=2, top_p=0.5, top_k=-1, min_p=0, stop=["a", "b"], seed=3,
            presence_penalty=-2, frequency_penalty=2, repeat_penalty=1.1, logit_bias={"12": -100}, logprobs=True, top_logprobs=20,
            n=2, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": True}},
            chat_template_kwargs={"enable_thinking": False}, user="u", metadata={"k": "v"}, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert set(ChatRequest.__struct_fields__) == CHAT_FIELDS
    assert (request.max_output, request.stops, request.choices, request.include_usage) == (7, ["a", "b"], 2, True)


def test_a_null_counts_as_not_given() -> None:
    """A null optional field is the same as an absent one, even when the backend doesn't honour it."""
    request = parse_chat(body(**dict.fromkeys(CHAT_FIELDS - {"model", "messages"})), frozenset({"model", "messages"}))
    assert request == parse_chat(body())
    assert (request.max_output, request.stops, request.choices, request.include_usage) == (None, [], 1, False)


def test_roles_and_parts_become_template_messages() -> None:
    """Templates get dicts of plain text: parts joined by line feeds, developer as system, tool calls kept."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
        {"role": "user", "content": "ünï\u2028", "name": "Ann"},
    ]
    assert parse_chat(json.dumps({"model": "m", "messages": messages}).encode()).for_template() == [
        {"role": "system", "content": "a\nb"},
        {"role": "assistant", "content": "", "tool_calls": [{**call, "function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
        {"role": "user", "content": "ünï\u2028", "name": "Ann"},
    ]


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, 2**63, 2**64, -(2**70), 10**40])
def test_a_seed_keeps_all_its_digits(seed: int) -> None:
    """Seeds within and beyond 64 bits arrive unchanged."""
    assert parse_chat(body(seed=seed)).seed == seed


TOOL = {"type": "function", "function": {"name": "f"}}
CASES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"messages": [{"rolez": "user"}]}, "unknown_parameter", "messages[0].rolez", "messages[0].rolez"),
    ({"messages": [USER, {"content": "x"}]}, "missing_required_parameter", "messages[1].role", "messages[1].role"),
    ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content", "messages[0].content"),
    ({"messages": [{"role": "king", "content": ""}]}, "invalid_value", "messages[0].role", "'king'"),
    ({"messages": [{"role": "user", "content": 5}]}, "invalid_type", "messages[0].content", "an integer"),
    ({"messages": "hi"}, "invalid_type", "messages", "expected an array, but got a string instead"),
    ({"messages": []}, "invalid_value", "messages", "expected >= 1 elements, but got 0"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "invalid_value", "messages[0].content[0].type", "'text'",
    ),
    ({"temperature": 2.5}, "invalid_value", "temperature", "<= 2.0, but got 2.5"),
    ({"temperature": "hot"}, "invalid_type", "temperature", "expected a number, but got a string instead"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens", ">= 1, but got 0"),
    ({"max_tokens": 1.5}, "invalid_type", "max_tokens", "expected an integer, but got a number"),
    ({"max_tokens": 2**31}, "invalid_value", "max_tokens", "2147483648"),
    ({"max_tokens": 2**80}, "invalid_value", "max_tokens", "1208925819614629174706176"),
    ({"top_k": -(2**70)}, "invalid_value", "top_k", ">= -1"),
    ({"top_logprobs": 21, "logprobs": True}, "invalid_value", "top_logprobs", "<= 20, but got 21"),
    ({"top_logprobs": 2}, "invalid_value", "top_logprobs", "'logprobs'"),
    ({"stop": ["a"] * 5}, "invalid_value", "stop", "expected <= 4 elements, but got 5"),
    ({"stop": ["a", ""]}, "invalid_value", "stop", "0"),
    ({"stop": ["a", 3]}, "invalid_type", "stop[1]", "expected a string"),
    ({"stream": 1}, "invalid_type", "stream", "expected a boolean"),
    ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options", "'stream'"),
    ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type", "'json_object'"),
    ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format.json_schema", "json_schema"),
    ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias", "'x'"),
    ({"logit_bias": {"1": 101}}, "invalid_value", "logit_bias", "<= 100.0, but got 101"),
    ({"logit_bias": {"1": 0, "2": -101, "3": "x"}}, "invalid_value", "logit_bias", ">= -100.0, but got -101"),
    ({"metadata": {"k": "v" * 513}}, "invalid_value", "metadata.k", "513"),
    ({"metadata": {"k": 1}}, "invalid_type", "metadata", "a value of 'metadata': expected a string"),
    ({"frobnicate": 1}, "unknown_parameter", "frobnicate", "frobnicate"),
    ({"functions": []}, "unsupported_parameter", "functions", "functions"),
    ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function", "function"),
    ({"tools": [TOOL | {"type": "x"}]}, "invalid_value", "tools[0].type", "'function'"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "invalid_value", "tools[0].function.name", ""),
    ({"tools": [TOOL, TOOL]}, "invalid_value", "tools", "'f'"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, "invalid_value",
     "tools[0].function.parameters", "'array'"),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice", "'tools'"),
    ({"tools": [TOOL], "tool_choice": "sometimes"}, "invalid_value", "tool_choice", "'required'"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "invalid_value", "tool_choice", "'g'"),
    ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "invalid_value", "response_format", "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "invalid_value", "tools[0].function.strict",
     "tool_choice"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "code", "param", "says"), CASES, ids=[f"{c[1]}-{c[2]}-{i}" for i, c in enumerate(CASES)])
def test_a_bad_field_is_refused_by_name(fields: dict[str, Any], code: str, param: str, says: str) -> None:
    """Each kind of bad field has its code, its dotted path, and a message with the limit and what was measured."""
    error = refused(body(**fields))
    assert (error.code, error.param) == (code, param)
    assert says in error.message


def test_what_asks_for_nothing_is_as_if_it_were_absent() -> None:
    """Null in any field, and false in one that is known, though nobody honours it; all else in the body keeps its digits."""
    nothing = {"tools": None, "store": False, "parallel_tool_calls": False, "prompt": None, "whatever": None, "logprobs": False}
    honoured = frozenset({"seed"})
    assert parse_chat(body(seed=2**70, **nothing), honoured).seed == 2**70
    for field, value, code in (
        ("whatever", False, "unknown_parameter"), ("store", 0, "unsupported_parameter"), ("tools", [], "unsupported_parameter"),
        ("logprobs", True, "unsupported_parameter"),
    ):  # fmt: skip
        error = refused(body(**nothing | {field: value}), honoured)
        assert (error.code, error.param) == (code, field)
    assert refused(body(messages=None, tools=None)).param == "messages"


def test_what_a_backend_does_not_honour_is_refused() -> None:
    """A field that exists but isn't in the honoured set is refused, never ignored; model and messages always pass."""
    error = refused(body(temperature=1), frozenset({"max_tokens"}))
    assert (error.code, error.param) == ("unsupported_parameter", "temperature")
    assert parse_chat(body(max_tokens=3), frozenset({"max_tokens"})).max_output == 3


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b'{"model": NaN}', b'{"model":"\xff"}', b'{"model":"\\ud800"}', b"nul",
        b'{"model":"m","messages":[{"role":"user","content":""}],'
        b'"chat_template_kwargs":{"a":' + b"[" * 9_999 + b"]" * 9_999 + b"}}",
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(data: bytes) -> None:
    """Bytes that aren't JSON, or nest past the stack, are the caller's fault and not a crash."""
    assert refused(data).code == "invalid_json"


@pytest.mark.parametrize(("data", "param"), [(b"{}", "model"), (b'{"model":"m"}', "messages")])
def test_required_fields_are_named(data: bytes, param: str) -> None:
    """A body without model or messages names the missing one."""
    error = refused(data)
    assert (error.code, error.param) == ("missing_required_parameter", param)


@pytest.mark.parametrize("number", ["9" * 5000, "1e999"])
def test_numbers_past_every_limit_are_refused(number: str) -> None:
    """A number that no type holds is the caller's fault and not a crash."""
    assert refused(body(temperature=0)[:-1] + b', "seed": ' + number.encode() + b"}").code in {"invalid_value", "invalid_type"}


def test_a_body_that_is_no_object_is_refused() -> None:
    """An array as body is a type error of the body itself."""
    error = refused(b"[]")
    assert (error.code, error.param) == ("invalid_type", "")

"""The wire's JSON: ASCII only, the same value, nulls present."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from haywain import openai

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


@given(JSON)
@example("line\u2028 \u2029 \u0085 ends")
@example({"ключ": ["😀", "\U0010ffff", "\ue000", "a\u0301", "\x7f", '"\\\n\0']})
def test_ascii_json_is_the_same_value(value: Any) -> None:
    """Escaped JSON is ASCII and decodes to the same value, however it was written before."""
    for text in (json.dumps(value, ensure_ascii=False), json.dumps(value, ensure_ascii=True), json.dumps(value, indent=1)):
        escaped = openai.ascii_json(text.encode())
        assert escaped.isascii()
        assert json.loads(escaped) == value
        assert openai.ascii_json(escaped) == escaped


@given(JSON)
def test_encode_is_ascii_and_exact(value: Any) -> None:
    """What leaves as JSON is ASCII on one line and has the same value."""
    encoded = openai.encode(value)
    assert encoded.isascii()
    assert len(encoded.splitlines()) == 1
    assert json.loads(encoded) == value


def test_lines_stay_whole_for_those_who_split_on_unicode() -> None:
    """A client that splits on every line end Unicode knows still sees one line."""
    encoded = openai.encode({"content": "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"})
    assert len(encoded.decode().splitlines()) == 1


def test_error_bodies_have_all_four_members() -> None:
    """The envelope's members are all there, null where there is nothing to say."""
    body = json.loads(openai.error_body("Größe", code="", param="metadata.ü"))
    assert body == {"error": {"message": "Größe", "type": "invalid_request_error", "param": "metadata.ü", "code": None}}


def test_completions_have_their_nulls_and_whole_numbers() -> None:
    """A completion's empty members are null, not absent, and its counts are integers."""
    answer = openai.ChatCompletion(
        id="c",
        created=1,
        model="m",
        choices=[openai.ChatChoice(index=0, message=openai.ChatMessage(content="é"), finish_reason="stop")],
        usage=openai.CompletionUsage.of(prompt=2**53 + 1, completion=3, cached=1),
    )
    body = json.loads(openai.encode(answer))
    assert body["object"] == "chat.completion"
    message = {"role": "assistant", "content": "é", "reasoning_content": None, "refusal": None}
    assert body["choices"] == [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}]
    assert body["usage"] == {
        "prompt_tokens": 2**53 + 1,
        "completion_tokens": 3,
        "total_tokens": 2**53 + 4,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert body["system_fingerprint"] is None


def test_deltas_carry_only_what_they_add() -> None:
    """A chunk's delta has no members for what it doesn't add."""
    chunk = openai.ChatChunk(
        id="c", created=1, model="m", choices=[openai.ChatChunkChoice(index=0, delta=openai.ChatDelta(content="x"))]
    )
    body = json.loads(openai.encode(chunk))
    assert body["choices"] == [{"index": 0, "delta": {"content": "x"}, "finish_reason": None, "logprobs": None}]
    assert body["usage"] is None

"""What the echo backend answers."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import pytest

from engine import echo_text
from haywain import errors


def chat(text: str, *, stream: bool = False, **fields: Any) -> tuple[echo_text.Outcome, Any]:
    """Answer one user message; the outcome and its decoded body."""
    body = {"model": "echo", "messages": [{"role": "user", "content": text}], **fields}
    outcome = echo_text.chat(1, json.dumps(body).encode(), stream)
    return outcome, json.loads(outcome.result.body)


@pytest.mark.parametrize("text", ["", " ", "a", " a  b\n", "\t\n a", "é\u2028x", "a b"])
def test_words_joined_are_the_text(text: str) -> None:
    """Pieces lose nothing, and there are as many as there are words (one for space alone)."""
    pieces = echo_text.words(text)
    assert "".join(pieces) == text
    assert len(pieces) == max(len(text.split()), min(len(text), 1))


@pytest.mark.parametrize(
    ("text", "stops", "most", "expected"),
    [
        ("a b c", [], None, ("a b c", "stop", 3)),
        ("a b c", [], 3, ("a b c", "stop", 3)),
        ("a b c", [], 2, ("a b", "length", 2)),
        ("a b STOP c", ["STOP"], None, ("a b ", "stop", 2)),
        ("a b STOP c", ["STOP", "b"], None, ("a ", "stop", 1)),
        ("a b STOP c", ["STOP"], 1, ("a", "length", 1)),
        ("a b", ["a"], 1, ("", "stop", 0)),
    ],
)
def test_an_answer_is_cut_as_an_engine_would_have_stopped(
    text: str, stops: list[str], most: int | None, expected: tuple[str, str, int]
) -> None:
    """The earliest stop string or the limit ends it, whichever comes first."""
    assert echo_text.cut(text, stops, most) == expected


def test_the_last_user_message_is_repeated() -> None:
    """System and assistant messages are counted and not repeated."""
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "first"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "hm"},
    ]
    outcome = echo_text.chat(1, json.dumps({"model": "echo", "messages": messages}).encode(), stream=False)
    body = json.loads(outcome.result.body)
    assert body["choices"][0]["message"]["content"] == "one\ntwo"
    assert (outcome.result.usage.input_tokens, outcome.result.usage.output_tokens) == (6, 2)


@pytest.mark.parametrize("text", ["", "one", "one two  three ", "é\n\u2028"])
@pytest.mark.parametrize("most", [None, 1, 3])
def test_a_plain_request_is_answered_as_any_other(text: str, most: int | None) -> None:
    """The short way for a message and a length gives what the long way gives: a field that asks for nothing changes nothing."""
    (plain, body), (other, same) = chat(text, max_tokens=most), chat(text, max_tokens=most, temperature=0, user="u")
    assert (plain.text, plain.tokens, plain.deltas, plain.result.usage) == (other.text, other.tokens, [], other.result.usage)
    assert {**body, "id": ""} == {**same, "id": "", "created": body["created"]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0}, {"max_tokens": True}, {"max_tokens": "1"}, {"model": 1}, {"messages": []}, {"tools": [1]},
        {"messages": [{"role": "user"}]}, {"messages": [{"role": "nobody", "content": ""}]}, {"unknown": 1},
        {"messages": [{"role": "user", "content": 1}]}, {"messages": [{"role": "user", "content": "", "unknown": 1}]},
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_however_plain(wrong: dict[str, Any]) -> None:
    """The short way takes nothing that the long way refuses."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "a"}], **wrong}
    with pytest.raises(errors.InvalidRequest):
        echo_text.chat(1, json.dumps(body).encode(), stream=False)


def test_n_choices_are_counted_n_times() -> None:
    """`n` gives as many choices, and usage counts each one's words."""
    outcome, body = chat("a b c", n=3, max_tokens=2, seed=2**63 - 1)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == outcome.tokens == outcome.result.usage.output_tokens == 6
    assert outcome.result.seed == 2**63 - 1


def test_a_seed_past_64_bits_is_taken_and_not_reported() -> None:
    """The result's seed has 64 bits; a larger one leaves it unset."""
    outcome, _ = chat("a", seed=2**63)
    assert not outcome.result.HasField("seed")


def test_chunks_of_each_choice_join_to_its_text() -> None:
    """A stream says for each choice its role, its text and its end; usage only when asked for."""
    outcome, body = chat("a  b\u2028", stream=True, n=2)
    chunks = [json.loads(delta) for delta in outcome.deltas]
    assert all(delta.isascii() for delta in outcome.deltas)
    for choice in body["choices"]:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(chunk["delta"].get("content", "") for chunk in own) == choice["message"]["content"]
        assert [chunk["finish_reason"] for chunk in own] == [None] * (len(own) - 1) + ["stop"]
    assert all(chunk["usage"] is None for chunk in chunks)


def test_completions_repeat_each_prompt() -> None:
    """Each prompt, text or token ids, gets `n` choices in order; a stream's pieces join to them."""
    body = {
        "model": "echo",
        "prompt": ["a b c", "d"],
        "n": 2,
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    outcome = echo_text.completion(1, json.dumps(body).encode(), stream=True)
    answer = json.loads(outcome.result.body)
    assert answer["object"] == "text_completion"
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in answer["choices"]] == [
        (0, "a b", "length"), (1, "a b", "length"), (2, "d", "stop"), (3, "d", "stop"),
    ]  # fmt: skip
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (4, 6)
    *chunks, last = [json.loads(delta) for delta in outcome.deltas]
    pieces = [chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"][0]["index"] == 1]
    assert "".join(pieces) == "a b"
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 10)
    outcome = echo_text.completion(1, b'{"model":"echo","prompt":[1,22]}', stream=False)
    assert json.loads(outcome.result.body)["choices"][0]["text"] == "1 22"


def test_embeddings_are_unit_vectors_of_the_text_alone() -> None:
    """Equal texts have equal vectors, others don't; base64 holds the same numbers as 32-bit floats."""
    body = {"model": "echo", "input": ["a", "b", "a"], "dimensions": 8}
    answer = json.loads(echo_text.embedding(1, json.dumps(body).encode(), stream=False).result.body)
    one, other, again = (entry["embedding"] for entry in answer["data"])
    assert one == again != other
    assert math.isclose(sum(number * number for number in one), 1)
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    body = {"model": "echo", "input": "a", "dimensions": 8, "encoding_format": "base64"}
    answer = json.loads(echo_text.embedding(1, json.dumps(body).encode(), stream=False).result.body)
    unpacked = struct.unpack("<8f", base64.b64decode(answer["data"][0]["embedding"]))
    assert all(math.isclose(left, right, rel_tol=1e-6) for left, right in zip(unpacked, one, strict=True))

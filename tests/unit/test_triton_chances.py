"""Log-probabilities of Triton's vLLM backend, told with the text that they belong to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.triton.chances import Chances


def told(*tokens: str | None, **more: Any) -> bytes:
    """Write a response's: each token the chosen one, of rank 2, with one that is likelier."""
    positions = [
        {"9": {"logprob": -2, "rank": 2, "decoded_token": token} | more, "1": {"logprob": -1, "rank": 1}} for token in tokens
    ]
    return json.dumps(positions).encode()


def tokens(of: dict[str, Any]) -> list[str]:
    """Give the tokens of a chat's."""
    return [entry["token"] for entry in of["content"]]


def test_they_come_with_the_text_that_they_make() -> None:
    """A token is told when its text begins in what is shown; what may be a stop string waits, what one cuts off is never told."""
    chances = Chances(0)
    chances.add(told("one", " two", " three"))
    assert tokens(chances.of("one t", chat=True)) == ["one", " two"]
    assert tokens(chances.of("", chat=True)) == []
    assert tokens(chances.of("wo", chat=True)) == []
    assert tokens(chances.whole("one two", chat=True)) == ["one", " two"]


def test_a_token_without_text_is_told_with_the_one_before() -> None:
    """Half a character has no text of its own; the token at the end has none, too."""
    chances = Chances(1)
    chances.add(told("a", "", None, "b"))
    assert [entry["token"] for entry in chances.of("a", chat=True)["content"]] == ["a", "", ""]
    assert chances.of("b", chat=False)["text_offset"] == [1]


def test_the_likeliest_are_told_by_rank() -> None:
    """As many as were asked for, the best first, whichever way the object lists them; the chosen one is its first member."""
    chances = Chances(2)
    chances.add(told("a"))
    (entry,) = chances.of("a", chat=True)["content"]
    assert (entry["logprob"], [one["logprob"] for one in entry["top_logprobs"]]) == (-2, [-1, -2])


@pytest.mark.parametrize("given", [None, float("-inf"), float("nan")])
def test_a_number_that_is_none_is_the_least(given: float | None) -> None:
    """What is impossible is told as OpenAI tells it: Python, which writes these, has an infinity that JSON has not."""
    chances = Chances(0)
    chances.add(told("a", logprob=given))
    assert chances.of("a", chat=True)["content"][0]["logprob"] == -9999.0


@pytest.mark.parametrize("given", [b"", b"null", b"[]", b"[{}]"])
def test_none_are_none(given: bytes) -> None:
    """A response without any adds none."""
    chances = Chances(0)
    chances.add(given)
    assert chances.whole("a", chat=True)["content"] == []


@pytest.mark.parametrize("given", [b"[", b"[1]", b'[{"1":{"logprob":"x"}}]', b"\xff", b"[" * 100_000])
def test_what_cannot_be_read_is_told(given: bytes) -> None:
    """Anything else is an error of the response, not of the engine."""
    with pytest.raises(ValueError, match="log-probabilities"):
        Chances(0).add(given)


def test_a_request_that_is_sent_again_begins_anew() -> None:
    """What a first try told is forgotten."""
    chances = Chances(0)
    chances.add(told("a"))
    chances.forget()
    chances.add(told("b"))
    assert tokens(chances.whole("b", chat=True)) == ["b"]

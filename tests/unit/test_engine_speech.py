"""Reasoning, content and tool calls told apart, however the text is cut."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from engine.speech import DIALECTS, Manner, Part, Speech, dialect_of

NAMES = frozenset({"weather", "add"})
HERMES = Manner(DIALECTS["hermes"], NAMES)
MISTRAL = Manner(DIALECTS["mistral"], NAMES)
LLAMA = Manner(DIALECTS["llama"], NAMES)
THINKS = Manner(thinks=True)
BOTH = Manner(DIALECTS["hermes"], NAMES, thinks=True)
PARIS = Part("call", '{"city": "Paris"}', "weather")
SUM = Part("call", '{"a": 1, "b": [2, {"c": "</tool_call"}]}', "add")
CASES: list[tuple[Manner, str, list[Part]]] = [
    (Manner(), "  plain <think> {text} ", [Part("content", "  plain <think> {text} ")]),
    (HERMES, "no call at all\n", [Part("content", "no call at all\n")]),
    (HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>', [PARIS]),
    (
        HERMES,
        'Let me see.\n<tool_call>\n{"name":"weather","arguments":{"city":"Paris"}}\n</tool_call>\n'
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "</tool_call"}]}}</tool_call>',
        [Part("content", "Let me see."), PARIS, SUM],
    ),
    (HERMES, '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}', [PARIS]),
    (HERMES, "<tool_call>not JSON</tool_call> then", [Part("content", "<tool_call>not JSON</tool_call> then")]),
    (HERMES, "cut off <tool_call>{\"name\": \"wea", [Part("content", "cut off<tool_call>{\"name\": \"wea")]),
    (HERMES, "a < b <tool <tool_c", [Part("content", "a < b <tool <tool_c")]),
    (HERMES._replace(most_calls=1), '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>' * 2, [PARIS]),
    (MISTRAL, '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "add", "arguments": {}}]',
     [PARIS, Part("call", "{}", "add")]),
    (MISTRAL, '[TOOL_CALLS]weather{"city": "Paris"}', [PARIS]),
    (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "Paris"}', [PARIS]),
    (MISTRAL, "It is sunny [TOOL_", [Part("content", "It is sunny [TOOL_")]),
    (LLAMA, '{"name": "weather", "parameters": {"city": "Paris"}}', [PARIS]),
    (LLAMA, '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "add", "parameters": {}}',
     [PARIS, Part("call", "{}", "add")]),
    (LLAMA, '{"name": "other", "parameters": {}}', [Part("content", '{"name": "other", "parameters": {}}')]),
    (LLAMA, '{"just": "JSON"} and text', [Part("content", '{"just": "JSON"} and text')]),
    (LLAMA, "text {", [Part("content", "text {")]),
    (THINKS, "<think>\nfirst, then\n</think>\n\nThe answer", [Part("reasoning", "first, then"), Part("content", "The answer")]),
    (THINKS, "no thoughts", [Part("content", "no thoughts")]),
    (THINKS, "<think>never ends", [Part("reasoning", "never ends")]),
    (THINKS._replace(opened=True), "so</think>yes", [Part("reasoning", "so"), Part("content", "yes")]),
    (THINKS, "<thinking>is a word", [Part("content", "<thinking>is a word")]),
    (
        BOTH,
        '<think>call it</think>\n<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>',
        [Part("reasoning", "call it"), PARIS],
    ),
]  # fmt: skip


def joined(parts: list[Part]) -> list[Part]:
    """Put pieces of a kind together."""
    whole: list[Part] = []
    for part in parts:
        if whole and part.kind == whole[-1].kind != "call":
            whole[-1] = part._replace(text=whole[-1].text + part.text)
        else:
            whole.append(part)
    return whole


def say(manner: Manner, pieces: list[str]) -> list[Part]:
    """Say something piece by piece."""
    speech = Speech(manner)
    return joined([part for piece in pieces for part in speech.add(piece)] + speech.close())


@pytest.mark.parametrize(("manner", "text", "parts"), CASES)
def test_an_answer_is_told_apart(manner: Manner, text: str, parts: list[Part]) -> None:
    """Whole, character by character, or cut at random, it comes out the same."""
    assert say(manner, [text]) == parts
    assert say(manner, list(text)) == parts
    chance = random.Random(text)
    for _ in range(20):
        edges = sorted({0, len(text), *(chance.randrange(len(text) + 1) for _ in range(3))})
        assert say(manner, [text[start:end] for start, end in itertools.pairwise(edges)]) == parts


def test_content_comes_as_soon_as_it_is_certain() -> None:
    """What can't be the beginning of a call isn't held back, nor is a call that is complete."""
    speech = Speech(HERMES)
    assert speech.add("Hello wor") == [Part("content", "Hello wor")]
    assert speech.add("ld <too") == [Part("content", "ld")]
    assert speech.add("l") == []
    assert speech.add("s> ") == [Part("content", " <tools>")]
    assert speech.add('<tool_call>{"name": "add", "arguments": {}}') == []
    assert speech.add("</tool_call>") == [Part("call", "{}", "add")]


def test_a_template_shows_its_dialect() -> None:
    """By what templates write around calls."""
    assert dialect_of("… <tool_call>\n …") is DIALECTS["hermes"]
    assert dialect_of("{{- '[TOOL_CALLS] [' }}") is DIALECTS["mistral"]
    assert dialect_of("""{{- '"parameters": ' }}""") is DIALECTS["llama"]
    assert dialect_of("{{ message.content }}") is None


def test_arguments_are_json_as_it_was_meant() -> None:
    """Characters beyond ASCII stay as they are, and numbers keep their kind."""
    (part,) = say(HERMES, ['<tool_call>{"name": "add", "arguments": {"a": 1.0, "b": 1, "c": "\u00fc"}}</tool_call>'])
    assert part.text == '{"a": 1.0, "b": 1, "c": "\u00fc"}'
    assert json.loads(part.text)["c"] == "\u00fc"

"""What the echo backend answers: pure functions from a request body to an outcome. Tokens are words: what `str.split` finds."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from engine import answers
from engine.chat import ChatRequest, parse_chat
from haywain import openai
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["CHAT_FIELDS", "Outcome", "chat", "cut", "words"]

CHAT_FIELDS: Final = openai.CHAT_FIELDS - {"logprobs", "top_logprobs", "logit_bias", "response_format", "chat_template_kwargs"}
"""what is honoured; sampling fields are, trivially"""

_WORDS: Final = re.compile(r"\s*\S+(?:\s+\Z)?|\s+\Z")


class Outcome(msgspec.Struct, gc=False):
    """What a sequence comes to: known when it arrives, told when its time is up."""

    text: str
    """of the prompt: what failure injection looks at"""
    tokens: int
    """generated"""
    deltas: list[bytes]
    result: pb.SequenceResult


def words(text: str) -> list[str]:
    """Cut a text into pieces of one word with the space before it; joined they are the text."""
    return _WORDS.findall(text)


def cut(text: str, stops: list[str], most: int | None) -> tuple[str, str, int]:
    """Shorten an answer as an engine would have stopped: text, finish_reason, words."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    if places:
        text = text[: min(places)]
    count = len(text.split())
    if most is None or count <= most:
        return text, "stop", count
    return "".join(words(text)[:most]), "length", most


def chat(sequence_id: int, body: bytes, stream: bool) -> Outcome:
    """Answer /v1/chat/completions. Raises InvalidRequest."""
    request = parse_chat(body, CHAT_FIELDS)
    messages = request.messages
    prompt = "\n".join([message.text for message in messages])
    last, prompt_words = messages[-1].text, len(prompt.split())
    for message in messages:
        if message.role == "user":
            last = message.text
    content, reason, count = cut(last, request.stops, request.max_output)
    many = request.choices
    usage = openai.CompletionUsage.of(prompt_words, count * many)
    answer = answers.ChatAnswer(request.model)
    choices = [
        openai.ChatChoice(index=index, message=openai.ChatMessage(content=content), finish_reason=reason) for index in range(many)
    ]
    result = answers.answer_result(sequence_id, answer.whole(choices, usage), usage)
    if request.seed is not None and -(2**63) <= request.seed < 2**63:
        result.seed = request.seed
    deltas = _chunks(answer, request, choices, usage) if stream else []
    return Outcome(prompt, count * many, deltas, result)


def _chunks(
    answer: answers.ChatAnswer, request: ChatRequest, choices: list[openai.ChatChoice], usage: openai.CompletionUsage
) -> list[bytes]:
    chunks = []
    for choice in choices:
        chunks.append(answer.role_chunk(choice.index))
        chunks += [answer.content_chunk(word, choice.index) for word in words(choice.message.content or "")]
        chunks.append(answer.final_chunk(choice.finish_reason, choice.index))
    if request.include_usage:
        chunks.append(answer.usage_chunk(usage))
    return chunks

"""What the echo backend answers: pure functions from a request body to an outcome. Tokens are words: what `str.split` finds."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import struct
from typing import Final, Literal

import msgspec

from engine import answers, invalid
from engine.chat import ChatRequest, parse_chat
from engine.completion import Input, parse_completion, parse_embedding
from engine.sampling import Count
from haywain import openai
from haywain.engine.v1 import engine_pb2 as pb

__all__ = [
    "CHAT_FIELDS", "COMPLETION_FIELDS", "EMBEDDING_FIELDS", "Outcome", "chat", "completion", "cut", "embedding", "vector", "words",
]  # fmt: skip

_REFUSED: Final = openai.TOOL_FIELDS | {
    "logprobs", "top_logprobs", "logit_bias", "response_format", "chat_template_kwargs", "echo",
}  # fmt: skip
CHAT_FIELDS: Final = openai.CHAT_FIELDS - _REFUSED
COMPLETION_FIELDS: Final = openai.COMPLETION_FIELDS - _REFUSED
EMBEDDING_FIELDS: Final = openai.EMBEDDING_FIELDS
"""what is honoured; sampling fields are, trivially"""

_DIMENSIONS: Final = 64

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
    if most is None:
        return text, "stop", len(text.split())
    pieces = text.split(None, most)
    if len(pieces) <= most:
        return text, "stop", len(pieces)
    return text[: len(text) - len(pieces[most])].rstrip(), "length", most


def _room(prompt: int, wanted: int | None, context: int | None, param: str) -> int | None:
    if context is None:
        return wanted
    if prompt >= context:
        raise invalid.context_exceeded(prompt, None, context, param)
    return min(wanted or context, context - prompt)


class _Question(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: Literal["user"]
    content: str


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What most requests are: one message and a length, with which nothing can be wrong."""

    model: str
    messages: tuple[_Question]
    max_tokens: Count | None = None


_plain = msgspec.json.Decoder(_Plain)


def chat(sequence_id: int, body: bytes, stream: bool) -> Outcome:
    """Answer /v1/chat/completions. Raises InvalidRequest."""
    try:
        plain = None if stream else _plain.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        plain = None
    if plain is None:  # it may be right all the same, or it is said what is wrong
        return _any_chat(sequence_id, body, stream)
    text = plain.messages[0].content
    content, reason, count = cut(text, [], plain.max_tokens)
    usage = openai.CompletionUsage.of(len(text.split()), count)
    choice = openai.ChatChoice(index=0, message=openai.ChatMessage(content=content), finish_reason=reason)
    answer = answers.ChatAnswer(plain.model)
    return Outcome(text, count, [], answers.answer_result(sequence_id, answer.whole([choice], usage), usage))


def _any_chat(sequence_id: int, body: bytes, stream: bool) -> Outcome:
    request = parse_chat(body, CHAT_FIELDS)
    messages = request.messages
    last = messages[-1].text
    if len(messages) == 1:
        prompt = last
    else:
        prompt = "\n".join([message.text for message in messages])
        last = next((message.text for message in reversed(messages) if message.role == "user"), last)
    used = len(prompt.split())
    content, reason, count = cut(last, request.stops, _room(used, request.max_output, request.max_context_length, "messages"))
    many = request.choices
    usage = openai.CompletionUsage.of(used, count * many)
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


def completion(sequence_id: int, body: bytes, stream: bool) -> Outcome:
    """Answer /v1/completions: each prompt is repeated. Raises InvalidRequest."""
    request = parse_completion(body, COMPLETION_FIELDS)
    prompts = [_text(given) for given in request.prompts]
    answer = answers.TextAnswer(request.model)
    choices: list[openai.TextChoice] = []
    deltas: list[bytes] = []
    tokens = 0
    for prompt in prompts:
        room = _room(len(prompt.split()), request.max_tokens, request.max_context_length, "prompt")
        content, reason, count = cut(prompt, request.stops, room)
        for _ in range(request.choices):
            index = len(choices)
            tokens += count
            choices.append(openai.TextChoice(index=index, text=content, finish_reason=reason))
            if stream:
                deltas += [answer.chunk(word, index) for word in words(content)]
                deltas.append(answer.chunk("", index, finish_reason=reason))
    usage = openai.CompletionUsage.of(sum(len(prompt.split()) for prompt in prompts), tokens)
    if stream and request.include_usage:
        deltas.append(answer.whole([], usage))
    return Outcome("\n".join(prompts), tokens, deltas, answers.answer_result(sequence_id, answer.whole(choices, usage), usage))


def embedding(sequence_id: int, body: bytes, stream: bool) -> Outcome:
    """Answer /v1/embeddings: each input gets a unit vector that depends on its text alone. Raises InvalidRequest."""
    request = parse_embedding(body, EMBEDDING_FIELDS)
    texts = [_text(given) for given in request.inputs]
    vectors: list[list[float] | str] = []
    for text in texts:
        numbers = vector(text, request.dimensions or _DIMENSIONS)
        packed = struct.pack(f"<{len(numbers)}f", *numbers) if request.encoding_format == "base64" else None
        vectors.append(numbers if packed is None else base64.b64encode(packed).decode())
    count = sum(len(text.split()) for text in texts)
    answer = openai.EmbeddingList(
        data=[openai.Embedding(index=index, embedding=numbers) for index, numbers in enumerate(vectors)],
        model=request.model,
        usage=openai.EmbeddingUsage(count, count),
    )
    result = answers.answer_result(sequence_id, openai.encode(answer), openai.CompletionUsage.of(count, 0))
    return Outcome("\n".join(texts), 0, [], result)


def vector(text: str, dimensions: int) -> list[float]:
    """Make a unit vector from a text's hash."""
    digest = hashlib.shake_256(text.encode()).digest(4 * dimensions)
    numbers = [number or 1 for number in struct.unpack(f"<{dimensions}i", digest)]
    length = math.sqrt(sum(number * number for number in numbers))
    return [number / length for number in numbers]


def _text(given: Input) -> str:
    """Take a text as it is, token ids as words."""
    return given if isinstance(given, str) else " ".join(map(str, given))

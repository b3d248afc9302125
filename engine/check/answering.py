"""Rules: answers, their tokens, their text, and their pieces."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from engine.check.rule import Broken, NotSeen, Rule, expect
from engine.check.target import CHAT, COMPLETIONS, EMBEDDINGS, SHORT_TOKENS, Target, piece_text, text
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["RULES"]

_OBJECTS = {CHAT: "chat.completion", COMPLETIONS: "text_completion", EMBEDDINGS: "list"}
_ENDPOINTS = 8
_BEGIN, _END = "⟦check", "end⟧"
_WHOLE = f'{_BEGIN} 😀👩🏽\u200d🚀 שלום مرحبا é\u2028e\u0301 你好 \\ " {_END}'
"""what engines spoil: pairs of surrogates, joined emoji, right-to-left, U+2028, combining marks, quotes"""


def _good(result: pb.SequenceResult) -> Any:
    """Give the body of a result that must be good."""
    seen = f"{result.status_code} {result.error.code} {result.error.message}".rstrip()
    expect(result.status_code == 200 and not result.HasField("error"), "200 without an error", seen)
    return _object(result.body, "a body that is one JSON object")


def _object(body: bytes, expected: str) -> Any:
    try:
        value = json.loads(body.decode("utf-8"))
    except ValueError as error:
        raise Broken(expected, f"{error}") from None
    expect(isinstance(value, dict), expected, body[:80])
    return value


async def endpoints(target: Target) -> None:
    """Every endpoint of every model answers 200 with its own kind of object."""
    asked = [(model.model, endpoint) for model in target.engine.models for endpoint in model.endpoints if endpoint in _OBJECTS]
    async with target.calling() as caller:
        for model, endpoint in asked[:_ENDPOINTS]:
            (result,) = await caller.run(target.short(endpoint=endpoint, model=model, more={"model": model}))
            body = _good(result)
            what = f"object {_OBJECTS[endpoint]!r} of {endpoint}, {model}"
            expect(body.get("object") == _OBJECTS[endpoint], what, repr(body.get("object")))
            parts = body.get("data" if endpoint == EMBEDDINGS else "choices")
            expect(isinstance(parts, list) and parts, f"an answer in the body of {endpoint}, {model}", sorted(body))
        await caller.close()


async def one_result(target: Target) -> None:
    """Every sequence gets exactly one result, and nothing else does."""
    sequences = [target.short() for _ in range(2)]
    async with target.calling() as caller:
        await caller.run(*sequences)
        await caller.close()
        counts = Counter(one.sequence_id for one in caller.came if isinstance(one, pb.SequenceResult))
    wanted = {one.sequence_id: 1 for one in sequences}
    expect(counts == wanted, f"one result for each of {sorted(wanted)}", f"{dict(counts)} (id: results)")


async def usage(target: Target) -> None:
    """Results count tokens: the prompt's, the answer's within its limit, parts no larger than the whole, as the body says."""
    async with target.calling() as caller:
        (result,) = await caller.run(target.short())
        body = _good(result)
        used = result.usage
        expect(used.input_tokens > 0, "input_tokens above 0", used.input_tokens)
        expect(0 <= used.cached_tokens <= used.input_tokens, "cached_tokens of 0 to input_tokens", used.cached_tokens)
        expect(0 <= used.reasoning_tokens <= used.output_tokens, "reasoning_tokens of 0 to output_tokens", used.reasoning_tokens)
        if text(result.body):
            expect(used.output_tokens > 0, "output_tokens above 0 for an answer with text", used.output_tokens)
        if target.chats and (target.honours("max_tokens") or target.honours("max_completion_tokens")):
            expect(
                used.output_tokens <= SHORT_TOKENS, f"at most {SHORT_TOKENS} output_tokens, as max_tokens asks", used.output_tokens
            )
        told = body.get("usage")
        if isinstance(told, dict):
            pair = (told.get("prompt_tokens"), told.get("completion_tokens", 0))
            expect(pair == (used.input_tokens, used.output_tokens), f"the body's tokens {pair} in the result", _pair(used))
            expect(told.get("total_tokens") == sum(_pair(used)), f"total_tokens {sum(_pair(used))}", told.get("total_tokens"))
        await caller.close()


def _pair(used: pb.Usage) -> tuple[int, int]:
    return used.input_tokens, used.output_tokens


async def utf8(target: Target) -> None:
    """Emoji, right-to-left text and U+2028 go in and come out whole; bodies are valid UTF-8 without halves of characters."""
    async with target.calling() as caller:
        (result,) = await caller.run(target.short(_WHOLE, more=_longer(target)))
        _good(result)
        said = text(result.body)
        expect(_encodes(said), "text without halves of characters", ascii(said))
        begin, end = said.find(_BEGIN), said.find(_END)
        if 0 <= begin < end:  # the model repeats what it was asked
            repeated = said[begin : end + len(_END)]
            expect(repeated == _WHOLE, f"{_WHOLE!a} repeated whole", ascii(repeated))
        await caller.close()


def _longer(target: Target) -> dict[str, Any]:
    return {"max_tokens": 20} if target.chats and target.honours("max_tokens") else {}


def _encodes(said: str) -> bool:
    try:
        said.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


async def stream_order(target: Target) -> None:
    """Pieces come for a sequence that asks for them, all before its result, and for no other."""
    _needs_stream(target)
    asking, other = target.short("one two three", stream=True), target.short("one two three")
    async with target.calling() as caller:
        (result, _) = await caller.run(asking, other)
        _good(result)
        await caller.close()
        asked = [isinstance(one, pb.SequenceResult) for one in caller.came if one.sequence_id == asking.sequence_id]
        expect(asked.count(False), "pieces of an answer that is streamed", "none")
        expect(asked.index(True) >= asked.count(False), "every piece before the result", "a piece behind it")
        count = len(caller.pieces(other.sequence_id))
        expect(not count, "no pieces of an answer that isn't streamed", count)


async def stream_text(target: Target) -> None:
    """Every piece is a JSON object in valid UTF-8; joined they are the text of the result."""
    _needs_stream(target)
    asking = target.short(_WHOLE, stream=True, more=_longer(target))
    async with target.calling() as caller:
        (result,) = await caller.run(asking)
        _good(result)
        await caller.close()
        joined = ""
        for piece in caller.pieces(asking.sequence_id):
            _object(piece, "pieces that are JSON objects")
            said = piece_text(piece)
            expect(_encodes(said), "pieces without halves of characters", ascii(said))
            joined += said
        whole = text(result.body)
        expect(joined == whole or not whole, f"the result's text, {whole!a}", ascii(joined))


def _needs_stream(target: Target) -> None:
    if not target.chats or not target.honours("stream"):
        raise NotSeen("the model has no streamed answers")


RULES: list[Rule] = [endpoints, one_result, usage, utf8, stream_order, stream_text]

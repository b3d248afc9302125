"""Log-probabilities as OpenAI's API tells them: of chats, and in the older shape of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = ["Chance", "chat_chances", "shown", "text_chances"]


class Chance(msgspec.Struct, array_like=True, frozen=True):
    """How likely a chosen token was, by the model alone: before temperature, penalties, bias and grammar."""

    piece: bytes
    """what the token adds to the text; for a control token, how it is written"""
    logprob: float
    top: list[tuple[bytes, float]]
    """the likeliest tokens in its place, the best first"""


def chat_chances(chances: Sequence[Chance]) -> dict[str, Any]:
    """Give `logprobs` of a chat's choice."""
    content = [
        {
            **_token(chance.piece, chance.logprob),
            "top_logprobs": [_token(piece, logprob) for piece, logprob in chance.top],
        }
        for chance in chances
    ]
    return {"content": content, "refusal": None}


def text_chances(chances: Sequence[Chance], start: int) -> dict[str, Any]:
    """Give the four lists of a completion's choice; offsets are in characters of the text, from `start` on."""
    tokens = [shown(chance.piece) for chance in chances]
    offsets = []
    for token in tokens:
        offsets.append(start)
        start += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [chance.logprob for chance in chances],
        "top_logprobs": [{shown(piece): logprob for piece, logprob in reversed(chance.top)} for chance in chances],
        "text_offset": offsets,
    }


def shown(piece: bytes) -> str:
    """Write a token's bytes as text."""
    return piece.decode("utf-8", "replace")


def _token(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": shown(piece), "logprob": logprob, "bytes": list(piece)}

"""The rows that engines are compared with: made anew for each round, so that nobody knows them from the round before."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["CHAT", "EMBEDDINGS", "WORKLOADS", "Row", "Workload"]

Row = dict[str, Any]
CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
_WORDS = [
    "river", "carries", "stones", "under", "seven", "bridges", "while", "morning", "light", "turns", "copper", "roofs", "into",
    "mirrors", "and", "nobody", "asks", "where", "the", "old", "clock", "keeps", "its", "second", "hand",
]  # fmt: skip
_TOKENS_A_WORD = 1.25
"""of the sentences made of these words, in SmolLM2's vocabulary"""


@dataclass(frozen=True)
class Workload:
    """Rows of one kind."""

    rows: int
    """how many, unless fewer are asked for"""
    context: int
    """tokens that a row needs at most"""
    make: Callable[[random.Random, int], list[Row]]
    endpoint: str = CHAT


def _text(chance: random.Random, tokens: int) -> str:
    return " ".join(chance.choice(_WORDS) for _ in range(int(tokens / _TOKENS_A_WORD)))


def _chat(messages: list[dict[str, str]], tokens: int, **fields: Any) -> Row:
    return {"model": "bench", "messages": messages, "max_tokens": tokens, "temperature": 0} | fields


def _row(system: str, user: str, tokens: int, **fields: Any) -> Row:
    return _chat([{"role": "system", "content": system}, {"role": "user", "content": user}], tokens, **fields)


def _unrelated(chance: random.Random, rows: int, tokens: int = 64, **fields: Any) -> list[Row]:
    return [_row("You are a helpful assistant.", f"Write about: {_text(chance, 15)}", tokens, **fields) for _ in range(rows)]


def _shared(chance: random.Random, rows: int, prompt: int, tokens: int, prompts: int = 1) -> list[Row]:
    systems = [_text(chance, prompt) for _ in range(prompts)]
    return [_row(chance.choice(systems), f"Write about: {_text(chance, 15)}", tokens) for _ in range(rows)]


def _conversations(chance: random.Random, rows: int) -> list[Row]:
    """Make conversations of four turns, a row a turn, one after the other: each row has all of the one before in it."""
    made = []
    for _ in range(rows // 4):
        messages = [{"role": "system", "content": _text(chance, 60)}]
        for _ in range(4):
            messages = [*messages, {"role": "user", "content": _text(chance, 40)}]
            made.append(_chat(messages, 32))
            messages = [*messages, {"role": "assistant", "content": _text(chance, 80)}]
    return made


def _repeats(chance: random.Random, rows: int) -> list[Row]:
    made = _unrelated(chance, rows // 2, 32) * 2
    chance.shuffle(made)
    return made


def _texts(chance: random.Random, rows: int) -> list[Row]:
    return [{"model": "bench", "input": _text(chance, chance.randint(6, 30))} for _ in range(rows)]


WORKLOADS = {
    "unrelated": Workload(64, 512, _unrelated),
    "shared500": Workload(256, 1_024, lambda chance, rows: _shared(chance, rows, 500, 32)),
    "shared2000": Workload(64, 3_072, lambda chance, rows: _shared(chance, rows, 2_000, 32)),
    "eight500": Workload(256, 1_024, lambda chance, rows: _shared(chance, rows, 500, 32, prompts=8)),
    "turns": Workload(256, 1_024, _conversations),
    "classify": Workload(1_000, 1_024, lambda chance, rows: _shared(chance, rows, 500, 3)),
    "repeats": Workload(500, 512, _repeats),
    "embeddings": Workload(2_000, 256, _texts, EMBEDDINGS),
    "sampled": Workload(64, 512, lambda chance, rows: _unrelated(chance, rows, 64, temperature=1, top_p=0.95)),
}

"""What a step takes, decided with integers only.

A prompt is cut into chunks at places that depend on the prompt alone, never on what runs beside it: the shape of a computation
changes its last bits, and with quantised weights those soon change words.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["CHUNK", "chunk", "fit", "share"]

CHUNK = 128
"""prompt tokens that are prefilled at once; flash attention on a CPU turns fast at 64"""


def chunk(remaining: int) -> int:
    """Size of the next chunk of a prompt that has `remaining` > 0 tokens left.

    A chunk of one token takes another path through attention than the rest of its prompt, so none is left over at the end.
    """
    if remaining == CHUNK + 1:
        return CHUNK // 2
    return min(remaining, CHUNK)


def share(decoding: int, remaining: Sequence[int], budget: int) -> list[int]:
    """Tell how many tokens each prefilling sequence gets in this step; 0 for those that wait.

    `decoding` sequences take one token each before anything else, so prefill never stops them. `remaining` holds the prompt
    tokens left of each prefilling sequence, the one to serve first in front; none overtakes it. The first one gets its chunk even
    where the budget is too small for it, or it would never start.
    """
    room = budget - decoding
    shares = [0] * len(remaining)
    for place, left in enumerate(remaining):
        size = chunk(left)
        if size > room and place > 0:
            break
        shares[place] = size
        room -= size
    return shares


def fit(prompt: int, wanted: int | None, context: int) -> int:
    """Tell how many tokens may be generated: `wanted`, or as many as the context has room for behind the prompt.

    0 or less: the prompt leaves no room at all.
    """
    room = context - prompt
    return room if wanted is None else min(wanted, room)


def slots(wanted: int, bytes_per_token: int, context: int, budget: int) -> int:
    """Tell how many slots a decoder gets when the settings leave it open: `wanted`, or what `budget` bytes of KV cache hold."""
    return max(1, min(wanted, budget // max(1, bytes_per_token * context)))

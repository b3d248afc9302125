"""What the slots' KV caches hold, and where a prompt that begins like one of them is put.

    a prompt ── begins like what a free slot holds ──▶ that slot, cut to what they share
             ├─ begins like what a busy slot holds ──▶ the slot that is missed least, after a copy
             ├─ begins like what a slot is about to hold ──▶ waits for it
             └─ begins like nothing ─────────────────▶ the slot that is missed least, emptied

A slot keeps what it held when its row ends, so a prefix lives on until its slot is needed. Missed least is what was used longest
ago, but what no other slot holds counts as used later, the longer it is, up to a quarter of the slots: a short beginning that many
rows have is not to go for long ones that were used once. There are few slots, and comparing two prompts
takes microseconds, so every slot is looked at. Integers only; the loop does to the model what is decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.llamacpp import policy

__all__ = ["Held", "Place", "Tokens", "common", "place"]

WORTH_COPYING: Final = 16
"""tokens; copying a KV stream takes as long as evaluating a few"""
WORTH_WAITING: Final = 16
"""tokens; waiting takes some steps, in which other rows go on"""
WORTH_KEEPING: Final = 48
"""tokens behind a prefix that is taken; where a slot has more, another one takes a copy"""
_WORTH_AN_ADMISSION: Final = 16
"""tokens that only one slot holds, for which it is kept an admission longer, within bounds"""
_LOOKED_AT: Final = 16
"""free slots among which the one that is missed least is looked for"""

Tokens = npt.NDArray[np.int32]


class Held:
    """The tokens in one slot's KV cache."""

    def __init__(self, context_length: int) -> None:
        """Start empty."""
        self._tokens: Tokens = np.zeros(context_length, np.int32)
        self.size = 0
        self.of_prompt = 0
        """how many of them were evaluated as a prompt, many at once; those behind were generated"""
        self.tiled = 0
        """how many of them were evaluated in chunks that take the fast way through flash attention"""
        self.whole = 0
        """how many of them were evaluated in chunks of the usual size, which begin where any prompt's do"""
        self.used = 0
        """when it was last of use, by a clock of admissions"""

    @property
    def tokens(self) -> Tokens:
        """What is held."""
        return self._tokens[: self.size]

    def prefilled(self, chunk: Tokens) -> None:
        """Note a chunk of a prompt that was evaluated."""
        end = self.size + len(chunk)
        self._tokens[self.size : end] = chunk
        if self.tiled == self.size and len(chunk) >= policy.TILE:
            self.tiled = end
        if self.whole == self.size and len(chunk) == policy.CHUNK:
            self.whole = end
        self.size = self.of_prompt = end

    def generated(self, token: int) -> None:
        """Note a token that was generated and evaluated."""
        self._tokens[self.size] = token
        self.size += 1

    def cut(self, keep: int) -> None:
        """Note that only the first `keep` tokens are left."""
        self.size = min(self.size, keep)
        self.of_prompt = min(self.of_prompt, keep)
        self.tiled = min(self.tiled, keep)
        self.whole = min(self.whole, keep // policy.CHUNK * policy.CHUNK)

    def become(self, other: Held, keep: int) -> None:
        """Note that this is now a copy of the first `keep` tokens of another."""
        self._tokens[:keep] = other.tokens[:keep]
        self.size, self.of_prompt, self.tiled, self.whole = keep, other.of_prompt, other.tiled, other.whole
        self.cut(keep)


class Place(NamedTuple):
    """Where a prompt goes: to `slot`, which first becomes a copy of `keep` tokens of `source`; the same slot is only cut."""

    slot: int
    source: int
    keep: int


def common(one: Tokens, other: Tokens) -> int:
    """Count the tokens that two prompts begin with alike."""
    size = min(len(one), len(other))
    differ = one[:size] != other[:size]
    first = int(differ.argmax()) if size else 0
    return first if size and differ[first] else size


def place(
    prompt: Tokens, held: list[Held], free: Collection[int], coming: Mapping[int, Tokens], layout: policy.Layout
) -> Place | None:
    """Decide for a prompt; None when it is better off waiting. `free` is not empty.

    `coming` holds the prompts of slots that are still prefilling.
    """
    best, keep = -1, 0
    for slot, has in enumerate(held):
        size = _reusable(prompt, has, layout)
        if size > keep or (size == keep and size and slot in free and best not in free):
            best, keep = slot, size
    for slot, other in coming.items():
        soon = policy.reusable(common(prompt, other), len(prompt), policy.tiled(len(other)), layout)
        if slot not in free and soon - keep >= WORTH_WAITING:
            return None
    if best in free and held[best].size - keep < WORTH_KEEPING:
        return Place(best, best, keep)
    victim = _missed_least(held, free)
    if keep < WORTH_COPYING:
        return Place(victim, victim, _reusable(prompt, held[victim], layout))
    return Place(victim, best, keep)


def _missed_least(held: list[Held], free: Collection[int]) -> int:
    def missed(slot: int) -> int:
        has = held[slot]
        if not has.size:
            return -1
        elsewhere = max((common(has.tokens, other.tokens) for at, other in enumerate(held) if at != slot), default=0)
        return has.used + min((has.size - elsewhere) // _WORTH_AN_ADMISSION, len(held) // 4)

    oldest = sorted(free, key=lambda slot: (held[slot].used, slot))[:_LOOKED_AT]
    return min(oldest, key=missed)


def _reusable(prompt: Tokens, has: Held, layout: policy.Layout) -> int:
    tokens = has.tokens[: has.whole] if layout.exact else has.tokens
    if not len(tokens) or tokens[0] != prompt[0]:
        return 0
    return policy.reusable(common(prompt, tokens), len(prompt), has.tiled, layout)

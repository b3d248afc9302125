"""What a step takes, decided with integers only.

A prompt is cut into chunks at places that depend on the prompt alone, never on what runs beside it: the shape of a computation
changes its last bits, and with quantised weights those soon change words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "AUTO", "CHUNK", "EXACT", "F16", "KV_TYPES", "LAYOUTS", "LEAST", "TILE", "Layout", "admits", "chunk", "decoder", "divisions",
    "fit", "layout", "pack", "reusable", "share", "slots", "tiled", "worth_moving",
]  # fmt: skip

CHUNK = 128
"""prompt tokens that are prefilled at once"""
LEAST = 8
"""fewer tokens than these are not worth taking from a cache"""
TILE = 64
"""chunks of so many tokens take another, faster way through flash attention on a CPU than smaller ones"""


class Layout(NamedTuple):
    """How attention is computed and where the KV cache lies."""

    flash: bool = True
    """flash attention: faster for short rows; without it, for long ones"""
    unified: bool = False
    """one KV cache for all slots, in which sequences share the cells of a prefix; else a stream for each"""
    exact: bool = False
    """compute every row in calls of the same shape, whatever runs beside it, and whatever a cache holds"""


def chunk(remaining: int) -> int:
    """Size of the next chunk of a prompt that has `remaining` > 0 tokens left.

    A chunk of one token takes another path through attention than the rest of its prompt, so none is left over at the end.
    """
    if remaining == CHUNK + 1:
        return CHUNK // 2
    return min(remaining, CHUNK)


F16 = "f16"
KV_TYPES = {F16: 2.0, "q8_0": 34 / 32}
"""bytes of a number in the KV cache; q8_0 has 32 of them with one scale"""
AUTO, EXACT = "auto", "exact"
LAYOUTS = {AUTO: Layout(), "flash": Layout(), "plain": Layout(flash=False), "unified": Layout(flash=False, unified=True)}
"""by the name that settings give them; `auto` begins with the first"""
_SHORT, _LONG = 120, 180
"""tokens a row, on average, below and above which flash attention is the faster, and the slower way"""
_FEW, _MANY = 3.0, 3.5
"""times the cells of a row, on average, below and above which the cells of all are looked at faster, and slower than its own"""


def layout(now: Layout, sizes: Sequence[int], shared: int, slots: int) -> Layout:
    """Tell which layout suits the rows at hand; the present one when it makes little difference: a change empties the caches.

    `sizes` are the tokens of each row, `shared` how many of all of them are the beginning of another row's prompt.
    """
    if len(sizes) < max(2, slots // 4):
        return now
    total = sum(sizes)
    flash = total < (_LONG if now.flash else _SHORT) * len(sizes)
    if flash:
        return Layout(flash=True)
    # Every row's attention looks at all cells of a unified cache, where a cell costs less than in a stream of the row's own. They
    # are counted as if such rows filled the slots: else a few that come or go would change the layout.
    own = ((total - shared) * len(sizes) - total) / (len(sizes) - 1)
    cells = total + own * (max(len(sizes), slots) - 1)
    return Layout(flash=False, unified=cells < total * (_MANY if now.unified else _FEW))


def tiled(prompt: int) -> int:
    """Count the tokens of a prompt that are evaluated in chunks of `TILE` or more; the others follow at its end."""
    rest = prompt % CHUNK
    return prompt if rest >= TILE or (rest == 1 and prompt > CHUNK) else prompt - rest


def reusable(shared: int, prompt: int, held_tiled: int, layout: Layout) -> int:
    """Tell how many of the `shared` first tokens of a prompt of `prompt` tokens are taken from a KV cache.

    The last one never is, because the next token follows from its evaluation, nor all but one: a chunk of one token would be left.
    With flash attention the first `held_tiled` tokens of the cache were computed in large chunks. Each token must have been, or
    will be, computed as it would be without the cache, so that the answer is the same; without flash attention chunks of all sizes
    agree, but for the last bits on some machines: `exact` takes whole chunks only.
    """
    size = min(shared, prompt - 2)
    large = tiled(prompt)
    # Behind the large chunks the donor's are small ones, as the prompt's own would be.
    alike = size >= large and (held_tiled == large or held_tiled > large == size)
    if layout.exact or (layout.flash and not alike):
        size = min(size, held_tiled) // CHUNK * CHUNK
    return size if size >= LEAST else 0


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


_MARGIN = 64
"""tokens of an answer that room is kept for; those who say more may have to pause others"""


def admits(free: int, new: tuple[int, int], running: Sequence[tuple[int, int]]) -> bool:
    """Tell whether one more sequence is let in where all share `free` cells, those of idle slots among them.

    Each is told by the tokens that it still has to evaluate, and those that it may still say. A few of these are counted on: if
    all said all they may, few would run; if too many do, some pause.
    """
    return sum(left + min(unsaid, _MARGIN) for left, unsaid in (new, *running)) <= free


def pack(sizes: Sequence[int], budget: int, most: int) -> int:
    """Tell how many texts to embed in one call, of `sizes` tokens each: the first ones, within `budget` tokens; at least one.

    Every token of a call is held against every other one, so large calls lose more than they gain.
    """
    total = 0
    for count, size in enumerate(sizes[:most]):
        total += size
        if count and total > budget:
            return count
    return min(len(sizes), most)


def decoder(loads: Sequence[int], shares: Sequence[int], slots: int) -> int:
    """Tell which of several decoders with room gets a run: the one with the fewest, or one that knows its beginning.

    `loads` are the runs at each, `shares` the tokens of the run's prompt that each had lately. Knowing outweighs a quarter of the
    slots: what is evaluated already costs nothing, but a decoder that has nothing to do helps nobody.
    """
    worth = max(1, slots // 4)
    costs = [load - (worth if share >= TILE else 0) for load, share in zip(loads, shares, strict=True)]
    return costs.index(min(costs))


def worth_moving(behind: int, lost: int, own: int, slots: int) -> bool:
    """Tell whether a run goes to a decoder that doesn't know its beginning, rather than wait for the one that does.

    That one has `behind` more runs to do than the other. `lost` tokens of the prompt are evaluated once more by the move, which
    takes as long as so many runs that have `own` tokens, of prompt and answer, to themselves. Less than a quarter of the slots is
    not worth a move: runs are cheaper in company.
    """
    return behind > max(1, slots // 4) + lost / max(1, own)


def divisions(cores: int) -> list[tuple[int, int]]:
    """Tell how cores may be divided: (decoders, threads of each), from one core each to one decoder with all."""
    return [(cores // threads, threads) for threads in range(1, cores + 1) if cores % threads == 0 and threads in (1, 2, 4, cores)]


def fit(prompt: int, wanted: int | None, context: int) -> int:
    """Tell how many tokens may be generated: `wanted`, or as many as the context has room for behind the prompt.

    0 or less: the prompt leaves no room at all.
    """
    room = context - prompt
    return room if wanted is None else min(wanted, room)


def slots(wanted: int, bytes_per_token: int, context: int, budget: int) -> int:
    """Tell how many slots a decoder gets when the settings leave it open: `wanted`, or what `budget` bytes of KV cache hold."""
    return max(1, min(wanted, budget // max(1, bytes_per_token * context)))

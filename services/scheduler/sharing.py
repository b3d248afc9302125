"""Rows that begin alike, for engines that evaluate what they have in common once: one after another, and to the same engine.

A shard's rows are put in order when it is claimed, by what stands from `"messages"` or `"prompt"` on, unless the input has them
together already. Then each engine goes on in a stretch of that order. Who has none left takes part of the longest one, which is
cut where neighbours have least in common:

    ├─ engine A ▸ ──────────────────────┤   ──▶   ├─ engine A ▸ ───────┼─ engine B ▸ ────────┤

Nothing else knows of the order: rows are recorded and sealed by their number. No row waits for rows of a later shard.
"""

from __future__ import annotations

import itertools
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct

__all__ = ["MEMBERS", "Order", "Stretch", "Stretches", "arranged"]

MEMBERS = {"/v1/chat/completions": b'"messages"', "/v1/completions": b'"prompt"'}
"""What prompts are made of, by endpoint; the others have none."""
_ENTRY = Struct("<QII")
_PIECE_BYTES = 8 * 1024 * 1024
"""So much of the input is in memory at a time, and put in order."""
_WORTH_BYTES = 32
"""A row must have so much more in common with the one before it than in the input's order: some tokens."""


class Order:
    """In which order a shard's rows are sent."""

    __slots__ = ("common", "rows")

    def __init__(self, rows: Sequence[int], common: Sequence[int] = ()) -> None:
        """`rows` are counted from the shard's first; `common` is what each shares with the one before it, () for who knows."""
        self.rows = rows
        self.common = common


class Stretch:
    """A part of an order."""

    __slots__ = ("at", "end")

    def __init__(self, at: int, end: int) -> None:
        """`at` is the first one that wasn't sent, `end` is behind the last one."""
        self.at = at
        self.end = end

    def __len__(self) -> int:
        """Count what is left."""
        return self.end - self.at


class Stretches:
    """An order, divided among engines."""

    def __init__(self, order: Order) -> None:
        """It is whole until a second engine comes."""
        self._order = order
        self._by_engine: dict[str, Stretch] = {}

    def __bool__(self) -> bool:
        """Tell whether anything is left."""
        return not self._by_engine or any(self._by_engine.values())

    def of(self, engine: str) -> Stretch | None:
        """Give the stretch in which an engine goes on, None when nothing is left. Engines of no name share one."""
        mine = self._by_engine.get(engine)
        if mine:
            return mine
        longest = max(self._by_engine.values(), key=len, default=None)
        if longest is None:
            mine = Stretch(0, len(self._order.rows))
        elif longest:
            mine = Stretch(self._cut(longest), longest.end)
            longest.end = mine.at
        if mine:
            self._by_engine[engine] = mine
        return mine or None

    def _cut(self, stretch: Stretch) -> int:
        """Find the place in the middle half where neighbours have least in common, as near to the middle as there is one."""
        quarter, middle, common = max(1, len(stretch) // 4), stretch.at + stretch.end, self._order.common
        places = range(stretch.at + quarter, stretch.end - quarter + 1)
        return min(places, key=lambda at: (common[at] if common else 0, abs(2 * at - middle)), default=stretch.at)


def arranged(path: Path, index: bytes, endpoint: str) -> Order:
    """Put the rows of a shard's index in order; those of an input that can't be read stay in the input's. Blocking."""
    entries = list(_ENTRY.iter_unpack(index))
    rows, common = array("I"), array("I")
    try:
        with path.open("rb", buffering=0) as file:
            for piece in _pieces(entries):
                texts = _texts(file.fileno(), entries[piece.start : piece.stop], MEMBERS[endpoint])
                order, alike = _together(texts)
                rows.extend(piece.start + at for at in order)
                common.extend(alike)
    except OSError:
        return Order(range(len(entries)))
    return Order(rows, common)


def _pieces(entries: Sequence[tuple[int, int, int]]) -> Iterator[range]:
    """Cut a shard into pieces that fit the memory."""
    first = 0
    for at, (offset, length, _) in enumerate(entries):
        if at > first and offset + length - entries[first][0] > _PIECE_BYTES:
            yield range(first, at)
            first = at
    yield range(first, len(entries))


def _texts(file: int, entries: Sequence[tuple[int, int, int]], member: bytes) -> list[bytes]:
    """Read what is to be compared."""
    begin, size = entries[0][0], sum(entries[-1][:2]) - entries[0][0]
    data = os.pread(file, min(size, _PIECE_BYTES), begin)
    texts = []
    for offset, length, _ in entries:
        at, end = offset - begin, offset - begin + length
        texts.append(data[max(at, data.find(member, at, end)) : end])
    return texts


def _together(texts: Sequence[bytes]) -> tuple[Sequence[int], list[int]]:
    """Give an order in which texts that begin alike are neighbours, and how much each has in common with the one before it."""
    given: Sequence[int] = range(len(texts))
    found = sorted(given, key=texts.__getitem__)
    before, after = _alike(texts, given), _alike(texts, found)
    worth = sum(after) - sum(before) >= _WORTH_BYTES * len(texts)
    return (found, after) if worth else (given, before)


def _alike(texts: Sequence[bytes], order: Sequence[int]) -> list[int]:
    return [0, *(_common(texts[one], texts[two]) for one, two in itertools.pairwise(order))]


def _common(one: bytes, two: bytes) -> int:
    """Count the bytes that two texts begin with alike."""
    low, high = 0, min(len(one), len(two))
    if one[:high] == two[:high]:
        return high
    while high - low > 1:  # they are alike up to `low`, and not up to `high`
        middle = (low + high) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle
    return low

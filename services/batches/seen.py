"""Which custom_ids a file has more than once, by their 64-bit hashes.

Nearly every file has none, so the first pass over it only collects hashes (8 bytes a row) and looks afterwards whether any of them
came twice. Only then a second pass asks, line by line, which line had the id first (some 32 bytes a row). An equal hash is no
proof: the line that has it is read again and its id compared.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

__all__ = ["IdHashes", "SeenIds"]

_BUCKETS = 64


class IdHashes:
    """The hashes of all ids, to be looked through at the end."""

    def __init__(self) -> None:
        """Start with none."""
        self._hashes = array("q")
        self.append = self._hashes.append
        """Remember an id by its hash."""

    def add(self, custom_id: str, line: int, offset: int) -> int:
        """Remember an id; answers 0: no line is known to have had it before."""
        self.append(hash(custom_id))
        return 0

    def repeated(self) -> bool:
        """Tell whether two ids may be equal."""
        buckets = [array("q") for _ in range(_BUCKETS)]  # what one set of them would take isn't small
        appends = [bucket.append for bucket in buckets]
        for hashed in self._hashes:
            appends[hashed % _BUCKETS](hashed)
        return any(len(set(bucket)) < len(bucket) for bucket in buckets)


class SeenIds:
    """The ids with the line each was first on."""

    def __init__(self, read_id: Callable[[int], object]) -> None:
        """`read_id` reads the custom_id of the line at a byte offset again."""
        self._read_id = read_id
        self._hashes = array("q")
        self._lines = array("I")
        self._offsets = array("Q")
        self._mask = 1023
        self._slots = array("I", bytes(4 * (self._mask + 1)))
        """0 for empty, else the ordinal of an entry + 1; at most half full."""

    def add(self, custom_id: str, line: int, offset: int) -> int:
        """Remember an id with its line and the line's byte offset; answers the line that had it before, 0 when none had."""
        hashed = hash(custom_id)
        slots, mask = self._slots, self._mask
        place = hashed & mask
        while entry := slots[place]:
            if self._hashes[entry - 1] == hashed and self._read_id(self._offsets[entry - 1]) == custom_id:
                return self._lines[entry - 1]
            place = (place + 1) & mask
        self._hashes.append(hashed)
        self._lines.append(line)
        self._offsets.append(offset)
        slots[place] = len(self._hashes)
        if 2 * len(self._hashes) > mask:
            self._grow()
        return 0

    def _grow(self) -> None:
        mask = self._mask = 2 * self._mask + 1
        slots = self._slots = array("I", bytes(4 * (mask + 1)))
        for entry, hashed in enumerate(self._hashes, 1):
            place = hashed & mask
            while slots[place]:
                place = (place + 1) & mask
            slots[place] = entry

"""From tokens to text: bytes are gathered, characters come out whole, and stop strings end the text where they begin."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["Text"]


class Text:
    """The text of one sequence.

    Stop strings are looked for in bytes, which finds the same places as in characters: no UTF-8 character begins inside another.
    """

    def __init__(self, stops: Sequence[bytes] = ()) -> None:
        """`stops` end the text; none of them is empty."""
        self._stops = [stop for stop in stops if stop]
        self._longest = max(map(len, self._stops), default=0)
        self._bytes = bytearray()
        self._told = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def size(self) -> int:
        """Bytes of the text so far."""
        return len(self._bytes)

    @property
    def told(self) -> int:
        """Bytes of what was given."""
        return self._told

    def add(self, piece: bytes) -> bool:
        """Append a token's bytes; True when a stop string is complete, and the text ends where it began."""
        start = max(self._told, len(self._bytes) - self._longest + 1)
        self._bytes += piece
        if not self._longest:
            return False
        found = [place for stop in self._stops if (place := self._bytes.find(stop, start)) >= 0]
        if not found:
            return False
        del self._bytes[min(found) :]
        return True

    def ends(self, mark: bytes, size: int) -> bool:
        """Tell whether the last `size` bytes of the text complete a `mark`."""
        return self._bytes.find(mark, max(0, len(self._bytes) - size - len(mark) + 1)) >= 0

    def take(self) -> str:
        """Give what is certain and was not given before: no half characters, nothing that a stop string may begin with."""
        certain = len(self._bytes) - self._suspect()
        text = self._decoder.decode(bytes(self._bytes[self._told : certain]))
        self._told = certain
        return text

    def rest(self) -> str:
        """Give everything not given before; nothing follows. Bytes that are no character become U+FFFD."""
        text = self._decoder.decode(bytes(self._bytes[self._told :]), final=True)
        self._told = len(self._bytes)
        return text

    def _suspect(self) -> int:
        """Count the bytes at the end that are the beginning of a stop string."""
        longest = min(self._longest - 1, len(self._bytes) - self._told)
        for size in range(longest, 0, -1):
            tail = self._bytes[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0

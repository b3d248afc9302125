"""A choice's text as it comes from the model: whole characters, and nothing from a stop string on."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["Text"]


class Text:
    """Takes pieces and tells what of them may be shown: what could be the beginning of a stop string is kept back."""

    def __init__(self, stops: Sequence[str], *, accumulates: bool = False) -> None:
        """With `accumulates` each piece is the whole text so far."""
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._accumulates = accumulates
        self._seen = b""
        self._kept = ""
        self.stopped = False
        """whether a stop string came"""

    def add(self, piece: bytes, *, last: bool = False) -> str:
        """Take a piece; the text that can be shown now. With `last` nothing is kept back."""
        if self.stopped:
            return ""
        if self._accumulates:
            piece, self._seen = (piece[len(self._seen) :], piece) if piece.startswith(self._seen) else (b"", self._seen)
        text = self._kept + self._decoder.decode(piece, last)
        found = min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=-1)
        if found >= 0:
            self.stopped = True
            self._kept = ""
            return text[:found]
        keep = 0 if last else max((_overlap(text, stop) for stop in self._stops), default=0)
        self._kept = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Tell how many characters at the end of `text` begin `stop`."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)

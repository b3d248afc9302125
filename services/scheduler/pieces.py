"""The recorded results of a batch, wherever they lie: pieces of files, read as if they were one file."""

from __future__ import annotations

import bisect
import errno
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

__all__ = ["Piece", "Pieces", "intact"]

_CHUNK_BYTES = 1 << 20
_OPEN_MAX = 64
"""Files that are open at a time."""


class Piece(msgspec.Struct, frozen=True):
    """Whole lines: bytes `start` to `end` of a file."""

    path: str
    start: int
    end: int
    whole: bool = True
    """All of it must be there; else what isn't there is empty, and so is a file that is missing."""


class Pieces:
    """A file made of pieces, in their order. Blocking; not for several threads at a time."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        """Nothing is opened yet."""
        self._pieces = [piece for piece in pieces if piece.end > piece.start]
        self._begins = [0]
        for piece in self._pieces:
            self._begins.append(self._begins[-1] + piece.end - piece.start)
        self._files: OrderedDict[str, BinaryIO] = OrderedDict()

    def lines(self) -> Iterator[bytes]:
        """Yield the lines. Raises OSError when a piece that must be whole isn't."""
        for piece in self._pieces:
            left = piece.end - piece.start
            with _opened(piece) as file:
                file.seek(piece.start)
                for line in file:
                    left -= len(line)
                    if left < 0:
                        break
                    yield line
                    if not left:
                        break
            if left and piece.whole:
                raise _cut_short(piece.path)

    def read(self, size: int, offset: int) -> bytes:
        """Read bytes of the whole. Raises OSError when they aren't there."""
        parts = []
        at = bisect.bisect_right(self._begins, offset) - 1
        while size and at < len(self._pieces):
            piece, inside = self._pieces[at], offset - self._begins[at]
            some = min(size, piece.end - piece.start - inside)
            data = os.pread(self._file(piece).fileno(), some, piece.start + inside)
            if len(data) != some:
                raise _cut_short(piece.path)
            parts.append(data)
            size, offset, at = size - some, offset + some, at + 1
        if size:
            raise OSError(errno.EIO, "there are no such results")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Close what is open."""
        while self._files:
            self._files.popitem()[1].close()

    def _file(self, piece: Piece) -> BinaryIO:
        file = self._files.get(piece.path)
        if file is None:
            file = self._files[piece.path] = _opened(piece)
            if len(self._files) > _OPEN_MAX:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(piece.path)
        return file

    def __enter__(self) -> Pieces:
        """Give it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close what is open."""
        self.close()


def intact(pieces: Sequence[Piece], *, whole: bool = True) -> list[Piece]:
    """Cut off what isn't on the disk any more; what is left must be `whole`. Blocking."""
    sizes = {path: _size(path) for path in {piece.path for piece in pieces}}
    there = [Piece(piece.path, piece.start, min(piece.end, sizes[piece.path]), whole) for piece in pieces]
    return [piece for piece in there if piece.end > piece.start]


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0


def _opened(piece: Piece) -> BinaryIO:
    try:
        return Path(piece.path).open("rb", buffering=_CHUNK_BYTES)
    except FileNotFoundError:
        if piece.whole:
            raise
        return open(os.devnull, "rb")


def _cut_short(path: str) -> OSError:
    return OSError(errno.EIO, f"{Path(path).name} is cut short")

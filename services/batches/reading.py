"""An input file in pieces of whole lines, whatever its size: lines end at LF only, one leading byte order mark is skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator

__all__ = ["CHUNK_BYTES", "pieces"]

CHUNK_BYTES = 1 << 18
_BOM = b"\xef\xbb\xbf"


def pieces(file: int, limit: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield (byte offset, whole lines, 0) from a file descriptor, or (offset, b"", length) for a line of more than `limit` bytes.

    Only the file's last line may lack its LF. Lines that fit into a chunk are not measured here, and may be over the limit.
    """
    offset = len(_BOM) if os.pread(file, len(_BOM), 0) == _BOM else 0
    size = CHUNK_BYTES
    while data := os.pread(file, size, offset):
        end = data.rfind(b"\n") + 1
        if end or len(data) < size:
            data = data[: end or None]
            yield offset, data, 0
        elif size < limit + 2:  # room for the line's end
            size = limit + 2
            continue
        else:
            after, length = _skip(file, offset + len(data), data[-1:])
            yield offset, b"", length + after - offset
            offset = after
            data = b""
        offset += len(data)
        size = CHUNK_BYTES


def _skip(file: int, at: int, before: bytes) -> tuple[int, int]:
    """Find the end of the line that byte `at` is in; gives the offset behind it, and minus the size of the line's end."""
    while data := os.pread(file, CHUNK_BYTES, at):
        end = data.find(b"\n")
        if end >= 0:
            carriage_return = data[end - 1 : end] if end else before
            return at + end + 1, -2 if carriage_return == b"\r" else -1
        at += len(data)
        before = data[-1:]
    return at, 0

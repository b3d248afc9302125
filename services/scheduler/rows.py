"""From index entries to requests: lines are read in windows by position, never the whole input, and never mapped into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

import msgspec

from haywain.openai import ascii_json

__all__ = ["ENTRY_BYTES", "BadLine", "Input", "Lines", "Spans", "Window", "read_entries", "unpack_entry"]

_ENTRY = Struct("<QII")
ENTRY_BYTES = _ENTRY.size
unpack_entry = _ENTRY.unpack_from
"""Byte offset, byte length, line number from 1."""

_GAP_BYTES = 65_536
"""Lines with at most this much between them are read in one piece."""
_AHEAD_BYTES = 262_144
_AHEAD_TIMES = 16

Spans = Sequence[tuple[int, int]]
"""Byte offset and byte length."""


class BadLine(ValueError):
    """A line that validation should have refused."""


def read_entries(index: Path | bytes, rows: range) -> bytes:
    """Read the index entries of `rows`; those of a lost index point at nothing. Blocking, unless the index is given itself."""
    if isinstance(index, bytes):
        return index[rows.start * ENTRY_BYTES : rows.stop * ENTRY_BYTES]
    try:
        with index.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), len(rows) * ENTRY_BYTES, rows.start * ENTRY_BYTES)
    except FileNotFoundError:
        data = b""
    had = len(data) // ENTRY_BYTES
    return data[: had * ENTRY_BYTES] + b"".join(_ENTRY.pack(0, 0, row + 1) for row in rows[had:])


class Window:
    """A piece of the input that was read ahead."""

    __slots__ = ("_begin", "_data", "_end")

    def __init__(self, begin: int = 0, data: bytes = b"") -> None:
        """`data` is what is at byte `begin`."""
        self._begin, self._end = begin, begin + len(data)
        self._data = data

    def holds(self, spans: Spans) -> bool:
        """Tell whether lines are all in here."""
        begin, end = self._begin, self._end
        return all(begin <= offset and offset + length <= end for offset, length in spans)

    def lines(self, spans: Spans) -> list[bytes]:
        """Give lines; what is beyond the end of the input is missing."""
        data, begin = self._data, self._begin
        return [data[offset - begin : offset - begin + length] for offset, length in spans]


class Input:
    """A batch's input. It is opened for each read: a batch that waits holds no file open, and none is closed under a reader."""

    __slots__ = ("missing", "path")

    def __init__(self, path: Path) -> None:
        """Nothing is opened."""
        self.path = path
        self.missing = False
        """It was not there when it was read."""

    def read(self, spans: Spans) -> tuple[list[bytes], Window]:
        """Read lines, and a little ahead when they are neighbours: the next ones are likely there. Blocking.

        A line that isn't there whole comes cut short.
        """
        lines: list[bytes] = []
        window = Window()
        with self.path.open("rb", buffering=0) as file:
            at = 0
            while at < len(spans):
                begin, end, after = spans[at][0], sum(spans[at]), at + 1
                while after < len(spans) and end <= spans[after][0] <= end + _GAP_BYTES:
                    end = sum(spans[after])
                    after += 1
                ahead = min(_AHEAD_BYTES, _AHEAD_TIMES * (end - begin)) if after - at == len(spans) else 0
                window = Window(begin, os.pread(file.fileno(), max(end - begin, ahead), begin))
                lines += window.lines(spans[at:after])
                at = after
        return lines, window


class _Line(msgspec.Struct):
    custom_id: msgspec.Raw
    body: msgspec.Raw


_line = msgspec.json.Decoder(_Line)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Lines:
    """Parses a batch's lines and adds the batch's defaults to their bodies."""

    def __init__(self, body_defaults: str) -> None:
        """`body_defaults` is a JSON object, or empty."""
        self._defaults = {name: bytes(value) for name, value in _members.decode(body_defaults or "{}").items()}

    def parse(self, line: bytes) -> tuple[bytes, bytes]:
        """Give custom_id, as JSON text, and body. Raises BadLine."""
        try:
            parsed = _line.decode(line)
            body = bytes(parsed.body)
            return ascii_json(bytes(parsed.custom_id)), self._merged(body) if self._defaults else body
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise BadLine(str(error)) from error

    def _merged(self, body: bytes) -> bytes:
        have = _members.decode(body)
        if "max_completion_tokens" in have:
            have.setdefault("max_tokens", msgspec.Raw(b"null"))
        added = [msgspec.json.encode(name) + b":" + value for name, value in self._defaults.items() if name not in have]
        if not added:
            return body
        return body[:-1].rstrip() + (b"," if len(body[1:-1].strip()) else b"") + b",".join(added) + b"}"

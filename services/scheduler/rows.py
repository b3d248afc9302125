"""From index entries to requests: lines are read in windows by position, never the whole input, and never mapped into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

import msgspec

from haywain.openai import ascii_json

__all__ = ["ENTRY_BYTES", "BadLine", "Index", "Input", "Lines", "read_entries", "read_lines"]

_ENTRY = Struct("<QII")
ENTRY_BYTES = _ENTRY.size
_GAP_BYTES = 65_536
"""Lines with at most this much between them are read in one piece."""

Entry = tuple[int, int, int]
"""Byte offset, byte length, line number from 1."""


class BadLine(ValueError):
    """A line that validation should have refused."""


class Index:
    """The index entries of a run of rows."""

    __slots__ = ("_base", "_data")

    def __init__(self, data: bytes, first_row: int) -> None:
        """`data` are whole entries, the first of them is of `first_row`."""
        self._data = data
        self._base = first_row

    def __getitem__(self, row: int) -> Entry:
        """Tell a row's entry."""
        return _ENTRY.unpack_from(self._data, (row - self._base) * ENTRY_BYTES)


def read_entries(path: Path, rows: range) -> bytes:
    """Read the index entries of `rows`. Blocking."""
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), len(rows) * ENTRY_BYTES, rows.start * ENTRY_BYTES)


def read_lines(file: int, spans: Sequence[tuple[int, int]]) -> list[bytes]:
    """Read lines by (offset, length) from a file descriptor, neighbours in one piece. Blocking."""
    lines: list[bytes] = []
    at = 0
    while at < len(spans):
        begin, end, after = spans[at][0], sum(spans[at]), at + 1
        while after < len(spans) and end <= spans[after][0] <= end + _GAP_BYTES:
            end = sum(spans[after])
            after += 1
        data = os.pread(file, end - begin, begin)
        lines.extend(data[offset - begin : offset - begin + length] for offset, length in spans[at:after])
        at = after
    return lines


class Input:
    """A batch's input file, opened when it is first read. Blocking."""

    __slots__ = ("_file", "path")

    def __init__(self, path: Path) -> None:
        """Nothing is opened yet."""
        self.path = path
        self._file = -1

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read lines by (offset, length)."""
        if self._file < 0:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return read_lines(self._file, spans)

    def close(self) -> None:
        """Close the file; reading opens it again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


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

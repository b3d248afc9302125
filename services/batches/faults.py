"""What is wrong with an input: listed for the batch object, and written as error lines where that was asked for."""

from __future__ import annotations

import hashlib
from typing import BinaryIO

import msgspec

from haywain.openai import encode
from services.batches.record import Fault, Rejected

__all__ = ["Faults", "Rejects"]

FIRST = 100
_ROW = 0x8000_0000
"""Added to a line's number for the id of its error line: no row has such a number."""
_LINE = b'{"id":"%b%08x","custom_id":%b,"response":null,"error":{"code":%b,"message":%b,"line":%d}}\n'
_FLUSH_LINES = 1_000


class Rejects(msgspec.Struct, frozen=True):
    """The bad lines of a file: how many, the first hundred, and size and hash of the file of error lines, if one was written."""

    count: int = 0
    first: list[Rejected] = []
    size_bytes: int = 0
    sha256: str = ""


class Faults:
    """Those of the whole file, and those of lines: all up to a limit, the rest counted."""

    def __init__(self, limit: int, file: BinaryIO | None, row_prefix: str) -> None:
        """Write error lines of bad lines to `file`; their ids begin with `row_prefix`."""
        self.whole: list[Fault] = []
        self.count = 0
        """Bad lines."""
        self._limit = limit
        self._lines: list[Fault] = []
        self._file = file
        self._prefix = row_prefix.encode()
        self._first: list[Rejected] = []
        self._held: list[bytes] = []
        self._hash = hashlib.sha256()
        self._size = 0

    def add(self, fault: Fault, custom_id: str | None) -> None:
        """Take one, in line order."""
        self.count += 1
        if len(self._lines) < self._limit:
            self._lines.append(fault)
        if self._file is None:
            return
        if len(self._first) < FIRST:
            self._first.append(Rejected(fault, custom_id))
        row = (_ROW + fault.line) & 0xFFFF_FFFF
        error = encode(fault.code), encode(fault.message), fault.line
        self._held.append(_LINE % (self._prefix, row, encode(custom_id), *error))
        if len(self._held) >= _FLUSH_LINES:
            self._flush()

    def listed(self) -> list[Fault]:
        """List them for the batch object."""
        more = self.count - len(self._lines)
        closing = [Fault("too_many_errors", f"{more} more lines are bad and not listed here.")] if more else []
        return [*self.whole, *self._lines, *closing]

    def rejects(self) -> Rejects:
        """Finish the file of error lines."""
        if self._file is None:
            return Rejects(self.count)
        self._flush()
        return Rejects(self.count, self._first, self._size, self._hash.hexdigest())

    def _flush(self) -> None:
        data = b"".join(self._held)
        self._held.clear()
        self._hash.update(data)
        self._size += len(data)
        if self._file is not None:
            self._file.write(data)

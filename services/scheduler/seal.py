"""Sealing: a batch's results, in order of completion, become an output and an error blob in the order of the input's lines.

Twelve bytes a row are in memory, whatever the lines' size. What is written depends on the results, the input and the stop reason
only, so sealing again gives the same bytes.
"""

from __future__ import annotations

import hashlib
import heapq
import os
from array import array
from collections.abc import Iterable, Iterator
from io import FileIO
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from haywain import crash
from services.scheduler.pieces import Piece, Pieces
from services.scheduler.replay import GOOD, entries
from services.scheduler.results import unrun_line
from services.scheduler.rows import ENTRY_BYTES, BadLine, Lines, unpack_entry

__all__ = ["Plan", "Sealed", "seal"]

_PIECE_BYTES = 1 << 20
_RUN_ROWS = 4_096
_GOOD = 1 << 63
_NONE = 1 << 62
"""A line number behind all others."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to seal, and where to."""

    input: str
    index: Path | bytes
    """Where it is, or all of it."""
    results: tuple[Piece, ...]
    """Where the lines of recorded rows are."""
    prefix: bytes
    row_count: int
    models: tuple[int, ...]
    """The first row of each model's."""
    unrun: tuple[str, str]
    """Code and message of rows that are not in the results."""
    rejected: str = ""
    """Error lines of lines that are no rows, by line number; empty for none."""
    output: str
    error: str


class Sealed(msgspec.Struct, frozen=True):
    """A file that was written; `lines` 0 when there is none."""

    lines: int
    size: int
    sha256: str


def seal(plan: Plan) -> tuple[Sealed, Sealed]:
    """Write output and error file; both paths must be new. Blocking."""
    places, lengths = _recorded(plan)
    with Pieces(plan.results) as results, _Input(plan) as source, _Writer(plan.output) as output, _Errors(plan) as error:
        begin = end = lines = 0  # a run of completed rows that are neighbours there as well
        for row in source.in_line_order():
            length, place = lengths[row], places[row]
            if place & _GOOD:
                if place != end or end - begin > _PIECE_BYTES:
                    output.copy(results, begin & ~_GOOD, end - begin, lines)
                    begin, end, lines = place, place, 0
                end += length
                lines += 1
            elif length:
                error.copy_line(results, place, length, source.number(row))
            else:
                custom_id, number = source.row(row)
                error.write_line(unrun_line(plan.prefix, row, custom_id, number, plan.unrun), number)
        output.copy(results, begin & ~_GOOD, end - begin, lines)
        crash.point("scheduler:sealing")
        error.finish()
    return output.sealed(), error.sealed()


def _recorded(plan: Plan) -> tuple[array[int], array[int]]:
    """Find each row's line: its offset in the results, with a bit for those that completed, and its length, 0 for none."""
    places, lengths = array("Q", bytes(8 * plan.row_count)), array("I", bytes(4 * plan.row_count))
    for offset, line, row in entries(Pieces(plan.results).lines(), plan.prefix, plan.row_count):
        if row >= 0 and not lengths[row]:
            lengths[row] = len(line)
            places[row] = offset | _GOOD if line.endswith(GOOD) else offset
    return places, lengths


def _opened(path: str | Path) -> BinaryIO:
    """Open a file; one that isn't there is empty."""
    try:
        return open(path, "rb", buffering=_PIECE_BYTES)
    except FileNotFoundError:
        return open(os.devnull, "rb")


class _Input:
    """The batch's lines and index. What of them is lost costs only the custom_ids and the order of rows that never ran."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lines = Lines("")
        self._file = _opened(plan.input)
        self._index = plan.index if isinstance(plan.index, bytes) else _opened(plan.index)

    def row(self, row: int) -> tuple[bytes, int]:
        """Read a row's custom_id, as JSON text, and line number."""
        entry = self._entries(row, 1)
        if len(entry) < ENTRY_BYTES:
            return b"null", row + 1
        offset, length, number = unpack_entry(entry)
        try:
            return self._lines.parse(os.pread(self._file.fileno(), length, offset))[0], number
        except BadLine:
            return b"null", number

    def number(self, row: int) -> int:
        """Read a row's line number."""
        entry = self._entries(row, 1)
        return int(unpack_entry(entry)[2]) if len(entry) == ENTRY_BYTES else row + 1

    def in_line_order(self) -> Iterable[int]:
        """Yield rows by line number; they are sorted by model first."""
        count, models = self._plan.row_count, self._plan.models
        if len(models) <= 1:
            return range(count)
        runs = [range(begin, end) for begin, end in pairwise((*models, count))]
        return (row for _, row in heapq.merge(*map(self._numbered, runs)))

    def _numbered(self, rows: range) -> Iterator[tuple[int, int]]:
        for begin in range(rows.start, rows.stop, _RUN_ROWS):
            some = range(begin, min(begin + _RUN_ROWS, rows.stop))
            data = self._entries(begin, len(some))
            for at, row in enumerate(some):
                yield unpack_entry(data, at * ENTRY_BYTES)[2] if len(data) >= (at + 1) * ENTRY_BYTES else row + 1, row

    def _entries(self, row: int, rows: int) -> bytes:
        index, begin, size = self._index, row * ENTRY_BYTES, rows * ENTRY_BYTES
        return index[begin : begin + size] if isinstance(index, bytes) else os.pread(index.fileno(), size, begin)

    def __enter__(self) -> _Input:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not isinstance(self._index, bytes):
            self._index.close()


class _Writer:
    """A file that is hashed and counted as it is written, and made when there is something to write."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file: FileIO | None = None
        self._hash = hashlib.sha256()
        self._waiting: list[bytes] = []
        self._waiting_size = self._size = self._lines = 0

    def write(self, line: bytes) -> None:
        self._take(line, 1)

    def copy(self, source: Pieces, offset: int, size: int, lines: int) -> None:
        """Append lines that are recorded."""
        if size:
            self._take(source.read(size, offset), lines)

    def sealed(self) -> Sealed:
        return Sealed(self._lines, self._size, self._hash.hexdigest())

    def _take(self, data: bytes, lines: int) -> None:
        self._waiting.append(data)
        self._waiting_size += len(data)
        self._lines += lines
        if self._waiting_size >= _PIECE_BYTES:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._waiting)
        if self._file is None:
            self._file = self._path.open("xb", buffering=0)
        self._hash.update(data)
        self._size += len(data)
        self._waiting, self._waiting_size = [], 0
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None and self._lines:
                self._flush()
        finally:
            if self._file is not None:
                self._file.close()
                if kind is not None:
                    self._path.unlink(missing_ok=True)


class _Errors(_Writer):
    """The error file. What validation rejected is put between rows as its place comes; each such line ends in `"line":123}}`."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.error)
        self._rejected = _opened(plan.rejected or os.devnull)
        self._take_next()

    def copy_line(self, source: Pieces, offset: int, size: int, number: int) -> None:
        self._catch_up(number)
        self.copy(source, offset, size, 1)

    def write_line(self, line: bytes, number: int) -> None:
        self._catch_up(number)
        self.write(line)

    def finish(self) -> None:
        self._catch_up(_NONE)
        self._rejected.close()

    def _catch_up(self, number: int) -> None:
        while self._next_number < number:
            self.write(self._next)
            self._take_next()

    def _take_next(self) -> None:
        self._next = self._rejected.readline()
        self._next_number = int(self._next[self._next.rindex(b":") + 1 : -3]) if self._next else _NONE

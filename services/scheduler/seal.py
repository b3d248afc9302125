"""Sealing: a batch's journal, in order of completion, becomes an output and an error blob in the order of the input's lines.

Runs in a process of its own, which dies with the scheduler. Twelve bytes a row are in memory, whatever the lines' size. The result
depends on the journal, the input and the stop reason only, so sealing again gives the same bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import multiprocessing
import os
import signal
from array import array
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import BinaryIO

import msgspec

from haywain import log, orphans
from services.scheduler.replay import entries
from services.scheduler.results import unrun_line
from services.scheduler.rows import ENTRY_BYTES, BadLine, Lines

__all__ = ["Plan", "Sealed", "Sealer", "seal"]

_ENTRY = Struct("<QII")
_INDEX_CHUNK = 4_096 * ENTRY_BYTES
_WRITE_BYTES = 1 << 20
_GOOD = 1 << 63
_NONE = 1 << 62
"""A line number behind all others."""
_log = log.get()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to seal, and where to."""

    input: str
    index: str
    journal: str
    prefix: bytes
    row_count: int
    unrun: tuple[str, str]
    """Code and message of rows that are not in the journal."""
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
    offsets, lengths = array("Q", bytes(8 * plan.row_count)), array("I", bytes(4 * plan.row_count))
    if os.path.exists(plan.journal):
        with open(plan.journal, "rb", buffering=_WRITE_BYTES) as file:
            for offset, line, row in entries(file, plan.prefix, plan.row_count):
                if row >= 0 and not lengths[row]:
                    lengths[row] = len(line)
                    offsets[row] = offset | (_GOOD if line.endswith(b"null}\n") else 0)
    journal = os.open(plan.journal, os.O_RDONLY) if any(lengths) else -1
    source = os.open(plan.input, os.O_RDONLY)
    lines = Lines("")
    with _Writer(plan.output) as output, _Writer(plan.error) as error, open(plan.rejected or os.devnull, "rb") as bad:
        rejected = _Rejected(bad)
        for row, (offset, length, number) in _in_line_order(plan.index, plan.row_count):
            if rejected.next_number < number:
                rejected.move(number, error)
            if lengths[row]:
                where = output if offsets[row] & _GOOD else error
                where.write(os.pread(journal, lengths[row], offsets[row] & ~_GOOD))
                continue
            try:
                custom_id, _ = lines.parse(os.pread(source, length, offset))
            except BadLine:
                custom_id = b"null"
            error.write(unrun_line(plan.prefix, row, custom_id, number, plan.unrun))
        rejected.move(_NONE, error)
    os.close(source)
    if journal >= 0:
        os.close(journal)
    return output.sealed(), error.sealed()


def _in_line_order(index: str, row_count: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Yield (row, entry) by line number; the index is sorted by model first, so it is a few sorted runs."""
    with open(index, "rb", buffering=0) as file:
        runs = list(_runs(file.fileno(), row_count))
        if len(runs) == 1:
            yield from _run(file.fileno(), runs[0])
            return
        yield from heapq.merge(*(_run(file.fileno(), run) for run in runs), key=lambda item: item[1][2])


def _runs(file: int, row_count: int) -> Iterator[range]:
    begin, before = 0, 0
    for row, (_, _, number) in _run(file, range(row_count)):
        if number < before:
            yield range(begin, row)
            begin = row
        before = number
    yield range(begin, row_count)


def _run(file: int, rows: range) -> Iterator[tuple[int, tuple[int, int, int]]]:
    row, end = rows.start, rows.stop * ENTRY_BYTES
    while row < rows.stop:
        at = row * ENTRY_BYTES
        for entry in _ENTRY.iter_unpack(os.pread(file, min(_INDEX_CHUNK, end - at), at)):
            yield row, entry
            row += 1


class _Writer:
    """A file that is hashed and counted as it is written; removed when nothing was."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file = self._path.open("xb", buffering=0)
        self._hash = hashlib.sha256()
        self._waiting: list[bytes] = []
        self._waiting_size = self._size = self._lines = 0

    def write(self, line: bytes) -> None:
        self._waiting.append(line)
        self._waiting_size += len(line)
        if self._waiting_size >= _WRITE_BYTES:
            self._flush()

    def sealed(self) -> Sealed:
        return Sealed(self._lines, self._size, self._hash.hexdigest())

    def _flush(self) -> None:
        data = b"".join(self._waiting)
        self._hash.update(data)
        self._size += len(data)
        self._lines += len(self._waiting)
        self._waiting, self._waiting_size = [], 0
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._file.close()
            if kind is not None or not self._lines:
                self._path.unlink(missing_ok=True)


class _Rejected:
    """The lines that validation rejected, handed over as their place comes; each ends in `"line":123}}`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._take()

    def move(self, before: int, error: _Writer) -> None:
        """Write what is ahead of a line number."""
        while self.next_number < before:
            error.write(self._line)
            self._take()

    def _take(self) -> None:
        self._line = self._file.readline()
        self.next_number = int(self._line[self._line.rindex(b":") + 1 : -3]) if self._line else _NONE


class Sealer:
    """The process that seals, started when it is first needed and again when it died."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._process: ProcessPoolExecutor | None = None

    async def seal(self, plan: Plan) -> tuple[Sealed, Sealed]:
        """Seal in the process. Raises OSError as `seal` does, and BrokenProcessPool when the process died twice."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._started(), seal, plan)
        except BrokenProcessPool:
            _log.warning("sealing.process_died")
            self.close()
        await asyncio.to_thread(_remove, plan.output, plan.error)
        return await loop.run_in_executor(self._started(), seal, plan)

    def warm(self) -> None:
        """Have the process started: the first seal need not wait for it."""
        if self._process is None:
            self._started().submit(int)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            running = list((process._processes or {}).values())  # noqa: SLF001 - there is no public way to stop one at work
            process.shutdown(wait=False, cancel_futures=True)
            for child in running:
                child.kill()

    def _started(self) -> ProcessPoolExecutor:
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._process = ProcessPoolExecutor(1, mp_context=context, initializer=_die_with, initargs=(os.getpid(),))
        return self._process


def _remove(*paths: str) -> None:
    for path in paths:
        Path(path).unlink(missing_ok=True)


def _die_with(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the scheduler decides when
    os.environ[orphans.PARENT_VARIABLE] = str(parent)
    orphans.die_with_parent()

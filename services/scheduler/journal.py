"""Append-only results, one file a batch: a row is recorded when its line is synced.

Lines gather while the file is being synced and go out with the next write, which starts as soon as the sync before returned: no
timer, and the slower the disk, the larger the writes. When the disk is full the lines stay in memory, dispatch pauses
(`Journals.stuck`), and the write is tried again until there is room.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from haywain import crash, durable, log
from services.scheduler import figures

__all__ = ["Group", "Journal", "Journals", "write"]

_WRITERS = 4
_TOGETHER = 16
"""Journals that a thread writes one after the other, at most: the way there and back costs more than a small one's writing."""
_RETRY_SECONDS = (0.1, 5.0)
_log = log.get()


class Group:
    """Lines that are written and synced together; `notes` is whatever the owner wants to know of them then."""

    __slots__ = ("lines", "notes", "size")

    def __init__(self) -> None:
        """Start empty."""
        self.lines: list[bytes] = []
        self.size = 0
        self.notes: dict[Any, Any] = {}


class Journal:
    """One batch's file. Only its writer touches the file; only the loop touches the rest."""

    __slots__ = ("_file", "busy", "committed", "end", "is_new", "path", "resting", "waiting")

    def __init__(self, path: Path, end: int) -> None:
        """`end` is where the last whole line ends; the file is made when the first line comes."""
        self.path = path
        self.end = end
        """Bytes that are synced."""
        self.committed = 0
        """Bytes that have been put into segments."""
        self.waiting: Group = Group()
        self.busy = False
        self.resting = False
        """It is closed when nothing waits."""
        self.is_new = False
        """It may have been made just now: nothing in it is recorded before its folder is synced."""
        self._file = -1

    def take(self) -> Group:
        """Take what waits."""
        group, self.waiting = self.waiting, Group()
        return group

    def write(self, lines: list[bytes]) -> int:
        """Write at the end and sync the file, not its folder; the size. Blocking; raises OSError and leaves the file as it was."""
        if self._file < 0:
            self.open()
        data = memoryview(b"".join(lines))
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._file, data[done:], self.end + done)
            crash.point("scheduler:journal-written")
            os.fdatasync(self._file)
            crash.point("scheduler:journal-synced")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.end)
            raise
        return done

    def open(self) -> None:
        """Open the file, made when it isn't there, and cut what is behind the end."""
        durable.make_folder(self.path.parent)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(file, self.end)
        except OSError:
            os.close(file)
            raise
        self._file = file
        self.is_new = True

    def make_sure(self) -> None:
        """Sync what was read back, and cut what is behind it: who wrote it may have died before that. Blocking; raises OSError."""
        self.open()
        try:
            os.fdatasync(self._file)
            durable.sync_folder(self.path.parent)
        finally:
            self.close()

    def rest(self) -> None:
        """Close the file as soon as nothing waits; it is opened again when a line comes."""
        self.resting = True
        if not self.busy:
            self.close()

    def close(self) -> None:
        """Close the file; it is opened again when a line comes."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Journals:
    """Writes the journals of all batches, a few at a time."""

    def __init__(self, on_synced: Callable[[Group], None], on_change: Callable[[], None]) -> None:
        """`on_synced` is told of every group on disk, `on_change` when `stuck` or `backlog` fell."""
        self._on_synced = on_synced
        self._on_change = on_change
        self._ready: asyncio.Queue[Journal] = asyncio.Queue()  # holds each journal once at most
        self._threads = ThreadPoolExecutor(_WRITERS, thread_name_prefix="journal")
        self._idle: dict[Journal, asyncio.Event] = {}
        self.stuck = 0
        """Journals that can't be written for now."""
        self.backlog = 0
        """Bytes that wait to be synced."""

    def append(self, journal: Journal, line: bytes) -> dict[Any, Any]:
        """Add a line; `on_synced` tells when it is recorded. Gives the notes of its group."""
        group = journal.waiting
        group.lines.append(line)
        size = len(line)
        group.size += size
        self.backlog += size
        if not journal.busy:
            journal.busy = True
            self._ready.put_nowait(journal)
        return group.notes

    async def flushed(self, journal: Journal) -> None:
        """Wait until nothing of a journal waits."""
        while journal.busy:
            await self._idle.setdefault(journal, asyncio.Event()).wait()

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_WRITERS):
                group.create_task(self._write_on())

    async def _write_on(self) -> None:
        while True:
            ready = [await self._ready.get()]
            share = min(_TOGETHER, 1 + self._ready.qsize() // _WRITERS)
            ready += [self._ready.get_nowait() for _ in range(share - 1)]
            await self._write_all([(journal, journal.take()) for journal in ready])

    async def _write_all(self, left: list[tuple[Journal, Group]]) -> None:
        """Write groups, each until it is on the disk: what can't be written for now is tried again after a pause."""
        loop = asyncio.get_running_loop()
        pause, most = _RETRY_SECONDS
        stuck = 0
        try:
            while True:
                outcomes = await loop.run_in_executor(self._threads, write, left)
                failed: list[tuple[Journal, Group]] = []
                for (journal, group), outcome in zip(left, outcomes, strict=True):
                    if not isinstance(outcome, OSError):
                        self._written(journal, group, *outcome)
                        continue
                    failed.append((journal, group))
                    _log.error("journal.stuck", journal=journal.path.name, error=str(outcome), retry_seconds=pause)
                self.stuck += len(failed) - stuck
                left, stuck = failed, len(failed)
                self._on_change()
                if not left:
                    return
                await asyncio.sleep(pause)
                pause = min(most, 2 * pause)
        finally:
            self.stuck -= stuck

    def _written(self, journal: Journal, group: Group, size: int, seconds: float) -> None:
        figures.flushed(seconds, len(group.lines))
        journal.end += size
        self.backlog -= group.size
        self._on_synced(group)
        if journal.waiting.lines:
            self._ready.put_nowait(journal)
            return
        journal.busy = False
        if journal.resting:
            journal.close()
        if (idle := self._idle.pop(journal, None)) is not None:
            idle.set()


def write(groups: list[tuple[Journal, Group]]) -> list[tuple[int, float] | OSError]:
    """Write each, and sync; the size and the seconds it took, or why it couldn't be written. Blocking."""
    outcomes: list[tuple[int, float] | OSError] = []
    for journal, group in groups:
        began = time.perf_counter()
        try:
            outcomes.append((journal.write(group.lines), time.perf_counter() - began))
        except OSError as error:
            outcomes.append(error)
    unsynced = _sync({journal.path.parent for journal, _ in groups if journal.is_new})
    for at, (journal, _) in enumerate(groups):
        if journal.is_new and not isinstance(outcomes[at], OSError):
            outcomes[at] = unsynced.get(journal.path.parent) or outcomes[at]
            journal.is_new = isinstance(outcomes[at], OSError)
    return outcomes


def _sync(folders: set[Path]) -> dict[Path, OSError]:
    """Sync each folder, once for all files that were made there; those that couldn't be."""
    failures: dict[Path, OSError] = {}
    for folder in folders:
        try:
            durable.sync_folder(folder)
        except OSError as error:
            failures[folder] = error
    return failures

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

__all__ = ["Group", "Journal", "Journals"]

_WRITERS = 4
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

    __slots__ = ("_file", "busy", "committed", "end", "path", "resting", "waiting")

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
        self._file = -1

    def write(self, lines: list[bytes]) -> int:
        """Write at the end and sync; the size written. Blocking; raises OSError and leaves the file as it was."""
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
        folder = self.path.parent
        durable.make_folder(folder)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(file, self.end)
            durable.sync_folder(folder)
        except OSError:
            os.close(file)
            raise
        self._file = file

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
        loop = asyncio.get_running_loop()
        while True:
            journal = await self._ready.get()
            group, journal.waiting = journal.waiting, Group()
            began = time.perf_counter()
            size = await self._written(loop, journal, group)
            figures.flushed(time.perf_counter() - began, len(group.lines))
            journal.end += size
            self.backlog -= group.size
            self._on_synced(group)
            self._on_change()
            if journal.waiting.lines:
                self._ready.put_nowait(journal)
                continue
            journal.busy = False
            if journal.resting:
                journal.close()
            if (idle := self._idle.pop(journal, None)) is not None:
                idle.set()

    async def _written(self, loop: asyncio.AbstractEventLoop, journal: Journal, group: Group) -> int:
        pause, most = _RETRY_SECONDS
        stuck = False
        try:
            while True:
                try:
                    return await loop.run_in_executor(self._threads, journal.write, group.lines)
                except OSError as error:
                    if not stuck:
                        stuck = True
                        self.stuck += 1
                    _log.error("journal.stuck", journal=journal.path.name, error=str(error), retry_seconds=pause)
                await asyncio.sleep(pause)
                pause = min(most, 2 * pause)
        finally:
            self.stuck -= stuck

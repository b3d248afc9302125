"""The processes that seal: Pythons of their own, which die with the scheduler. What is small is sealed by a thread of the scheduler
itself, with others that wait: it takes less than the way to a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

from haywain import log, logfiles, orphans
from haywain.gather import gathered_on
from services.scheduler.seal import Plan, Sealed, seal

__all__ = ["Sealer"]

_PROCESSES = 2
"""So that a small batch need not wait for a large one."""
_SMALL_BYTES = 1 << 20
"""Of input and journal together: no line of either can keep the thread for long."""
_SMALL_ROWS = 1_000
_log = log.get()


class Sealer:
    """Processes that are started when they are first needed, and again when one died."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._processes: ProcessPoolExecutor | None = None
        self._thread = gathered_on(None)

    async def seal(self, plan: Plan) -> tuple[Sealed, Sealed]:
        """Seal, in a process unless it is small. Raises OSError as `seal` does, and BrokenProcessPool when a process died twice."""
        if _is_small(plan):
            both: tuple[Sealed, Sealed] = await self._thread(partial(seal, plan))
            return both
        loop = asyncio.get_running_loop()
        processes = self._started()
        try:
            return await loop.run_in_executor(processes, seal, plan)
        except BrokenProcessPool:
            if processes is self._processes:  # the first to notice: one process that dies takes the others along
                _log.warning("sealing.process_died")
                self.close()
        await asyncio.to_thread(_remove, plan.output, plan.error)
        return await loop.run_in_executor(self._started(), seal, plan)

    def warm(self) -> None:
        """Have a process started: the first seal need not wait for it."""
        if self._processes is None:
            self._started().submit(int)

    def close(self) -> None:
        """End the processes."""
        processes, self._processes = self._processes, None
        if processes is not None:
            running = list((processes._processes or {}).values())  # noqa: SLF001 - there is no public way to stop one at work
            processes.shutdown(wait=False, cancel_futures=True)
            for child in running:
                child.kill()

    def _started(self) -> ProcessPoolExecutor:
        if self._processes is None:
            context = multiprocessing.get_context("spawn")
            self._processes = ProcessPoolExecutor(_PROCESSES, mp_context=context, initializer=_die_with, initargs=(os.getpid(),))
        return self._processes


def _is_small(plan: Plan) -> bool:
    if plan.row_count > _SMALL_ROWS or plan.rejected:
        return False
    size = sum(piece.end - piece.start for piece in plan.results)
    with contextlib.suppress(FileNotFoundError):  # lost: nothing of it can be read
        size += Path(plan.input).stat().st_size
    return size <= _SMALL_BYTES


def _remove(*paths: str) -> None:
    for path in paths:
        Path(path).unlink(missing_ok=True)


def _die_with(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the scheduler decides when
    os.environ[orphans.PARENT_VARIABLE] = str(parent)
    orphans.die_with_parent()
    logfiles.follow()

"""The validation process: a Python of its own, so that reading a million lines takes nothing from the loop that answers calls.

It is started once and kept, works on one file at a time, never outlives the service, and is replaced when it dies. A small file is
read by a thread of the service itself, with others that wait: it takes a millisecond, less than the way to the process, and waits
for no large one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import stat
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

from haywain import logfiles, orphans
from haywain.gather import gathered_on
from services.batches.validate import Order, Verdict, validate

__all__ = ["SMALL_BYTES", "Validator", "ValidatorDied", "is_small"]

SMALL_BYTES = 65_536


def is_small(path: Path) -> bool:
    """Tell whether a file is small; what isn't a file has no size."""
    found = path.stat()
    return stat.S_ISREG(found.st_mode) and found.st_size <= SMALL_BYTES


class ValidatorDied(Exception):
    """The process ended while it worked on a file: killed, out of memory, or crashed."""


class Validator:
    """Validates files, one after the other."""

    def __init__(self) -> None:
        """Nothing is started before the first file."""
        self._pool: ProcessPoolExecutor | None = None
        self._turn = asyncio.Lock()
        self._thread = gathered_on(None, most=16)

    async def validate(self, order: Order) -> Verdict:
        """Validate one file. Raises ValidatorDied, OSError."""
        if is_small(Path(order.input_path)):
            verdict: Verdict = await self._thread(partial(validate, order))
            return verdict
        async with self._turn:
            try:
                return await self._start(order)
            except BrokenProcessPool as error:
                self.close()
                raise ValidatorDied from error

    def _start(self, order: Order) -> asyncio.Future[Verdict]:
        loop = asyncio.get_running_loop()
        if self._pool is not None:
            with contextlib.suppress(BrokenProcessPool):  # it died while it had nothing to do
                return loop.run_in_executor(self._pool, validate, order)
        # Submitting starts the process from this thread, the main one: the kernel ties the child's life to the thread's.
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(os.getpid(),))
        return loop.run_in_executor(self._pool, validate, order)

    def close(self) -> None:
        """Kill the process, whatever it does: nothing is lost but its time."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        processes = list((pool._processes or {}).values())  # noqa: SLF001 - there is no public way to end one that is busy
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()


def _begin(parent: int) -> None:
    """Run first in the process: die with the service; leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(50_000, 20, 20)  # what is decoded has no cycles, and a lot of it comes and goes
    os.environ[orphans.PARENT_VARIABLE] = str(parent)
    orphans.die_with_parent()
    logfiles.follow()

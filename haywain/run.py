"""`haywain run`: upload a file of requests, create a batch, watch it, download what came of it.

Exit status: 0 every row succeeded, 3 some rows failed, 1 anything else. A connection that is lost while the batch runs is taken
up again: the batch is the mesh's, not this process's.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from haywain.client import Batch, BatchClient, BatchFields, ClientError, errors_path
from haywain.errors import HaywainError

__all__ = ["command"]

SOME_ROWS_FAILED = 3


class RunFailed(HaywainError):
    """The batch could not be run."""


def command(options: argparse.Namespace) -> int:
    """Run the command; raises HaywainError with one line for people."""
    if not options.input.is_file():
        raise RunFailed(f"{options.input} is not a file")
    errors = options.errors or errors_path(options.output)
    fields = BatchFields(
        endpoint=options.endpoint,
        model=options.model,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        max_decoding_length=options.max_decoding_length,
        priority=options.priority,
    )
    began = time.monotonic()
    try:
        with BatchClient(options.url) as client, _Watch() as watch:
            batch = client.submit_batch(options.input, options.output, errors=errors, progress=watch.show, **fields)
    except ClientError as error:
        raise RunFailed(str(error)) from error
    return _verdict(batch, options.output, errors, time.monotonic() - began)


class _Watch:
    """A progress bar on a terminal, a line for each change elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (
            TextColumn("{task.description:<11}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rows"),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._line = self._bar.add_task("uploading", total=None, speed="")
        self._id = self._told = ""

    def show(self, batch: Batch) -> None:
        """Tell how far the batch is."""
        if batch["id"] != self._id:
            self._id = batch["id"]
            self._say(f"batch {self._id}")
        counts, live = batch["request_counts"], batch["x_progress"] or {}
        done = counts["completed"] + counts["failed"]
        speed = f"{live.get('rows_per_second') or 0:.1f} rows/s"
        status = batch["status"] if not batch["waiting_reason"] else f"{batch['status']} ({batch['waiting_reason']})"
        self._bar.update(self._line, description=status, completed=done, total=counts["total"] or None, speed=speed)
        plain = f"{status} {done}/{counts['total']}"
        if not self._console.is_terminal and plain != self._told:
            self._say(plain)
            self._told = plain

    def _say(self, text: str) -> None:
        if self._console.is_terminal:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)  # above the bar, not through it
        else:
            _say(text)

    def __enter__(self) -> _Watch:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


def _verdict(batch: Batch, output: Path, errors: Path, seconds: float) -> int:
    counts = batch["request_counts"]
    if batch["status"] != "completed":
        ended = f"{batch['status']}: {counts['completed']} of {counts['total']} rows done"
        raise RunFailed(f"batch {batch['id']} {ended} (see {output} and {errors})")
    if counts["failed"]:
        _say(f"{counts['failed']} of {counts['total']} rows failed: see {errors}; the others are in {output}")
        return SOME_ROWS_FAILED
    _say(f"{counts['total']} rows in {seconds:.1f} s ({counts['total'] / seconds:.1f} rows/s): {output}")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

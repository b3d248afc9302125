"""Log files of a bounded size: what is full is renamed, and who writes to it opens a new one under its name.

    files.log ──full──▶ files.log.1 ──▶ files.log.2 ──▶ … ──▶ removed after `keep`

`haywain up` renames. Its Python processes look once a second whether their file still has its name, and go on in a new one if not:
so an operator may rename it as well, and nobody's death in between costs a line. Envoy is told by SIGUSR1, once it listens to that:
before, it would die of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import threading
import time
from pathlib import Path

__all__ = ["VARIABLE", "follow", "is_full", "listens", "lock", "rotate"]

VARIABLE = "HAYWAIN_LOG_FILE"
"""Where a process that `haywain up` started finds the name of its log."""
_LOOK_SECONDS = 1.0
_CAUGHT = re.compile(rb"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)
lock = threading.Lock()
"""Held by who writes a line, so that none is torn between two files."""


def is_full(file: Path, max_bytes: int) -> bool:
    """Tell whether a log has reached its size."""
    try:
        return file.stat().st_size >= max_bytes
    except FileNotFoundError:
        return False


def listens(pid: int) -> bool:
    """Tell whether a process catches the signal by which it is told that its log was renamed; one that is gone doesn't."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False
    caught = _CAUGHT.search(status)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def rotate(file: Path, keep: int) -> None:
    """Rename a log, and its older parts before it, of which `keep` stay. Each rename is whole, and none loses a part."""
    older = [file.with_name(f"{file.name}.{number}") for number in range(1, keep + 1)]
    for part, place in reversed([*zip([file, *older], older, strict=False)]):
        with contextlib.suppress(FileNotFoundError):
            part.replace(place)
    if not keep:
        file.unlink(missing_ok=True)


def follow() -> None:
    """From now on, write standard output and error to the file that has the log's name; only where they go to a file."""
    name = os.environ.get(VARIABLE)
    if name and stat.S_ISREG(os.fstat(2).st_mode):
        threading.Thread(target=_follow, args=(Path(name),), name="log-file", daemon=True).start()


def _leads_to(file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(2), file.stat())
    except OSError:
        return False


def _follow(file: Path) -> None:
    while True:
        time.sleep(_LOOK_SECONDS)
        if not _leads_to(file):
            with contextlib.suppress(OSError), lock:
                opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                os.dup2(opened, 2)
                os.dup2(opened, 1)
                os.close(opened)

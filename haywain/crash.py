"""Named points where a test makes a process die as by `kill -9`, to see what the next life makes of what is left.

The environment variable `HAYWAIN_CRASH` names a folder. A file in it that is called as a point arms it: it holds which passing,
counted from now, is the last. The file is gone when the process is, so the process that is started next lives. Without the variable
a point costs one comparison. `tests/crash_cases.py` has the scene of each point, and a unit test holds that none is missing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

__all__ = ["VARIABLE", "armed", "point"]

VARIABLE = "HAYWAIN_CRASH"
_FOLDER = os.environ.get(VARIABLE)
_turn = threading.Lock()


def armed() -> bool:
    """Tell whether deaths may be a test's doing."""
    return _FOLDER is not None


def point(name: str) -> None:
    """Die here, if that was asked for; `name` is `process:what-is-done`."""
    if _FOLDER is not None:
        _pass(Path(_FOLDER) / name)


def _pass(order: Path) -> None:
    with _turn, contextlib.suppress(FileNotFoundError):  # not ordered, or another process was the one
        passings = int(order.read_text("ascii"))
        if passings > 1:
            scratch = order.parent.with_name(f"{order.parent.name}.{os.getpid()}")
            scratch.write_text(str(passings - 1), "ascii")
            scratch.replace(order)  # another process never reads half of it
            return
        order.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

"""No process outlives the one that started it: the kernel kills a child when its parent dies, however that dies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["PARENT_VARIABLE", "die_with_parent"]

PARENT_VARIABLE = "HAYWAIN_PARENT_PID"
_PR_SET_PDEATHSIG = 1
_QUIET = "ignore:resource_tracker:UserWarning"
"""For Python's own helper of process pools, which would call what a killed process left a leak; the kernel cleans that up."""


def die_with_parent() -> None:
    """Ask for SIGKILL at the parent's death. Where the environment names the expected parent, exit if it is gone already.

    The wish survives exec. A process that was started by hand (no variable) is left alone.
    """
    os.environ.setdefault("PYTHONWARNINGS", _QUIET)
    expected = os.environ.get(PARENT_VARIABLE)
    if not expected or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(expected):
        os._exit(1)  # without a word: there is nobody to tell

"""The processes below a process, as they are now: any of them may die while it is looked at."""

from __future__ import annotations

import contextlib

import psutil

__all__ = ["below", "dead", "kill", "words"]


def words(process: psutil.Process) -> list[str]:
    """Give a process's command line; of one that is gone, or dead and not yet waited for, nothing."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def below(parent: psutil.Process, word: str) -> list[psutil.Process]:
    """List the living children of a process that have a word in their command line."""
    return [child for child in parent.children() if any(word in part for part in words(child))]


def dead(process: psutil.Process) -> bool:
    """Tell whether a process is gone, or dead and not yet waited for."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def kill(process: psutil.Process) -> None:
    """kill -9 a process, which may have died by itself."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()

"""Who may work on a data folder: one scheduler alone, or several that know of each other."""

from __future__ import annotations

import contextlib

from haywain import lockfile
from haywain.settings import Settings

__all__ = ["take_folder"]

_PATIENCE_SECONDS = 2.0
"""A scheduler that was killed may need a moment to be gone: it may be waiting for the disk."""


def take_folder(lock: contextlib.ExitStack, settings: Settings) -> None:
    """Hold the data folder: alone, or together with other replicas and one's name alone. Raises SettingsError."""
    mine = settings.scheduler
    refusal = f"{settings.data}: another scheduler runs on this data folder"
    several = mine.replicas > 1
    folder = settings.data / "scheduler.lock"
    lock.enter_context(lockfile.held(folder, refusal, patience_seconds=_PATIENCE_SECONDS, shared=several))
    if several:
        refusal = f"{settings.data}: another scheduler is called {mine.replica}"
        own = settings.data / f"{mine.replica}.name.lock"
        lock.enter_context(lockfile.held(own, refusal, patience_seconds=_PATIENCE_SECONDS))

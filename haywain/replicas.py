"""Several processes of a kind: which one this is, and whether so many can be. Only schedulers can be several today."""

from __future__ import annotations

import msgspec

from haywain.errors import SettingsError
from haywain.settings import Settings

__all__ = ["as_replica", "check", "setting"]


def as_replica(settings: Settings, process: str, number: int) -> Settings:
    """Give the settings of one of them, with its name. Raises SettingsError."""
    names = settings.replicas(process)
    if not 1 <= number <= len(names):
        raise SettingsError(f"--replica {number}: there are {len(names)} of {process}")
    if len(names) == 1:
        return settings
    own = msgspec.structs.replace(settings.scheduler, replica=names[number - 1])
    return msgspec.structs.replace(settings, scheduler=own)


def check(settings: Settings) -> None:
    """Raise SettingsError for a number of replicas that can't be."""
    count = settings.scheduler.replicas
    if count < 1:
        raise SettingsError(f"scheduler.replicas is {count}, expected 1 or more")
    if count > 1 and not settings.db.url:
        raise SettingsError(f"scheduler.replicas is {count}: more than one scheduler needs PostgreSQL, set db.url")
    settings.addresses("scheduler")


def setting(text: str) -> str:
    """Turn `scheduler=2` into a setting. Raises SettingsError."""
    process, _, count = text.partition("=")
    if process != "scheduler" or not count.isdecimal():
        raise SettingsError(f"--replicas {text}: expected scheduler=N; of the other processes there is one each")
    return f"scheduler.replicas={count}"

"""Time, as something that is passed in: code that decides by the clock takes a `Clock`, tests give it a fake one."""

from __future__ import annotations

import time
from typing import Protocol

from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["Clock", "FakeClock", "SystemClock", "seconds", "timestamp"]


class Clock(Protocol):
    """Where `now` comes from."""

    def now(self) -> float:
        """Tell the Unix time in seconds."""

    def monotonic(self) -> float:
        """Tell a time in seconds that never goes back, from an unknown start."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Tell the Unix time in seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Tell a time in seconds that never goes back."""
        return time.monotonic()


class FakeClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        """Start at `now`, Unix seconds."""
        self._now = now

    def now(self) -> float:
        """Tell the time that was set."""
        return self._now

    def monotonic(self) -> float:
        """Tell the time that was set."""
        return self._now

    def advance(self, by: float) -> None:
        """Move on by `by` seconds."""
        self._now += by


def timestamp(unix_seconds: float | None) -> Timestamp | None:
    """Make a protobuf Timestamp, None for None: an unset field."""
    if unix_seconds is None:
        return None
    whole = int(unix_seconds // 1)
    return Timestamp(seconds=whole, nanos=int((unix_seconds - whole) * 1e9))


def seconds(stamp: Timestamp) -> float | None:
    """Read a protobuf Timestamp as Unix seconds, None when it is the zero value (unset)."""
    if not stamp.seconds and not stamp.nanos:
        return None
    return float(stamp.seconds) + stamp.nanos / 1e9

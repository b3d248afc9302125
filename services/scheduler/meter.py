"""Rates over the last seconds."""

from __future__ import annotations

from collections import deque

from haywain.clock import Clock

__all__ = ["Meter"]

_WINDOW_SECONDS = 5


class Meter:
    """Rows and tokens a second, over the last seconds."""

    __slots__ = ("_buckets", "_clock", "_since")

    def __init__(self, clock: Clock) -> None:
        """Start at nothing."""
        self._clock = clock
        self._since = clock.monotonic()
        self._buckets: deque[list[int]] = deque(maxlen=_WINDOW_SECONDS + 1)

    def add(self, rows: int, tokens: int) -> None:
        """Count."""
        second = int(self._clock.monotonic())
        if not self._buckets or self._buckets[-1][0] != second:
            self._buckets.append([second, 0, 0])
        self._buckets[-1][1] += rows
        self._buckets[-1][2] += tokens

    def rates(self) -> tuple[float, float]:
        """Tell rows and tokens a second."""
        now = self._clock.monotonic()
        span = max(1.0, min(_WINDOW_SECONDS, now - self._since))
        live = [bucket for bucket in self._buckets if bucket[0] > now - _WINDOW_SECONDS]
        return sum(bucket[1] for bucket in live) / span, sum(bucket[2] for bucket in live) / span

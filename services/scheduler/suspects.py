"""Rows that were in an engine when it was lost, and how to find the one that killed it without failing its neighbours.

    in flight ──engine lost──▶ suspect ──tried in a small group──▶ ended well: cleared
                                  ▲                  │
                                  └──engine lost─────┘   after `max_losses` losses: tried alone
                                                         lost alone, `max_losses` losses or more: the row fails

A group runs without other batch rows on its engine, so a loss points at the group. Groups are the square root of what was in
flight: an innocent crash costs little time, a poisonous row a few restarts. A row fails only when it was alone.
"""

from __future__ import annotations

from collections import deque
from math import isqrt

from services.scheduler.batch import Attempt

__all__ = ["Suspects"]


class Suspects:
    """The suspects of one model that wait for their turn."""

    def __init__(self, max_losses: int) -> None:
        """`max_losses` is how often an engine may be lost with a row before the row is tried alone."""
        self._max_losses = max_losses
        self._groups: deque[deque[Attempt]] = deque()
        self._limits: deque[int] = deque()
        self.since = 0.0
        """When the first of the waiting ones came or a group left, monotonic."""

    def __bool__(self) -> bool:
        """Tell whether any waits."""
        while self._groups:
            group = self._groups[0]
            while group and group[0].held.over:
                group.popleft()
            if group:
                return True
            self._groups.popleft()
            self._limits.popleft()
        return False

    def add(self, attempts: list[Attempt], now: float) -> None:
        """Take in what one lost engine had in flight; those who lost most engines are tried first."""
        if not attempts:
            return
        if not self:
            self.since = now
        limit = max(1, isqrt(len(attempts)))
        self._groups.appendleft(deque(sorted(attempts, key=lambda attempt: -attempt.losses)))
        self._limits.appendleft(limit)

    def group(self, most: int, now: float) -> list[Attempt]:
        """Take the next ones to try together: at most `most`, and none but them on the engine."""
        taken: list[Attempt] = []
        if not self:
            return taken
        self.since = now
        group = self._groups[0]
        limit = 1 if group[0].losses >= self._max_losses else self._limits[0]
        while group and len(taken) < min(limit, most):
            attempt = group.popleft()
            if not attempt.held.over:
                taken.append(attempt)
        return taken

"""Tokens that an engine took and gave, and how many a second: by totals that are looked at now and then, not by the row."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

__all__ = ["Speed", "Tokens"]

_WINDOW_SECONDS = 5.0


class Tokens:
    """Totals; whoever sees a result adds to them."""

    __slots__ = ("cached", "given", "output")

    def __init__(self) -> None:
        """Nothing ended yet."""
        self.given = self.cached = self.output = 0

    def add(self, given: int, cached: int, output: int) -> None:
        """Count what a sequence used: prompt tokens, those of them that were in a cache, generated tokens."""
        self.given += given
        self.cached += cached
        self.output += output


class _Sample(NamedTuple):
    at: float
    given: int
    cached: int
    output: int


class Speed:
    """How the totals of one engine grew over the last seconds."""

    def __init__(self, tokens: Tokens, now: float) -> None:
        """`tokens` are the totals."""
        self._tokens = tokens
        self._samples = deque([self._sample(now)])

    def look(self, now: float) -> None:
        """Take note of the totals; what was noted long ago is dropped."""
        self._samples.append(self._sample(now))
        while len(self._samples) > 2 and self._samples[1].at <= now - _WINDOW_SECONDS:
            self._samples.popleft()

    def rates(self, now: float) -> tuple[float, float, float]:
        """Tell prompt, cached and generated tokens a second."""
        first, last = self._samples[0], self._sample(now)
        span = max(1.0, last.at - first.at)
        return (last.given - first.given) / span, (last.cached - first.cached) / span, (last.output - first.output) / span

    def _sample(self, now: float) -> _Sample:
        return _Sample(now, self._tokens.given, self._tokens.cached, self._tokens.output)

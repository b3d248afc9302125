"""What a decoder counts while it steps, told to the engine once a second: an addition a step."""

from __future__ import annotations

import bisect
from typing import Final, NamedTuple

from engine.llamacpp.messages import Figures

__all__ = ["STEP_SECONDS", "Tally", "Usage"]

STEP_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""the buckets that steps are counted in, by what they took at most; one more is for all others"""


class Usage(NamedTuple):
    """How a decoder is now."""

    running: int
    """slots in use"""
    kv_used: int
    """tokens in the KV cache"""
    generated: int
    """tokens, since it began"""
    library_seconds: float = 0.0
    """spent in evaluation, since it began"""


class Tally:
    """Counts steps since the last telling."""

    def __init__(self, before: Usage) -> None:
        """What was generated and spent `before` isn't told."""
        self._before = before
        self._steps = [0] * (len(STEP_SECONDS) + 1)
        self._seconds = 0.0

    def stepped(self, seconds: float) -> None:
        """Count a step."""
        self._steps[bisect.bisect_left(STEP_SECONDS, seconds)] += 1
        self._seconds += seconds

    def take(self, usage: Usage) -> Figures:
        """Tell, with how things are now, and begin again."""
        before, self._before = self._before, usage
        figures = Figures(
            running=usage.running,
            kv_used=usage.kv_used,
            generated=usage.generated - before.generated,
            steps=self._steps,
            step_seconds=self._seconds,
            library_seconds=usage.library_seconds - before.library_seconds,
        )
        self._steps = [0] * (len(STEP_SECONDS) + 1)
        self._seconds = 0.0
        return figures

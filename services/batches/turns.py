"""Which of the batches that wait for rows are asked for in a poll: all when they are few, else some, in turns.

News come by WatchProgress, and are lost only with its stream. So a turn may be long in coming; but when a stream begins all are
asked for, because what ended before was told to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Turns"]

ASKED_MOST = 100
TOGETHER = 1_000
"""Batches that are asked for in one call, when all are."""


class Turns:
    """Whose turn it is."""

    def __init__(self) -> None:
        """Begin with all."""
        self._all = True
        self._next = 0

    def ask_all(self) -> None:
        """Let all have their turn in the next poll."""
        self._all = True

    def of(self, waiting: Sequence[str]) -> list[Sequence[str]]:
        """Choose those to be asked for in this poll, call by call."""
        if self._all:
            self._all = False
            return [waiting[begin : begin + TOGETHER] for begin in range(0, len(waiting), TOGETHER)]
        if len(waiting) <= ASKED_MOST:
            return [waiting] if waiting else []
        begin = self._next % len(waiting)
        self._next = begin + ASKED_MOST
        return [[*waiting, *waiting[:ASKED_MOST]][begin : begin + ASKED_MOST]]

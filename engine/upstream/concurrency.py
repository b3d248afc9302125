"""Places at the upstream, as many as engine/relay/width.py finds, and who waits for one: by lane.

An upstream that says that it is busy, or is slow, keeps 0.7 of its places.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator
from typing import Final

from engine.relay.width import Width

__all__ = ["Concurrency", "TurnedAwayError"]

_FEWER: Final = 0.7
_START: Final = 16


class TurnedAwayError(Exception):
    """It is of no use to wait for a place now."""


class Concurrency:
    """Places for requests. Used from one event loop."""

    def __init__(self, most: int) -> None:
        """At most `most` places, at least one; begins with a few."""
        self._width = Width(most, min(most, _START))
        self.out = 0
        """places taken"""
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @property
    def limit(self) -> int:
        """How many places there are now."""
        return self._width.limit

    @contextlib.asynccontextmanager
    async def place(self, lane: int) -> AsyncIterator[int]:
        """Wait for a place and hold it; lower lanes go first, else first come. Gives the epoch for `busy`.

        Raises TurnedAwayError.
        """
        if self.out >= self.limit or self._waiting:
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (lane, next(self._order), granted))
            self._grant()
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled() and granted.exception() is None:
                    self._leave()
                raise
        else:
            self.out += 1
        try:
            yield self._width.epoch
        finally:
            self._leave()

    def answered(self) -> None:
        """Note a good answer."""
        if self._width.answered(full=self.out >= self.limit or bool(self._waiting)):
            self._grant()

    def busy(self, epoch: int) -> None:
        """Note that a request which got its place in `epoch` was one too many; of those that were out together, one counts."""
        self._width.busy(epoch, self.limit * _FEWER)

    def turn_away(self) -> None:
        """Let nobody wait any more: those who hold places may never leave them."""
        waiting, self._waiting = self._waiting, []
        for _, _, granted in waiting:
            if not granted.done():
                granted.set_exception(TurnedAwayError())

    def _leave(self) -> None:
        self.out -= 1
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self.out < self.limit:
            granted = heapq.heappop(self._waiting)[2]
            if not granted.done():
                self.out += 1
                granted.set_result(None)

"""How many requests the upstream gets at a time: found by trying (AIMD), never above a maximum.

    an answer comes while all places are taken   → one place more, once `limit` answers came     (additive increase)
    the upstream says that it is busy, or is slow → 0.7 of the places, once for all that were out (multiplicative decrease)

Who waits for a place waits by lane. Times are none here: only counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator
from typing import Final

__all__ = ["Concurrency"]

_FEWER: Final = 0.7
_START: Final = 16


class Concurrency:
    """Places for requests. Used from one event loop."""

    def __init__(self, most: int) -> None:
        """At most `most` places, at least one; begins with a few."""
        self._most = most
        self.limit = min(most, _START)
        self.out = 0
        """places taken"""
        self._answers = 0  # since the last place was added
        self._epoch = 0  # one more for each decrease
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @contextlib.asynccontextmanager
    async def place(self, lane: int) -> AsyncIterator[int]:
        """Wait for a place and hold it; lower lanes go first, else first come. Gives the epoch for `busy`."""
        if self.out >= self.limit or self._waiting:
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (lane, next(self._order), granted))
            self._grant()
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():
                    self._leave()
                raise
        else:
            self.out += 1
        try:
            yield self._epoch
        finally:
            self._leave()

    def answered(self) -> None:
        """Note a good answer."""
        if self.limit < self._most and (self.out >= self.limit or self._waiting):
            self._answers += 1
            if self._answers >= self.limit:
                self._answers = 0
                self.limit += 1
                self._grant()

    def busy(self, epoch: int) -> None:
        """Note that a request which got its place in `epoch` was one too many; of those that were out together, one counts."""
        if epoch == self._epoch:
            self._epoch += 1
            self._answers = 0
            self.limit = max(1, int(self.limit * _FEWER))

    def _leave(self) -> None:
        self.out -= 1
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self.out < self.limit:
            granted = heapq.heappop(self._waiting)[2]
            if not granted.done():
                self.out += 1
                granted.set_result(None)

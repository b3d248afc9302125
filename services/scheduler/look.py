"""A look at SQL that those share who ask for one at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["Look"]


class Look:
    """Looks, one after the other."""

    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        """`look` reads what there is and takes note of it."""
        self._look = look
        self.turn = asyncio.Lock()
        """Held by a look; who changes what is looked at may hold it meanwhile."""
        self._begun = self._done = 0
        """Looks, by number."""

    async def __call__(self) -> None:
        """Know what is so by now: by a look that begins after this call, anybody's that goes well. Raises what it raises."""
        mine = self._begun + 1  # one that is under way may have read before
        async with self.turn:
            if self._done < mine:
                self._begun = number = self._begun + 1
                await self._look()
                self._done = number

"""Whether the server that a backend relays to is there.

    there ──gone──▶ away ──returned──▶ there ──answered──▶ "back" in the log
                     ▲                   │
                     └───────gone────────┘

While it is away nothing is sent. The log has one line when it goes, and one when it has answered a row again: a server that says
that it is there and refuses every row isn't back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from haywain import log

__all__ = ["Presence"]

_ASK_AGAIN_SECONDS: Final = 0.25
_LOOK_SECONDS: Final = 2.0
_REASON_CHARACTERS: Final = 300
_log = log.get()


class Presence:
    """One server's. Used from one event loop."""

    def __init__(
        self, name: str, *, goes: Callable[[], None] = lambda: None, returns: Callable[[], None] = lambda: None, **told: str
    ) -> None:
        """It is there. `name` begins its log events, `told` is in them. `goes` and `returns` are called each time that it does."""
        self.reason = ""
        """why nothing is sent; empty: it is there"""
        self._name = name
        self._told = told
        self._goes = goes
        self._returns = returns
        self._logged = False
        self._there = asyncio.Event()
        self._there.set()
        self._away = asyncio.Event()

    def gone(self, reason: str) -> None:
        """Note that it is away."""
        went = not self.reason
        self.reason = reason or "away"
        self._there.clear()
        self._away.set()
        if not self._logged:
            self._logged = True
            _log.warning(f"{self._name}.away", reason=self.reason[:_REASON_CHARACTERS], **self._told)
        if went:
            self._goes()

    def returned(self) -> None:
        """Note that it says that it is there."""
        self.reason = ""
        self._away.clear()
        self._there.set()
        self._returns()

    def answered(self) -> None:
        """Note that it answered a row."""
        if self._logged and not self.reason:
            self._logged = False
            _log.info(f"{self._name}.back", **self._told)

    async def there(self, seconds: float) -> bool:
        """Wait until it is there, for so long at most; whether it is."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._there.wait(), max(0.0, seconds))
        return not self.reason

    async def watch(self, look: Callable[[], Awaitable[str]], due: Callable[[], bool] = lambda: True) -> None:
        """Look after it, until cancelled: four times a second while it is away; else every two seconds, if that is `due`.

        `look` tells why it can't be used, with an empty text when it can; what it raises is raised.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._away.wait(), _LOOK_SECONDS)
            if self.reason:
                await asyncio.sleep(_ASK_AGAIN_SECONDS)
            elif not due():
                continue
            if reason := await look():
                self.gone(reason)
            elif self.reason:
                self.returned()

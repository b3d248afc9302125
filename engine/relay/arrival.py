"""The start of a backend: its server is found, or waited for."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from haywain import log
from haywain.errors import Unavailable

__all__ = ["arrival"]

_AGAIN_SECONDS: Final = 0.5
_SAY_AGAIN_SECONDS: Final = 30.0
_log = log.get()
_T = TypeVar("_T")


async def arrival(find: Callable[[], Awaitable[_T]], *, name: str, url: str, seconds: float = math.inf) -> _T:
    """Give what `find` finds; while it raises Unavailable it is called again, and the log says so at once and each half minute.

    Raises Unavailable after so many seconds, and at once whatever else `find` raises.
    """
    until, say = time.monotonic() + seconds, 0.0
    while True:
        try:
            return await find()
        except Unavailable as error:
            now = time.monotonic()
            if now >= until:
                raise
            if now >= say:
                _log.warning(f"{name}.waiting", url=url, reason=error.message)
                say = now + _SAY_AGAIN_SECONDS
            await asyncio.sleep(min(_AGAIN_SECONDS, seconds))

"""Telling that nothing has come for a while, so that whoever waits at the other end can be told that somebody is still here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, TypeVar

__all__ = ["WAITING", "Waiting", "patient"]

_T = TypeVar("_T")


class Waiting:
    """Nothing has come."""


WAITING: Final = Waiting()


async def patient(source: AsyncIterator[_T], seconds: float) -> AsyncGenerator[_T | Waiting, None]:
    """Yield what `source` yields, and `WAITING` whenever that took another so many seconds. The caller closes `source`."""
    coming: asyncio.Future[_T] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(anext(source))
            while not (await asyncio.wait({coming}, timeout=seconds))[0]:
                yield WAITING
            try:
                yield coming.result()
            except StopAsyncIteration:
                return
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await coming

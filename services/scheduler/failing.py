"""Endless coroutines that belong together, and what the first one failed with."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc

__all__ = ["first_failure", "first_line"]


async def first_failure(*endless: Coroutine[Any, Any, None]) -> BaseException | None:
    """Run all until one fails, and end the others.

    Not a TaskGroup: up to Python 3.12 its owner looks cancelled ever after, and it forgets that it was when a member fails as well.
    """
    running = [asyncio.create_task(one) for one in endless]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).exception()
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def first_line(error: BaseException) -> str:
    """Say in one line what went wrong with a stream."""
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
    return str(details or type(error).__name__).partition("\n")[0]

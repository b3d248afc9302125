"""Waiting that tells: what comes is passed on, what doesn't come is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from gateway.patience import WAITING, Waiting, patient


async def _numbers(gate: asyncio.Event, closed: asyncio.Event) -> AsyncGenerator[int, None]:
    try:
        yield 1
        await gate.wait()
        yield 2
        raise ValueError("three")
    finally:
        closed.set()


async def test_waiting_is_told() -> None:
    """Between two that come, waiting is told as often as the time passes; the second one isn't lost, nor is the error after it."""
    gate, closed = asyncio.Event(), asyncio.Event()
    source = patient(_numbers(gate, closed), 0.01)
    assert await anext(source) == 1
    assert [await anext(source), await anext(source)] == [WAITING, WAITING]
    gate.set()
    found: int | Waiting = WAITING
    while found is WAITING:
        found = await anext(source)
    assert found == 2
    with pytest.raises(ValueError, match="three"):
        await anext(source)
    assert closed.is_set()


async def test_leaving_stops_the_source() -> None:
    """Whoever leaves while waiting stops what they waited for."""
    closed = asyncio.Event()
    numbers = _numbers(asyncio.Event(), closed)
    source = patient(numbers, 0.01)
    assert [await anext(source), await anext(source)] == [1, WAITING]
    await source.aclose()
    assert closed.is_set()


async def test_the_end() -> None:
    """The end of the source is the end."""

    async def nothing() -> AsyncGenerator[int, None]:
        return
        yield 0

    assert [one async for one in patient(nothing(), 1.0)] == []

"""How many requests an upstream gets at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from engine.upstream.concurrency import Concurrency, TurnedAwayError


class Holder:
    """Takes a place, and holds it until told."""

    def __init__(self, places: Concurrency, lane: int = 3) -> None:
        self.placed = asyncio.Event()
        self._leave = asyncio.Event()
        self.running = asyncio.create_task(self._hold(places, lane))

    async def _hold(self, places: Concurrency, lane: int) -> int:
        async with places.place(lane) as epoch:
            self.placed.set()
            await self._leave.wait()
            return epoch

    async def leave(self) -> int:
        """Give the place back; the epoch it was taken in."""
        self._leave.set()
        return await self.running


async def soon(done: Awaitable[object]) -> None:
    """Wait for what must happen without anything else happening."""
    await asyncio.wait_for(done, 5)


async def turn() -> None:
    """Let everything run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("most", "first"), [(1, 1), (4, 4), (64, 16)])
async def test_it_begins_with_a_few_places(most: int, first: int) -> None:
    """At first there are 16 places, or all that are allowed when those are fewer."""
    assert Concurrency(most).limit == first


async def test_no_more_are_out_than_there_are_places() -> None:
    """Whoever comes too many waits until a place is given back."""
    places = Concurrency(2)
    first, second, third = (Holder(places) for _ in range(3))
    await soon(second.placed.wait())
    await turn()
    assert (places.out, third.placed.is_set()) == (2, False)
    await first.leave()
    await soon(third.placed.wait())
    assert places.out == 2
    await second.leave()
    await third.leave()
    assert places.out == 0


async def test_who_waits_is_served_by_lane_then_in_turn() -> None:
    """A synchronous request takes the next place before rows that came earlier; equals go first come, first served."""
    places = Concurrency(1)
    holder = Holder(places)
    await soon(holder.placed.wait())
    waiting = [Holder(places, lane) for lane in (3, 3, 2, 1)]
    await turn()
    await holder.leave()
    order = []
    for _ in waiting:
        await turn()
        (placed,) = [number for number, one in enumerate(waiting) if one.placed.is_set() and number not in order]
        order.append(placed)
        await waiting[placed].leave()
    assert order == [3, 2, 0, 1]


async def test_a_place_more_for_every_round_of_answers() -> None:
    """While all places are taken, as many answers as there are places make one place more, up to the most."""
    places = Concurrency(18)
    holders = [Holder(places) for _ in range(17)]
    await turn()
    for _ in range(15):
        places.answered()
    assert places.limit == 16
    places.answered()
    assert places.limit == 17
    await soon(holders[16].placed.wait())
    for _ in range(100):
        places.answered()
    assert places.limit == 18, "never more than the most"
    for holder in holders:
        await holder.leave()


async def test_places_that_nobody_needs_are_not_added() -> None:
    """Answers while places are free say nothing about how many the upstream could take."""
    places = Concurrency(64)
    for _ in range(1_000):
        places.answered()
    assert places.limit == 16


async def test_being_busy_counts_once_for_those_that_were_out_together() -> None:
    """Sixteen refusals at once take 30 % of the places, not nearly all of them; the next refusal takes from what is left."""
    places = Concurrency(64)
    holders = [Holder(places) for _ in range(16)]
    await turn()
    for holder in holders:
        places.busy(await holder.leave())
    assert places.limit == 11
    later = Holder(places)
    await turn()
    places.busy(await later.leave())
    assert places.limit == 7


async def test_there_is_always_one_place() -> None:
    """However often the upstream is busy, one request at a time goes on asking it."""
    places = Concurrency(8)
    for _ in range(50):
        places.busy(await _passed(places))
    assert places.limit == 1
    await _passed(places)


async def _passed(places: Concurrency) -> int:
    holder = Holder(places)
    await soon(holder.placed.wait())
    return await holder.leave()


async def test_cancelled_waiters_hold_no_place() -> None:
    """Who is cancelled while it waits, or in the moment in which it gets its place, leaves the place to the next."""
    places = Concurrency(1)
    holder = Holder(places)
    await soon(holder.placed.wait())
    waits, gets, last = (Holder(places) for _ in range(3))
    await turn()
    waits.running.cancel()
    await turn()
    await holder.leave()  # the place is granted to `gets`, which has not run since
    gets.running.cancel()
    await soon(last.placed.wait())
    await last.leave()
    assert places.out == 0


async def test_who_waits_can_be_turned_away() -> None:
    """Those who wait are told, and one that is cancelled in that moment; those who hold places, or come later, aren't."""
    places = Concurrency(1)
    holder = Holder(places)
    await soon(holder.placed.wait())
    waiting, cancelled = Holder(places), Holder(places)
    await turn()
    places.turn_away()
    cancelled.running.cancel()
    with pytest.raises(TurnedAwayError):
        await waiting.running
    with pytest.raises(asyncio.CancelledError):
        await cancelled.running
    later = Holder(places)
    await holder.leave()
    await soon(later.placed.wait())
    await later.leave()
    assert places.out == 0

"""Calls that go together: who is with whom, who is answered what, and what becomes of those that leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from haywain import errors
from haywain.gather import Gathered, all_of, gathered_calls, gathered_on


class Doubler:
    """Doubles numbers once it may, and remembers which came together."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.may = asyncio.Event()

    async def __call__(self, numbers: list[int]) -> Sequence[int | BaseException]:
        self.groups.append(numbers)
        await self.may.wait()
        return [ValueError(number) if number < 0 else 2 * number for number in numbers]


async def begun(gathered: Gathered[int, int], numbers: Sequence[int]) -> list[asyncio.Task[int]]:
    """Call with each number; the first one is under way when this returns."""
    asking = []
    for number in numbers:
        asking.append(asyncio.create_task(gathered(number)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return asking


async def test_those_that_wait_go_together() -> None:
    """The first goes at once and alone; what comes meanwhile goes together, in order, as many as allowed."""
    double = Doubler()
    asking = await begun(Gathered(double, most=3), range(6))
    double.may.set()
    assert await asyncio.gather(*asking) == [0, 2, 4, 6, 8, 10]
    assert double.groups == [[0], [1, 2, 3], [4, 5]]


async def test_several_may_be_under_way() -> None:
    """With `at_once` 2 the second one waits for nobody either."""
    double = Doubler()
    asking = await begun(Gathered(double, at_once=2), range(4))
    assert double.groups == [[0], [1]]
    double.may.set()
    assert await asyncio.gather(*asking) == [0, 2, 4, 6]
    assert double.groups == [[0], [1], [2, 3]]


async def test_outcomes_that_are_too_few_leave_nobody_waiting() -> None:
    """When it isn't clear whose an outcome is, all fail, and who comes later is none the worse."""
    double = Doubler()

    async def forgetful(numbers: list[int]) -> Sequence[int | BaseException]:
        return (await double(numbers))[: 2 if len(numbers) > 2 else None]

    asking = await begun(Gathered(forgetful, most=3), range(5))
    double.may.set()
    outcomes = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 5)
    assert [outcome if isinstance(outcome, int) else type(outcome) for outcome in outcomes] == [0, *[ValueError] * 3, 8]


async def test_an_outcome_that_is_an_exception_is_raised_by_its_caller_only() -> None:
    """One that fails doesn't touch those beside it."""
    double = Doubler()
    asking = await begun(Gathered(double), [0, 1, -1, 2])
    double.may.set()
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert outcomes[:2] == [0, 2]
    assert isinstance(outcomes[2], ValueError)
    assert outcomes[3] == 4


async def test_a_failure_of_the_whole_is_everybodys() -> None:
    """What the operation raises is raised by each of its callers, and the next ones are served."""
    calls = 0

    async def act(numbers: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise LookupError
        return numbers

    gathered: Gathered[int, int] = Gathered(act)
    outcomes = await asyncio.gather(gathered(1), gathered(2), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LookupError, LookupError]
    assert await gathered(3) == 3


async def test_who_leaves_before_its_turn_has_nothing_done() -> None:
    """A caller that is cancelled while it waits is left out; one that is cancelled while it runs spoils nothing."""
    double = Doubler()
    asking = await begun(Gathered(double), range(4))
    asking[0].cancel()
    asking[2].cancel()
    await asyncio.sleep(0)
    double.may.set()
    assert [await asking[1], await asking[3]] == [2, 6]
    assert double.groups == [[0], [1, 3]]


async def test_one_that_ended_is_followed_by_the_next() -> None:
    """Calls one after the other are each made, also right when the one before has ended."""
    double = Doubler()
    double.may.set()
    gathered: Gathered[int, int] = Gathered(double)
    assert [await gathered(number) for number in range(20)] == [2 * number for number in range(20)]
    await gathered.settled()
    assert double.groups == [[number] for number in range(20)]


async def test_settled_waits_for_all() -> None:
    """Nothing waits and nothing is under way when `settled` returns."""
    double = Doubler()
    gathered: Gathered[int, int] = Gathered(double)
    asking = await begun(gathered, range(3))
    asyncio.get_running_loop().call_soon(double.may.set)
    await gathered.settled()
    assert double.groups == [[0], [1, 2]]
    assert all(one.done() for one in asking) or await asyncio.gather(*asking) == [0, 2, 4]


async def test_functions_share_the_way_to_a_thread() -> None:
    """Functions run on the executor's thread, one after the other, each with its own result or exception."""
    with ThreadPoolExecutor(1) as executor:
        run = gathered_on(executor)
        here, there = threading.get_ident(), await run(threading.get_ident)
        assert here != there
        outcomes = await asyncio.gather(run(lambda: 1), run(lambda: 1 // 0), run(lambda: 3), return_exceptions=True)
        assert outcomes[0] == 1
        assert isinstance(outcomes[1], ZeroDivisionError)
        assert outcomes[2] == 3
        with pytest.raises(ZeroDivisionError):
            await run(lambda: 1 // 0)


class Peer:
    """Takes letters, alone or many; refuses x; may be away."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.away = False

    async def many(self, letters: list[str]) -> list[str]:
        self.calls.append("".join(letters))
        if self.away:
            raise errors.Unavailable
        if "x" in letters:
            raise errors.Conflict("x")
        return [letter.upper() for letter in letters]

    async def alone(self, letter: str) -> str:
        return (await self.many([letter]))[0]


async def told(peer: Peer, letters: str) -> list[str | BaseException]:
    """Ask for letters at the same time."""
    ask = gathered_calls(peer.many, peer.alone)
    return await asyncio.gather(*map(ask, letters), return_exceptions=True)


async def test_a_refusal_is_only_told_to_whom_it_is_for() -> None:
    """When a call for many is refused, each is called alone."""
    peer = Peer()
    outcomes = await told(peer, "axb")
    assert outcomes[0::2] == ["A", "B"]
    assert isinstance(outcomes[1], errors.Conflict)
    assert peer.calls == ["axb", "a", "x", "b"]


async def test_a_peer_that_is_away_is_not_asked_again_by_each() -> None:
    """When a call for many finds nobody, all are told so at once."""
    peer = Peer()
    peer.away = True
    assert [type(outcome) for outcome in await told(peer, "abc")] == [errors.Unavailable] * 3
    assert peer.calls == ["abc"]


async def test_all_are_done_before_one_is_told_of_a_failure() -> None:
    """`all_of` leaves nothing running when it raises, and gives results in order."""
    done = []

    async def do(number: int) -> int:
        await asyncio.sleep(0)
        if number == 1:
            raise errors.Conflict("1")
        await asyncio.sleep(0)
        done.append(number)
        return number

    with pytest.raises(errors.Conflict):
        await all_of(map(do, range(3)))
    assert done == [0, 2]
    assert await all_of(map(do, (5, 4))) == [5, 4]

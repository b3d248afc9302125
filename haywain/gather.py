"""Calls that come while one is under way go together in the next one: the slower it is, the more of them share it.

What costs the same for one as for many (a commit, a sync, a call to another process, the way to a thread and back) is paid once for
all that wait, and nobody waits for a timer: the first call is made at once, alone.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

from haywain import errors

__all__ = ["Gathered", "all_of", "gathered_calls", "gathered_on"]

_Asked = TypeVar("_Asked")
_Told = TypeVar("_Told")


class Gathered(Generic[_Asked, _Told]):
    """An operation on many, called with one."""

    def __init__(
        self, act: Callable[[list[_Asked]], Awaitable[Sequence[_Told | BaseException]]], *, most: int = 64, at_once: int = 1
    ) -> None:
        """`act` takes 1 to `most` and gives an outcome for each, in order; what it raises is raised by all.

        It is under way `at_once` times at most. It runs in a context of its own: what is bound there is nobody's.
        """
        self._act = act
        self._most = most
        self._at_once = at_once
        self._waiting: deque[tuple[_Asked, asyncio.Future[_Told]]] = deque()
        self._acting: set[asyncio.Task[None]] = set()

    async def __call__(self, asked: _Asked) -> _Told:
        """Have one done. Whoever is cancelled before its turn has nothing done."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Told] = loop.create_future()
        self._waiting.append((asked, answer))
        if len(self._acting) < self._at_once:
            acting = loop.create_task(self._run(), context=contextvars.Context())
            self._acting.add(acting)
        return await answer

    async def settled(self) -> None:
        """Wait until nothing waits and nothing is under way."""
        while self._acting:
            await asyncio.wait(self._acting)

    async def _run(self) -> None:
        try:
            while group := self._next():
                self._tell(group, await self._outcomes(group))
        finally:
            self._acting.discard(asyncio.current_task())  # before anybody else looks

    async def _outcomes(self, group: list[tuple[_Asked, asyncio.Future[_Told]]]) -> Sequence[_Told | BaseException]:
        try:
            outcomes = await self._act([asked for asked, _ in group])
            if len(outcomes) != len(group):  # nobody could tell whose they are
                raise ValueError(f"{len(outcomes)} outcomes of {len(group)} calls")
            return outcomes
        except asyncio.CancelledError:
            for _, answer in (*group, *self._waiting):
                answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - it is raised where it belongs
            return [error] * len(group)

    def _tell(self, group: list[tuple[_Asked, asyncio.Future[_Told]]], outcomes: Sequence[_Told | BaseException]) -> None:
        for (_, answer), outcome in zip(group, outcomes, strict=True):
            if answer.done():  # its caller was cancelled
                continue
            if isinstance(outcome, BaseException):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

    def _next(self) -> list[tuple[_Asked, asyncio.Future[_Told]]]:
        group: list[tuple[_Asked, asyncio.Future[_Told]]] = []
        while self._waiting and len(group) < self._most:
            asked, answer = self._waiting.popleft()
            if not answer.done():
                group.append((asked, answer))
        return group


def gathered_calls(
    many: Callable[[list[_Asked]], Awaitable[Sequence[_Told]]], alone: Callable[[_Asked], Awaitable[_Told]]
) -> Gathered[_Asked, _Told]:
    """Make a `Gathered` of two calls to a peer that do the same, for many and for one, and may be repeated.

    When the call for many fails, each is called alone, so that each gets an answer of its own; not when the peer is away.
    """

    async def act(asked: list[_Asked]) -> Sequence[_Told | BaseException]:
        if len(asked) > 1:
            try:
                return await many(asked)
            except (errors.Unavailable, errors.DeadlineExceeded):
                raise
            except errors.HaywainError:  # one of them was refused, or the peer has no such call
                pass
        return await asyncio.gather(*map(alone, asked), return_exceptions=True)

    return Gathered(act)


async def all_of(doing: Iterable[Coroutine[Any, Any, _Told]]) -> list[_Told]:
    """Do all to their end, then raise the first exception of any; else give what they gave, in order."""
    outcomes = await asyncio.gather(*doing, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes  # type: ignore[return-value]


def gathered_on(executor: Executor | None, *, most: int = 64, at_once: int = 1) -> Gathered[Callable[[], Any], Any]:
    """Make a `Gathered` of functions, which run one after the other on a thread of `executor`, the loop's own if None."""

    async def act(works: list[Callable[[], Any]]) -> list[Any]:
        return await asyncio.get_running_loop().run_in_executor(executor, _outcomes, works)

    return Gathered(act, most=most, at_once=at_once)


def _outcomes(works: list[Callable[[], Any]]) -> list[Any]:
    return [_outcome(work) for work in works]


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BaseException as error:  # noqa: BLE001 - it is raised where it belongs
        return error

"""A channel to several servers that do the same: each call goes to the next one that is connected.

A server that is away costs nothing: its calls go to the others. One that stands still costs the calls that it had, and is left out
for a while. What such servers offer must be safe to repeat: a call whose server went away during it is sent to another one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import grpc

__all__ = ["Balanced"]

_LEFT_OUT_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_READY = grpc.ChannelConnectivity.READY


class Balanced(grpc.aio.Channel):
    """Channels that share their calls. Unary requests only."""

    def __init__(self, channels: Sequence[grpc.aio.Channel]) -> None:
        """Nothing is connected before the first call."""
        self._channels = list(channels)
        self._turn = 0
        self._left_out: dict[int, float] = {}

    def unary_unary(self, method: str, *arguments: Any, **terms: Any) -> Any:
        """Make a method with one answer."""
        return _one_answer(self, [channel.unary_unary(method, *arguments, **terms) for channel in self._channels])

    def unary_stream(self, method: str, *arguments: Any, **terms: Any) -> Any:
        """Make a method with a stream of answers."""
        methods = [channel.unary_stream(method, *arguments, **terms) for channel in self._channels]
        return lambda request, **options: _Stream(self, methods, request, options)

    def stream_unary(self, *arguments: Any, **terms: Any) -> Any:
        """Make a method that can't be called: what was sent once can't be sent to another."""
        return _refused

    def stream_stream(self, *arguments: Any, **terms: Any) -> Any:
        """Make a method that can't be called."""
        return _refused

    def choose(self, without: frozenset[int] = frozenset()) -> int:
        """Give the number of the next server: a connected one, if there is any."""
        now, count = asyncio.get_running_loop().time(), len(self._channels)
        turns = [(self._turn + step) % count for step in range(count)]
        self._turn = (self._turn + 1) % count
        ready = {at for at in turns if self._channels[at].get_state(try_to_connect=True) is _READY}
        turns.sort(key=lambda at: (at in without, at not in ready, self._left_out.get(at, 0.0) > now))
        return turns[0]

    def leave_out(self, at: int) -> None:
        """Take others for a while: a server gave no answer."""
        self._left_out[at] = asyncio.get_running_loop().time() + _LEFT_OUT_SECONDS

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Tell the state of the best."""
        states = [channel.get_state(try_to_connect=try_to_connect) for channel in self._channels]
        return _READY if _READY in states else states[0]

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the best's state is another."""
        while self.get_state() is last_observed_state:  # noqa: ASYNC110 - gRPC has no event for it
            await asyncio.sleep(_LOOK_SECONDS)

    async def channel_ready(self) -> None:
        """Wait until one is connected."""
        while self.get_state(try_to_connect=True) is not _READY:  # noqa: ASYNC110 - gRPC has no event for several
            await asyncio.sleep(_LOOK_SECONDS)

    async def close(self, grace: float | None = None) -> None:
        """Close all."""
        for channel in self._channels:
            await channel.close(grace)

    async def __aenter__(self) -> Balanced:
        """Give it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all."""
        await self.close()


def _one_answer(balanced: Balanced, methods: list[Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def call(request: Any, *, timeout: float | None = None, wait_for_ready: bool = False, **options: Any) -> Any:
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        tried: frozenset[int] = frozenset()
        while True:
            if wait_for_ready and balanced.get_state(try_to_connect=True) is not _READY:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(until):
                        await balanced.channel_ready()
            at = balanced.choose(tried)
            left = None if until is None else max(0.001, until - asyncio.get_running_loop().time())
            try:
                return await methods[at](request, timeout=left, wait_for_ready=False, **options)
            except grpc.aio.AioRpcError as error:
                tried |= {at}
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    balanced.leave_out(at)
                if not _is_away(error) or not _time_left(until) or (len(tried) >= len(methods) and not wait_for_ready):
                    raise
            if len(tried) >= len(methods):  # all of them went away: wait for the first to be back
                tried = frozenset()
                await asyncio.sleep(_LOOK_SECONDS)

    return call


class _Stream:
    """A stream of answers, from another server when the first one goes away before it has said anything."""

    def __init__(self, balanced: Balanced, methods: list[Any], request: Any, options: dict[str, Any]) -> None:
        self._balanced, self._methods = balanced, methods
        self._request, self._options = request, options
        self._tried = frozenset([at := balanced.choose()])
        self._call = methods[at](request, **options)

    def cancel(self) -> bool:
        """End it."""
        return bool(self._call.cancel())

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield the answers."""
        begun = False
        while True:
            try:
                async for message in self._call:
                    begun = True
                    yield message
            except grpc.aio.AioRpcError as error:
                if begun or not _is_away(error) or len(self._tried) >= len(self._methods):
                    raise
                at = self._balanced.choose(self._tried)
                self._tried |= {at}
                self._call = self._methods[at](self._request, **self._options)
            else:
                return


def _is_away(error: grpc.aio.AioRpcError) -> bool:
    """Tell whether it was the connection that failed: an answer that says "unavailable" comes with details."""
    details = any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ())
    return error.code() is grpc.StatusCode.UNAVAILABLE and not details


def _time_left(until: float | None) -> bool:
    return until is None or asyncio.get_running_loop().time() < until


def _refused(*_: Any, **__: Any) -> Any:
    raise TypeError("a request that is a stream can't go to one of several servers")

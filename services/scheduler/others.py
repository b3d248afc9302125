"""The other schedulers, asked for their share of what the one that was asked is to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import grpc

from haywain import errors, log, rpc
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.scheduler.v1 import scheduler_pb2_grpc
from haywain.settings import Settings

__all__ = ["Others", "together"]

_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 0.05
_State = pb.EngineStatus
_WORDS = (_State.STATE_LOST, _State.STATE_CONNECTING, _State.STATE_QUARANTINED, _State.STATE_READY, _State.STATE_DRAINING)
_RANK = {state: rank for rank, state in enumerate(_WORDS, 1)}
"""What is told when schedulers see it differently: the highest."""
_log = log.get()


class Others:
    """Calls to each of them."""

    @classmethod
    def of(cls, settings: Settings) -> Others:
        """Find the others of a mesh."""
        mine, names = settings.scheduler, settings.replicas("scheduler")
        if mine.replicas == 1:
            return cls({})
        return cls({name: at for name, at in zip(names, settings.addresses("scheduler"), strict=True) if name != mine.replica})

    def __init__(self, addresses: Mapping[str, str]) -> None:
        """`addresses` by name, without one's own."""
        self._addresses = addresses
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def ask(self, method: str, request: Any, seconds: float = _LOOK_SECONDS) -> tuple[list[Any], list[str]]:
        """Ask all at the same time; the answers, and the names of those that stand still: without one after so many seconds.

        One that is away has nothing at any engine. One that knows no such engine has nothing at it.
        """
        answers = await asyncio.gather(*(self._ask(name, method, request, seconds) for name in self._addresses))
        heard = [answer for answer in answers if answer is not None and not isinstance(answer, str)]
        return heard, [answer for answer in answers if isinstance(answer, str)]

    async def _ask(self, name: str, method: str, request: Any, seconds: float) -> Any:
        """Give an answer, None of one that is away, or the name of one that stands still."""
        if name not in self._channels:
            self._channels[name] = rpc.channel(self._addresses[name])
        call = getattr(scheduler_pb2_grpc.SchedulerServiceStub(self._channels[name]), method)
        until = asyncio.get_running_loop().time() + seconds
        while True:
            left = until - asyncio.get_running_loop().time()
            try:
                return await call(request, timeout=max(left, 0.01), metadata=rpc.metadata())
            except grpc.aio.AioRpcError as error:
                if _is_away(error) or isinstance(rpc.error_of(error), errors.NotFound):
                    return None
                if error.code() is not grpc.StatusCode.UNAVAILABLE or left <= 0:
                    _log.warning("scheduler.silent", scheduler=name, error=error.details())
                    return name
            await asyncio.sleep(_RETRY_SECONDS)  # connected, but slow to shake hands: a busy one, or one that stands still

    async def close(self) -> None:
        """Hang up."""
        for channel in self._channels.values():
            await channel.close()


def _is_away(error: grpc.aio.AioRpcError) -> bool:
    """Tell whether nobody listens there: what takes a connection and says nothing may be alive."""
    details = error.details() or ""
    return error.code() is grpc.StatusCode.UNAVAILABLE and ("refused" in details or "No such file" in details)


def together(shares: Iterable[pb.EngineStatus]) -> list[pb.EngineStatus]:
    """Make one status of each engine of what several schedulers say of it, by engine id: sums, and what most can be expected."""
    found: dict[str, pb.EngineStatus] = {}
    for share in shares:
        known = found.get(share.engine.engine_id)
        if known is None:
            found[share.engine.engine_id] = share
            continue
        best, other = (known, share) if _RANK.get(known.state, 0) >= _RANK.get(share.state, 0) else (share, known)
        best.active += other.active
        best.credits += other.credits
        best.ended += other.ended
        best.input_tokens_per_second += other.input_tokens_per_second
        best.cached_tokens_per_second += other.cached_tokens_per_second
        best.output_tokens_per_second += other.output_tokens_per_second
        best.standing |= other.standing
        found[share.engine.engine_id] = best
    return [found[engine_id] for engine_id in sorted(found)]

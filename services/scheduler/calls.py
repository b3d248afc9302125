"""Interactive requests: each waits for the next free slot, before any batch row."""

from __future__ import annotations

import asyncio
import math
from collections import deque

from haywain import errors
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from services.scheduler.batch import Key

__all__ = ["Call", "Calls", "quarantined"]

_WAITING_MAX = 1_024
_WAITING_BYTES_MAX = 64 * 1024 * 1024
_UNREAD_MAX = 8_192
"""Chunks of one answer that its caller has not read."""


class Call:
    """One interactive request, from its arrival to its result."""

    def __init__(self, request: pb.CompleteRequest) -> None:
        """It is in no queue yet."""
        self.request = request
        self.key: Key = (request.model, request.endpoint, False, None)
        self.asked = request.model
        """The name that the caller used."""
        self.attempt = 1
        self.gone = False
        """The caller left or was answered."""
        self._events: asyncio.Queue[pb.CompleteResponse | errors.HaywainError] = asyncio.Queue(_UNREAD_MAX + 1)
        self.streamed = False

    async def event(self) -> pb.CompleteResponse:
        """Wait for the next piece; raises what the call failed with."""
        event = await self._events.get()
        if isinstance(event, errors.HaywainError):
            raise event
        return event

    def delta(self, delta: engine_pb2.SequenceDelta) -> bool:
        """Pass a chunk on; False when the caller reads so slowly that the call is given up."""
        self.streamed = True
        if self._events.qsize() >= _UNREAD_MAX:
            self.fail(errors.Unavailable("The answer was not read fast enough."))
            return False
        self._events.put_nowait(pb.CompleteResponse(delta=delta))
        return True

    def end(self, result: engine_pb2.SequenceResult) -> None:
        """Answer the caller."""
        if not self.gone:
            self.gone = True
            self._events.put_nowait(pb.CompleteResponse(result=result))

    def fail(self, error: errors.HaywainError) -> None:
        """Fail the caller."""
        if not self.gone:
            self.gone = True
            self._events.put_nowait(error)


class Calls:
    """The calls that wait for a slot, by what engine they need. Bounded in number and bytes."""

    def __init__(self) -> None:
        """Start empty."""
        self._waiting: dict[Key, deque[Call]] = {}
        self._count = self._bytes = 0

    def __len__(self) -> int:
        """Count those that wait."""
        return self._count

    def add(self, call: Call) -> None:
        """Queue a call. Raises CapacityExceeded when too many wait."""
        size = len(call.request.request)
        if self._count >= _WAITING_MAX or self._bytes + size > _WAITING_BYTES_MAX:
            raise errors.CapacityExceeded(f"{self._count} requests wait for a slot already.", retry_after=1)
        self._waiting.setdefault(call.key, deque()).append(call)
        self._count += 1
        self._bytes += size

    def take(self, key: Key) -> Call | None:
        """Take the call that has waited longest."""
        queue = self._waiting.get(key)
        while queue:
            call = queue.popleft()
            self._count -= 1
            self._bytes -= len(call.request.request)
            if not queue:
                del self._waiting[key]
            if not call.gone:
                return call
        return None

    def waiting(self) -> list[Call]:
        """List them."""
        return [call for queue in self._waiting.values() for call in queue]

    def wanted(self) -> list[Key]:
        """Tell what engines are waited for."""
        return list(self._waiting)


def quarantined(call: Call, wait: float) -> errors.Unavailable:
    """Say that all engines that could take a call are quarantined, and for how many seconds."""
    seconds = max(1, math.ceil(wait))
    message = (
        f"All engines of the model '{call.request.model}' are quarantined because they failed; the next try is in {seconds} s."
    )
    return errors.Unavailable(message, retry_after=seconds)

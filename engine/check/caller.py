"""One Run stream as a scheduler has it. It keeps all that comes, in order, and judges nothing: that is for the rules."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc

from engine.check.rule import Broken
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["Caller", "calling"]

_CLOSING_SECONDS = 1.0


class Caller:
    """A stream; made by `calling`."""

    def __init__(self, stub: Any, patience: float) -> None:
        """Open it."""
        self.patience = patience
        self.first: pb.RunResponse | None = None
        self.credits = 0
        """granted since the beginning"""
        self.sent = 0
        self.came: list[pb.SequenceDelta | pb.SequenceResult] = []
        """in the order of arrival; of one message, its pieces first"""
        self.times: dict[int, float] = {}
        """when a sequence's first result came, by the event loop's clock"""
        self.results: dict[int, pb.SequenceResult] = {}
        self._ended = ""
        self._waiting: deque[pb.Sequence] = deque()
        self._news = asyncio.Event()
        self._call = stub.Run()
        self._reading = asyncio.create_task(self._read(), name="check-reader")

    async def _read(self) -> None:
        try:
            while isinstance(message := await self._call.read(), pb.RunResponse):
                self._take(message)
            self._ended = f"the stream ended with {(await self._call.code()).name}"
        except grpc.aio.AioRpcError as error:
            self._ended = f"the stream broke: {error.code().name} {error.details()}"
        finally:
            self._news.set()

    def _take(self, message: pb.RunResponse) -> None:
        if self.first is None:
            self.first = message
        self.credits += message.credits
        self.came.extend(message.deltas)
        self.came.extend(message.results)
        now = asyncio.get_running_loop().time()
        for result in message.results:
            self.results.setdefault(result.sequence_id, result)
            self.times.setdefault(result.sequence_id, now)
        self._news.set()

    @property
    def over(self) -> bool:
        """Tell whether the engine's side has ended."""
        return bool(self._ended)

    async def until(self, true: Callable[[], Any], expected: str) -> None:
        """Read until it is true. Raises Broken with what was `expected` when the engine has no more to say."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.patience):
                while not true():
                    if self._ended:
                        raise Broken(expected, self._ended)
                    self._news.clear()
                    await self._news.wait()
                return
        raise Broken(expected, f"nothing of it within {self.patience:g} s")

    async def quiet(self, seconds: float) -> None:
        """Read on for a while."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._reading), seconds)

    async def start(self, *sequences: pb.Sequence) -> None:
        """Send sequences as credits allow."""
        waiting = deque(sequences)
        while waiting:
            await self.until(lambda: self.credits > self.sent, "credits to send a sequence")
            await self.hurl([waiting.popleft() for _ in range(min(len(waiting), self.credits - self.sent))])

    async def hurl(self, sequences: Iterable[pb.Sequence]) -> None:
        """Send sequences in one message, whatever the credits."""
        request = pb.RunRequest(sequences=sequences)
        self.sent += len(request.sequences)
        await self._write(request, "sequences are taken")

    async def cancel(self, *sequence_ids: int) -> None:
        """Cancel sequences."""
        await self._write(pb.RunRequest(cancel_sequence_ids=sequence_ids), "cancels are taken")

    async def _write(self, request: pb.RunRequest, expected: str) -> None:
        try:
            async with asyncio.timeout(self.patience):
                await self._call.write(request)
        except TimeoutError:
            raise Broken(expected, f"the engine doesn't read its stream for {self.patience:g} s") from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._reading), 1)
            raise Broken(expected, self._ended or str(error)) from None

    async def ended(self, *sequence_ids: int) -> list[pb.SequenceResult]:
        """Wait for the results of these."""
        missing = set(sequence_ids)
        await self.until(lambda: missing <= self.results.keys(), f"a result for each of {len(missing)} sequences")
        return [self.results[sequence_id] for sequence_id in sequence_ids]

    async def run(self, *sequences: pb.Sequence) -> list[pb.SequenceResult]:
        """Send sequences as credits allow, and wait for their results."""
        await self.start(*sequences)
        return await self.ended(*(sequence.sequence_id for sequence in sequences))

    def pieces(self, sequence_id: int) -> list[bytes]:
        """Tell the bodies of a sequence's pieces."""
        return [one.body for one in self.came if isinstance(one, pb.SequenceDelta) and one.sequence_id == sequence_id]

    async def close(self) -> None:
        """Close the caller's side and wait a little for the engine's: what it still had to say."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            async with asyncio.timeout(_CLOSING_SECONDS):
                await self._call.done_writing()
                await asyncio.shield(self._reading)

    async def break_off(self) -> None:
        """Break the stream."""
        self._call.cancel()
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading


@contextlib.asynccontextmanager
async def calling(stub: Any, patience: float) -> AsyncIterator[Caller]:
    """Open a stream for a block; what still runs at its end is cancelled."""
    caller = Caller(stub, patience)
    try:
        yield caller
    finally:
        await caller.break_off()

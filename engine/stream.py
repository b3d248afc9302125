"""One Run stream: its credits, its ids, and its answers gathered into messages.

The caller may have `window` sequences here at a time. A credit is granted back in the message that carries the result it was
used for, so what waits to be sent is bounded by the window too, however slowly the caller reads. The window shrinks when other
streams come, by credits that are not granted back, and grows when they go.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable

from engine import answers
from engine.slots import Seat, Slots
from haywain import crash, errors
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["MESSAGE_BYTES", "MESSAGE_ROWS", "RunStream"]

MESSAGE_ROWS = 512
MESSAGE_BYTES = 1_048_576
"""bodies in a message, unless one alone is larger"""
_RESULT_BYTES = 32 * 1_048_576
"""the largest answer, well below what a gRPC message may have: one row must not break the stream of the others"""
_UNREAD_BYTES = 64 * 1_048_576
"""chunks of streamed answers that may wait for a caller who doesn't read"""


class RunStream:
    """A caller's stream. An `Owner`."""

    def __init__(self, slots: Slots, window: int) -> None:
        """Grant `window` credits."""
        self._slots = slots
        self._window = window
        self._granted = window  # and not given back for good
        self._held = 0  # credits that are in use: taken and their result not sent
        self._surplus = 0  # refusals that wait to be sent
        self._taken: dict[int, Seat] = {}
        self._outbox: deque[tuple[pb.SequenceResult | pb.SequenceDelta, int, int]] = deque()
        # with its size and the credits it gives back
        self._unread = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._draining = False
        self._over = False
        self._failure: errors.HaywainError | None = None

    # -- from the slots -------------------------------------------------------------------------------------------------------

    def delta(self, local_id: int, body: bytes) -> None:
        """Queue a chunk."""
        self._outbox.append((pb.SequenceDelta(sequence_id=local_id, body=body), len(body), 0))
        self._unread += len(body)
        if self._unread > _UNREAD_BYTES:
            self.fail(errors.CapacityExceeded(f"The caller left more than {_UNREAD_BYTES} bytes of chunks unread."))
        self._wake.set()

    def result(self, local_id: int, result: pb.SequenceResult) -> None:
        """Queue an end."""
        self._taken.pop(local_id, None)
        size = len(result.body)
        if size > _RESULT_BYTES:
            message = f"The answer has {size} bytes, at most {_RESULT_BYTES} can be sent."
            result = answers.engine_error(local_id, message)
        self._outbox.append((result, size, 1))
        self._wake.set()

    # -- from the service -----------------------------------------------------------------------------------------------------

    def resize(self, window: int) -> None:
        """Grant more credits, or fewer of those that come back."""
        self._window = window
        if self._granted < window:
            self._wake.set()

    def drain(self) -> None:
        """Grant nothing more, and end the stream once everything on it has ended."""
        self._draining = True
        self._wake.set()

    def end(self) -> None:
        """End the stream in good order, without results of what hasn't ended: nothing is wrong with it, it runs elsewhere."""
        self._over = True
        self._wake.set()

    def fail(self, error: errors.HaywainError) -> None:
        """Break the stream off."""
        self._failure = self._failure or error
        self._wake.set()

    async def messages(self, requests: AsyncIterator[pb.RunRequest]) -> AsyncGenerator[pb.RunResponse, None]:
        """Run the stream: yields until the caller has closed its side and everything has ended.

        Leaving early, or being cancelled, stops every sequence on the stream. Raises what the caller did wrong.
        """
        reading = asyncio.create_task(self._read(requests), name="run-reader")
        reading.add_done_callback(lambda _: self._wake.set())
        try:
            yield pb.RunResponse(credits=self._granted)
            while True:
                await self._wake.wait()
                self._wake.clear()
                while (self._outbox or self._grants()) and self._failure is None:
                    crash.point("engine:rows-ended")
                    yield self._message()
                if self._failure is not None:
                    raise self._failure
                if self._over:
                    return
                if reading.done() or (self._draining and not self._taken):
                    if reading.done() and not reading.cancelled():
                        reading.result()
                    if reading.cancelled() or not self._taken:
                        return
        finally:
            self._slots.drop(self._taken.values())
            self._taken.clear()
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, errors.HaywainError):
                await reading

    # -- inside ---------------------------------------------------------------------------------------------------------------

    async def _read(self, requests: AsyncIterator[pb.RunRequest]) -> None:
        async for request in requests:
            if request.sequences:
                self._take(request.sequences)
            if request.cancel_sequence_ids:
                taken = (self._taken.get(local_id) for local_id in request.cancel_sequence_ids)
                self._slots.cancel([seat for seat in taken if seat is not None])
            while self._surplus > self._granted:  # whoever sends without credit and doesn't read isn't read either
                self._room.clear()
                await self._room.wait()

    def _take(self, sequences: Iterable[pb.Sequence]) -> None:
        seats = []
        for sequence in sequences:
            local_id = sequence.sequence_id
            if local_id in self._taken:
                raise errors.InvalidRequest(f"sequence_id {local_id} is in use on this stream", param="sequence_id")
            if self._held >= self._granted:
                self._refuse(local_id)
                continue
            self._held += 1
            seat = self._taken[local_id] = Seat(self, sequence)
            seats.append(seat)
        self._slots.take(seats)

    def _refuse(self, local_id: int) -> None:
        error = errors.Unavailable(f"No credit: this stream has {self._granted} sequences here already.", retry_after=1)
        self._surplus += 1
        self._outbox.append((answers.error_result(local_id, error), 0, 0))
        self._wake.set()

    def _message(self) -> pb.RunResponse:
        """Gather the oldest of what waits, in order, so that a sequence's chunks never come after its result."""
        results: list[pb.SequenceResult] = []
        deltas: list[pb.SequenceDelta] = []
        size = credits_back = 0
        while self._outbox and len(results) + len(deltas) < MESSAGE_ROWS:
            entry, entry_size, credit = self._outbox[0]
            size += entry_size
            if size > MESSAGE_BYTES and (results or deltas):
                break
            self._outbox.popleft()
            if isinstance(entry, pb.SequenceDelta):
                self._unread -= entry_size
                deltas.append(entry)
                continue
            results.append(entry)
            credits_back += credit
            if not credit:
                self._surplus -= 1
        self._held -= credits_back
        self._granted -= credits_back
        grants = self._grants()
        self._granted += grants
        self._room.set()
        return pb.RunResponse(results=results, deltas=deltas, credits=grants)

    def _grants(self) -> int:
        return 0 if self._draining else max(0, self._window - self._granted)

"""The slots, shared by all streams: who waits, who runs, who is too late.

    take ──▶ waiting (a queue a lane) ──▶ running (at the backend) ──▶ result to its stream
                 │ cancel, deadline: answered here    │ cancel: the backend is told, and answers
                 ▼                                    ▼ deadline, broken stream: answered here or not at all; the slot is
               result                                   free when the backend's result comes, which nobody gets

Streams choose their ids, so every sequence gets one of its own here, unique in the life of the process.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Protocol

from engine import answers
from engine.backend import Backend, LooksAhead
from engine.deadlines import Deadlines
from haywain import clock, errors, log
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["Owner", "Seat", "Slots"]

_LANES = (pb.LANE_INTERACTIVE, pb.LANE_EXPEDITED, pb.LANE_STANDARD)
_log = log.get()


class Owner(Protocol):
    """Where a sequence came from; `local_id` is what it is called there."""

    def delta(self, local_id: int, body: bytes) -> None:
        """Take a chunk."""

    def result(self, local_id: int, result: pb.SequenceResult) -> None:
        """Take the end; `result.sequence_id` is the local one."""


class Seat:
    """A sequence's place here."""

    __slots__ = ("arrived", "lane", "local_id", "owner", "sequence", "sequence_id", "waited_ms")

    def __init__(self, owner: Owner, sequence: pb.Sequence) -> None:
        """Belongs to `owner`; the rest is filled in by `Slots`."""
        self.owner: Owner | None = owner  # None: answered, or nobody wants it
        self.sequence: pb.Sequence | None = sequence  # None once it runs
        self.local_id = sequence.sequence_id
        lane = sequence.lane
        self.lane = lane if lane in _LANES else pb.LANE_STANDARD
        self.sequence_id = 0
        self.arrived = 0.0  # by the monotonic clock
        self.waited_ms = 0


class Slots:
    """Gives waiting sequences to the backend as slots become free, and its answers to their owners. An `Emit`."""

    def __init__(self, backend: Backend, now: clock.Clock) -> None:
        """`serve` tells later which models there are."""
        self._backend = backend
        self._clock = now
        self._loop = asyncio.get_running_loop()
        self._room = backend.slots + (backend.lookahead if isinstance(backend, LooksAhead) else 0)
        self._running = 0
        self._seats: dict[int, Seat] = {}
        self._lanes: dict[int, OrderedDict[int, Seat]] = {lane: OrderedDict() for lane in _LANES}
        self._deadlines = Deadlines(self._seats)
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._last_id = 0
        self._filling = False
        self._fill_planned = False
        self._endpoints: Mapping[str, frozenset[str]] = {}
        self._draining = False
        self.death: asyncio.Future[str] = self._loop.create_future()
        """done, with the reason, when the backend can't go on"""

    def serve(self, models: Iterable[pb.ModelDescription]) -> None:
        """Begin to take sequences for these models."""
        self._endpoints = {name: frozenset(model.endpoints) for model in models for name in (model.model, *model.aliases)}

    # -- from streams ---------------------------------------------------------------------------------------------------------

    def take(self, seats: Iterable[Seat]) -> None:
        """Take sequences over. What can't be run is answered before this returns, and so may be what needs no time."""
        arrived = self._clock.monotonic()
        ahead = arrived - self._clock.now()
        for seat in seats:
            sequence = seat.sequence
            if sequence is None:
                continue
            self._last_id += 1
            seat.sequence_id = sequence.sequence_id = self._last_id
            seat.arrived = arrived
            self._seats[seat.sequence_id] = seat
            self._lanes[seat.lane][seat.sequence_id] = seat
            refusal = self._refusal(sequence)
            if refusal is not None:
                self._unseat(seat, answers.error_result(seat.local_id, refusal))
            elif sequence.HasField("deadline"):
                deadline = sequence.deadline
                self._deadlines.add(deadline.seconds + deadline.nanos / 1e9 + ahead, seat.sequence_id)
        self._look_for_late()
        self._fill()

    def cancel(self, seats: Iterable[Seat]) -> None:
        """Stop sequences; each still gets a result."""
        running = []
        for seat in seats:
            if seat.sequence_id not in self._seats:
                continue
            if seat.sequence is None:
                running.append(seat.sequence_id)
            else:
                self._unseat(seat, answers.cancelled(seat.local_id))
        if running:
            self._backend.cancel(running)

    def drop(self, seats: Iterable[Seat]) -> None:
        """Stop sequences that nobody waits for any more; they get no result."""
        dropped = list(seats)
        for seat in dropped:
            seat.owner = None
        self.cancel(dropped)

    def drain(self) -> None:
        """Take nothing more; what waits is refused as retryable, what runs may end."""
        self._draining = True
        for lane in self._lanes.values():
            for seat in list(lane.values()):
                self._unseat(seat, answers.error_result(seat.local_id, _stopping()))

    # -- from the backend -----------------------------------------------------------------------------------------------------

    def delta(self, sequence_id: int, body: bytes) -> None:
        """Pass a chunk on."""
        seat = self._seats.get(sequence_id)
        if seat is not None and seat.owner is not None:
            seat.owner.delta(seat.local_id, body)

    def result(self, result: pb.SequenceResult) -> None:
        """Pass the end on and free the slot."""
        seat = self._seats.pop(result.sequence_id, None)
        if seat is None:
            _log.error("sequence.unknown", sequence_id=result.sequence_id)
            return
        self._running -= 1
        if seat.owner is not None:
            result.sequence_id = seat.local_id
            if seat.waited_ms:
                result.queue_ms += seat.waited_ms
            seat.owner.result(seat.local_id, result)
        if not self._filling and not self._fill_planned:
            # Refilled once for all the results of a pass of the event loop.
            self._fill_planned = True
            self._loop.call_soon(self._fill)

    def died(self, reason: str) -> None:
        """Note that the backend can't go on."""
        if not self.death.done():
            self.death.set_result(reason)

    # -- inside ---------------------------------------------------------------------------------------------------------------

    def _refusal(self, sequence: pb.Sequence) -> errors.HaywainError | None:
        if self._draining:
            return _stopping()
        endpoints = self._endpoints.get(sequence.model)
        if endpoints is None:
            return errors.ModelMissing(f"The model '{sequence.model[:200]}' is not served by this engine.", param="model")
        if sequence.endpoint not in endpoints:
            served = ", ".join(sorted(endpoints))
            return errors.InvalidRequest(
                f"The model '{sequence.model}' does not serve {sequence.endpoint[:200]!r} on this engine, only {served}.",
                code="invalid_url",
                param="url",
            )
        return None

    def _fill(self) -> None:
        """Give the backend as many as it has room for. It may answer at once, from inside `submit`."""
        self._fill_planned = False
        if self._filling:
            return
        self._filling = True
        try:
            while chosen := self._choose(self._room - self._running):
                self._running += len(chosen)
                self._backend.submit(chosen)
        except Exception:  # noqa: BLE001 - a backend never refuses: what gets here is a defect, and its slots are lost
            _log.exception("backend.submit_failed")
            self.died("the backend failed to take sequences")
        finally:
            self._filling = False

    def _choose(self, room: int) -> list[pb.Sequence]:
        chosen: list[pb.Sequence] = []
        now = self._clock.monotonic()
        for lane in self._lanes.values():
            while lane and len(chosen) < room:
                _, seat = lane.popitem(last=False)
                seat.waited_ms = int((now - seat.arrived) * 1_000)
                if seat.sequence is not None:
                    chosen.append(seat.sequence)
                seat.sequence = None
        return chosen

    def _unseat(self, seat: Seat, result: pb.SequenceResult) -> None:
        """End a sequence that waits."""
        del self._seats[seat.sequence_id]
        del self._lanes[seat.lane][seat.sequence_id]
        if seat.owner is not None:
            seat.owner.result(seat.local_id, result)

    def _look_for_late(self) -> None:
        """End what is too late, and come again when the next one is."""
        now = self._clock.monotonic()
        late = []
        for sequence_id in self._deadlines.due(now):
            seat = self._seats[sequence_id]
            result = answers.row_timeout(seat.local_id, now - seat.arrived)
            if seat.sequence is not None:
                self._unseat(seat, result)
                continue
            late.append(sequence_id)
            owner, seat.owner = seat.owner, None
            if owner is not None:
                owner.result(seat.local_id, result)
        if late:
            self._backend.cancel(late)
        when = self._deadlines.next()
        if when is not None and when < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = when
            self._alarm = self._loop.call_later(min(max(0.0, when - now) + 0.001, 3_600.0), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._alarm_at = math.inf
        self._look_for_late()


def _stopping() -> errors.Unavailable:
    # The code says that it never ran: not a try of the row.
    return errors.Unavailable("The engine is stopping.", code="engine_unavailable", retry_after=1)

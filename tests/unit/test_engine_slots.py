"""The slots with a backend that does as it is told: room, lanes, deadlines, and answers that come too late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from engine import answers
from engine.backend import Emit
from engine.slots import Seat, Slots
from haywain import clock, openai
from haywain.engine.v1 import engine_pb2 as pb

MODEL = pb.ModelDescription(model="m", aliases=["alias"], endpoints=["/v1/chat/completions"])


class Manual:
    """A backend whose sequences end when a test says so."""

    name = "manual"
    version = "1"

    def __init__(self, slots: int) -> None:
        """Nothing runs."""
        self.slots = slots
        self.out: list[int] = []
        self.cancelled: list[int] = []

    async def start(self, emit: Emit) -> list[pb.ModelDescription]:
        """Describe the model."""
        return [MODEL]

    def submit(self, sequences: Sequence[pb.Sequence]) -> None:
        """Note them."""
        self.out += [sequence.sequence_id for sequence in sequences]

    def cancel(self, sequence_ids: Sequence[int]) -> None:
        """Note them."""
        self.cancelled += sequence_ids

    async def close(self) -> None:
        """Do nothing."""


class Eager(Manual):
    """One that prepares ahead."""

    lookahead = 2


class Collector:
    """An owner."""

    def __init__(self) -> None:
        """Nothing came."""
        self.ended: dict[int, str] = {}

    def delta(self, local_id: int, body: bytes) -> None:
        """Do nothing."""

    def result(self, local_id: int, result: pb.SequenceResult) -> None:
        """Keep the code."""
        assert result.sequence_id == local_id
        self.ended[local_id] = result.error.code


def seats(owner: Collector, *local_ids: int, lane: int = pb.LANE_STANDARD, deadline: float | None = None) -> list[Seat]:
    """Make seats that have not been taken."""
    made = (
        pb.Sequence(
            sequence_id=number,
            model="alias",
            endpoint="/v1/chat/completions",
            lane=lane,
            deadline=clock.timestamp(deadline),
        )
        for number in local_ids
    )
    return [Seat(owner, sequence) for sequence in made]


@pytest.fixture
def fake_clock() -> clock.FakeClock:
    """Make a clock that stands still."""
    return clock.FakeClock()


async def test_a_backend_gets_no_more_than_it_has_room_for(fake_clock: clock.FakeClock) -> None:
    """As many as its slots, and its lookahead where it has one; the rest follows as results come, once a pass."""
    for backend, room in ((Manual(2), 2), (Eager(2), 4)):
        slots = Slots(backend, fake_clock)
        slots.serve([MODEL])
        owner = Collector()
        slots.take(seats(owner, *range(10, 17)))
        assert len(backend.out) == room
        slots.result(answers.engine_error(backend.out[0], "x"))
        slots.result(answers.engine_error(backend.out[1], "x"))
        assert len(backend.out) == room, "not before the pass of the event loop ends"
        await _next_pass()
        assert len(backend.out) == room + 2
        assert owner.ended == {10: "engine_error", 11: "engine_error"}


async def test_lanes_go_in_order(fake_clock: clock.FakeClock) -> None:
    """Interactive, expedited, standard; a lane nobody knows is standard; in a lane, first come first served."""
    backend = Manual(1)
    slots = Slots(backend, fake_clock)
    slots.serve([MODEL])
    owner = Collector()
    slots.take(seats(owner, 1))
    for lane in (pb.LANE_STANDARD, 99, pb.LANE_EXPEDITED, pb.LANE_INTERACTIVE):
        slots.take(seats(owner, 10 * lane, 10 * lane + 1, lane=lane))
    order = []
    while len(order) < 8:
        slots.result(answers.engine_error(backend.out[-1], "x"))
        await _next_pass()
        order.append(backend.out[-1])
    # Ids are given in order of arrival: 1; 2, 3 standard; 4, 5 unknown; 6, 7 expedited; 8, 9 interactive.
    assert order == [8, 9, 6, 7, 2, 3, 4, 5]


async def test_what_answers_after_its_deadline_is_not_heard(fake_clock: clock.FakeClock) -> None:
    """A running row past its deadline is answered, cancelled at the backend, and holds its slot until the backend's answer."""
    backend = Manual(1)
    slots = Slots(backend, fake_clock)
    slots.serve([MODEL])
    owner = Collector()
    slots.take(seats(owner, 1, 2, deadline=fake_clock.now() + 5))
    fake_clock.advance(6)
    slots.take(seats(owner, 3))
    assert owner.ended == {1: "row_timeout", 2: "row_timeout"}
    assert (backend.cancelled, backend.out) == ([1], [1])
    slots.result(answers.answer_result(1, b"late", openai.CompletionUsage.of(1, 1)))
    await _next_pass()
    assert owner.ended == {1: "row_timeout", 2: "row_timeout"}
    assert backend.out == [1, 3]


async def test_a_result_for_nothing_is_ignored(fake_clock: clock.FakeClock) -> None:
    """A backend that answers twice, or what it never got, frees no slot."""
    backend = Manual(1)
    slots = Slots(backend, fake_clock)
    slots.serve([MODEL])
    owner = Collector()
    slots.take(seats(owner, 1, 2, 3))
    slots.result(answers.cancelled(77))
    slots.result(answers.cancelled(1))
    slots.result(answers.cancelled(1))
    await _next_pass()
    assert backend.out == [1, 2]


async def test_a_stop_refuses_what_waits(fake_clock: clock.FakeClock) -> None:
    """After `drain` nothing is given to the backend any more; waiting and new rows are refused."""
    backend = Manual(1)
    slots = Slots(backend, fake_clock)
    slots.serve([MODEL])
    owner = Collector()
    slots.take(seats(owner, 1, 2))
    slots.drain()
    slots.take(seats(owner, 3))
    assert owner.ended == {2: "engine_unavailable", 3: "engine_unavailable"}
    slots.result(answers.cancelled(1))
    await _next_pass()
    assert backend.out == [1]


async def _next_pass() -> None:
    await asyncio.sleep(0)

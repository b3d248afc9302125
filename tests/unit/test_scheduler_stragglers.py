"""Slow engines, and rows that are sent to a second one: which, when, and what becomes of the two."""

from __future__ import annotations

import pytest
from scheduler_held import make_held

from haywain.engine.v1 import engine_pb2
from services.scheduler.batch import Attempt, Held
from services.scheduler.link import Link
from services.scheduler.stragglers import Pace, Stragglers, compare

CHAT = "/v1/chat/completions"
ROOM = 1 << 20
NOWHERE = -1.0
"""When a row was sent that waits for its next try."""


def make_link(name: str, *, slots: int = 8, seconds: float = 0.0, tokens: int = 0, model: str = "m", rows: int = 20) -> Link:
    """Make the link of an engine whose last rows took so long."""
    models = [engine_pb2.ModelDescription(model=model, endpoints=[CHAT])]
    link = Link(engine_pb2.Engine(engine_id=name, slots=slots, models=models))
    pace = link.paces.setdefault(model, Pace())
    for _ in range(rows):
        pace.add(seconds, tokens)
    return link


def put(link: Link, held: Held, *, at: float, rows: int = 1) -> list[Attempt]:
    """Have rows be sent at a time."""
    taken = held.take(rows, ROOM)
    for attempt in taken:
        attempt.sent_at = at
        link.attempts[attempt.row + 100] = attempt
        link.bytes += attempt.length
        held.batch.running += 1
    return taken


def send(stragglers: Stragglers, link: Link, copies: list[Attempt]) -> list[int]:
    """Do what a message does; gives the numbers of what is sent."""
    request = engine_pb2.RunRequest()
    for copy in copies:
        request.sequences.add(sequence_id=copy.row + 200)
        link.attempts[copy.row + 200] = copy
        link.bytes += copy.length
        copy.held.batch.running += 1
    stragglers.sent(link, request, copies, [])
    return [sequence.sequence_id for sequence in request.sequences]


def rows(attempts: list[Attempt]) -> list[int]:
    """Tell the rows."""
    return [attempt.row for attempt in attempts]


def test_an_engine_that_takes_three_times_as_long_is_slow() -> None:
    """It is marked at three times the others' median, keeps the mark down to twice, loses it below; each change is told once."""
    peers = [make_link("a", seconds=1.0), make_link("b", seconds=1.2), make_link("c", seconds=0.9)]
    slow = make_link("slow", seconds=3.5)
    everyone = [*peers, slow]
    assert compare(everyone) == [slow]
    assert slow.slow
    assert compare(everyone) == []
    for seconds, marked in ((2.5, True), (1.9, False), (2.5, False)):
        slow.paces["m"] = make_link("x", seconds=seconds).paces["m"]
        compare(everyone)
        assert slow.slow is marked
    assert not any(peer.slow for peer in peers)


def test_slowness_is_by_the_token_where_there_are_tokens() -> None:
    """An engine that was given longer answers is not slow; one that takes longer for each token is."""
    usual, busy = make_link("a", seconds=1.0, tokens=10), make_link("b", seconds=10.0, tokens=100)
    assert compare([usual, busy]) == []
    assert compare([usual, make_link("c", seconds=10.0, tokens=10)])[0].engine.engine_id == "c"


def test_who_is_not_called_slow() -> None:
    """Neither the only engine of a model, nor one of few rows, nor one of another model, nor where all takes next to no time."""
    alone, few = make_link("a", seconds=50.0), make_link("b", seconds=50.0, rows=19)
    other, fast = make_link("c", seconds=1.0, model="n"), make_link("d", seconds=0.01)
    assert compare([alone]) == []
    assert compare([few, fast]) == []
    assert compare([alone, other]) == []
    assert compare([make_link("e", seconds=0.2), fast]) == []


def test_late_rows_are_copied_to_an_idle_engine() -> None:
    """Rows in flight for four times what long rows take at the idle engine are copied, the longest there first, each once."""
    held = make_held(40)
    slow, idle = make_link("slow", slots=40), make_link("idle", seconds=5.0)
    put(slow, held, at=0.0, rows=3)
    put(slow, held, at=1.5)
    stragglers = Stragglers(4.0, 10.0)
    assert stragglers.pick(idle, [slow, idle], 9, ROOM, 19.9) == []
    copies = stragglers.pick(idle, [slow, idle], 9, ROOM, 20.0)
    assert rows(copies) == [0, 1]  # a quarter of eight slots
    assert idle.looks  # for more, when these have ended
    assert not stragglers
    assert send(stragglers, idle, copies) == [200, 201]
    assert stragglers
    assert [copy.attempt for copy in copies] == [2, 2]
    assert stragglers.pick(idle, [slow, idle], 9, ROOM, 99.0) == []
    for copy in copies:
        idle.forget_row(copy.row + 200)
        first = stragglers.part(copy)
        assert first is not None
        assert stragglers.part(first) is None
    assert rows(stragglers.pick(idle, [slow, idle], 9, ROOM, 99.0)) == [2, 3]
    assert rows(stragglers.pick(idle, [slow, idle], 9, ROOM, 99.0)) == []
    assert not idle.looks


@pytest.mark.parametrize(
    "why", ["nothing", "off", "room", "slots", "bytes", "samples", "soon", "model", "suspect", "over", "recorded"]
)
def test_what_is_not_copied(why: str) -> None:
    """A late row is copied; but not without room, without rows to go by, too soon, nor is a suspect, nor what is over."""
    held = make_held(9)
    slow = make_link("slow")
    idle = make_link("idle", seconds=1.0, slots=4, model="n" if why == "model" else "m", rows=7 if why == "samples" else 8)
    [attempt] = put(slow, held, at=0.0)
    stragglers = Stragglers(0.0 if why == "off" else 4.0, 10.0)
    if why == "slots":
        put(idle, held, at=29.0, rows=4)
    attempt.losses = int(why == "suspect")
    held.lost = why == "over"
    held.batch.recorded[0] = int(why == "recorded")
    room, size = int(why != "room"), 0 if why == "bytes" else ROOM
    copies = stragglers.pick(idle, [slow, idle], room, size, 9.9 if why == "soon" else 30.0)
    assert len(send(stragglers, idle, copies)) == int(why == "nothing")
    assert bool(stragglers) == (why == "nothing")
    assert stragglers.among(copies) == []


@pytest.mark.parametrize("left", ["recorded", "retried", "sent again", "lost", "over"])
def test_a_copy_whose_row_has_left_its_engine_is_not_sent(left: str) -> None:
    """When the first try ends, fails, or is lost before the copy is sent, it is taken out again, and nothing is counted twice.

    So it is when the row is at an engine again by then: that is another try.
    """
    held = make_held(9)
    slow, idle = make_link("slow"), make_link("idle", seconds=1.0)
    [attempt] = put(slow, held, at=1.0)
    stragglers = Stragglers(4.0, 10.0)
    copies = stragglers.pick(idle, [slow, idle], 9, ROOM, 30.0)
    slow.forget_row(100)
    held.batch.running -= 1
    if left == "recorded":
        held.batch.recorded[0] = 1
    elif left == "over":
        held.lost = True
    else:
        attempt.attempt, attempt.losses = 2, int(left == "lost")
        attempt.sent_at = 29.0 if left == "sent again" else NOWHERE
    assert send(stragglers, idle, copies) == []
    assert (idle.attempts, idle.bytes, held.batch.running, bool(stragglers)) == ({}, 0, 0, False)


def test_a_copy_that_cannot_be_sent_is_no_row_to_put_back() -> None:
    """It is told from a row that waits, once; then it is forgotten."""
    held = make_held(9)
    slow, idle = make_link("slow"), make_link("idle", seconds=1.0)
    [attempt] = put(slow, held, at=1.0)
    stragglers = Stragglers(4.0, 10.0)
    [copy] = stragglers.pick(idle, [slow, idle], 9, ROOM, 30.0)
    stragglers.sent(idle, engine_pb2.RunRequest(), [copy], [copy])
    assert [stragglers.unsent(one) for one in (copy, copy, attempt)] == [True, False, False]


def test_twins_of_a_stopped_batch_are_forgotten() -> None:
    """Nothing is kept of them."""
    held = make_held(9)
    slow, idle = make_link("slow"), make_link("idle", seconds=1.0)
    put(slow, held, at=1.0)
    stragglers = Stragglers(4.0, 10.0)
    assert send(stragglers, idle, stragglers.pick(idle, [slow, idle], 9, ROOM, 30.0)) == [200]
    stragglers.forget(held.batch)
    assert not stragglers

"""Who is tried, where and when, after an engine was lost; and whose rows are looked at when leases change."""

from __future__ import annotations

import pytest
from scheduler_held import make_held

from haywain.clock import FakeClock
from haywain.engine.v1 import engine_pb2
from services.scheduler.batch import Attempt, Held
from services.scheduler.gate import Open, Passing
from services.scheduler.link import Link
from services.scheduler.links import Links
from services.scheduler.stragglers import Pace
from services.scheduler.suspects import Suspected, Suspects

CHAT = "/v1/chat/completions"


def linked(links: Links, name: str, held: Held, rows: int, seconds: float) -> Link:
    """Connect an engine of four slots that has so many rows, each of which takes so long."""
    model = engine_pb2.ModelDescription(model="m", endpoints=[CHAT])
    link = Link(engine_pb2.Engine(engine_id=name, slots=4, models=[model]))
    link.ready, link.paces["m"] = True, Pace()
    link.paces["m"].add(seconds, 1)
    link.attempts = dict(enumerate(held.take(rows, 1_000)))
    links.connect(link)
    return link


def suspect(held: Held, losses: int) -> Attempt:
    """Take a row that was in so many lost engines."""
    [attempt] = held.take(1, 1_000)
    attempt.losses = losses
    return attempt


def test_one_engine_is_emptied_for_a_row_that_must_be_alone() -> None:
    """Only the engine that will be empty first stops taking rows, after five seconds; the row goes to whichever is empty first."""
    held, links, suspected = make_held(60), Links(FakeClock()), Suspected(2, lambda attempt: True)
    slow = linked(links, "a", held, 3, 30.0)
    quick = linked(links, "b", held, 4, 1.0)
    full = linked(links, "c", held, 8, 1.0)
    killer = suspect(held, 2)
    suspected.add([killer], 100.0)
    everyone = (slow, quick, full)
    assert [suspected.alone(link, links, 104.9) for link in everyone] == [None, None, None]
    assert [suspected.alone(link, links, 105.1) for link in everyone] == [None, [], None]
    quick.attempts.popitem()
    assert [suspected.alone(link, links, 106.0) for link in everyone] == [None, [], None]
    slow.attempts.clear()
    assert suspected.alone(slow, links, 107.0) == [killer]
    assert [suspected.alone(link, links, 108.0) for link in everyone] == [None, None, None]


def test_another_engine_is_emptied_when_the_first_has_a_row_that_does_not_end() -> None:
    """A row that must be alone doesn't wait for ever for an engine that never gets empty; nor for one that may be sent nothing."""
    held, links, suspected = make_held(60), Links(FakeClock()), Suspected(2, lambda attempt: True)
    hung, busy, broken = (linked(links, name, held, rows, 1.0) for name, rows in (("a", 1), ("b", 8), ("c", 0)))
    for _ in range(5):
        broken.breaker.bad(1, "500", 100.0, alone=False)
    broken.breaker.until = float("inf")
    suspected.add([suspect(held, 2)], 100.0)
    assert [suspected.alone(link, links, 120.0) for link in (hung, busy)] == [[], None]
    assert [suspected.alone(link, links, 166.0) for link in (hung, busy)] == [[], []]


@pytest.mark.parametrize("losses", [1, 2])
def test_suspects_of_a_leased_model_stay_suspects(losses: int) -> None:
    """A row that may not be sent is not chosen, nor is an engine emptied for it; others are, and it is when it may be sent."""
    mine, others, links = make_held(20), make_held(20), Links(FakeClock())
    leased = True
    suspected = Suspected(2, lambda attempt: not leased or attempt.held is others)
    link = linked(links, "a", make_held(20), 4, 1.0)
    waiting, free = suspect(mine, losses), suspect(others, losses)
    suspected.add([waiting], 100.0)
    assert (suspected.alone(link, links, 106.0), suspected.some(link, links, 4, 106.0)) == (None, [])
    suspected.add([free], 106.0)
    link.attempts.clear()
    assert (suspected.alone(link, links, 106.0) or suspected.some(link, links, 4, 106.0)) == [free]
    assert (suspected.alone(link, links, 107.0), suspected.some(link, links, 4, 107.0)) == (None, [])
    assert suspected.look(150.0) == [waiting.held.key]
    leased = False
    assert suspected.look(200.0) == [waiting.held.key]
    link.attempts = dict(enumerate(others.take(4, 1_000)))
    assert suspected.alone(link, links, 204.0) is None  # it waits since it may be sent
    assert suspected.look(204.5) == [waiting.held.key]
    assert suspected.alone(link, links, 206.0) == ([] if losses == 2 else None)
    link.attempts.clear()
    assert (suspected.alone(link, links, 200.0) or suspected.some(link, links, 4, 200.0)) == [waiting]


def test_rows_that_are_over_are_no_suspects() -> None:
    """Suspects of a batch that was stopped, or that another scheduler forgot, are forgotten, wherever they stand among others."""
    kept, stopped = make_held(9), make_held(9)
    suspects = Suspects(2)
    suspects.add([suspect(kept, 1), suspect(stopped, 1), suspect(kept, 1), suspect(stopped, 2)], 1.0)
    stopped.batch.stop_reason = 1
    assert (bool(suspects), suspects.grave) == (True, False)
    assert [attempt.held for attempt in suspects.some(9, 2.0)] == [kept, kept]
    assert not suspects
    suspects.add([suspect(kept, 1), suspect(kept, 2)], 3.0)
    kept.batch.forgotten = True
    assert not suspects


def test_suspects_that_were_not_lost_this_time_go_on_as_before() -> None:
    """Those that come back unsent, or are to be tried again, are tried next, in order, and as many at a time as before."""
    held, suspects = make_held(40), Suspects(2)
    lost = [suspect(held, 1) for _ in range(16)]
    suspects.add(lost, 1.0)
    for attempt in reversed(suspects.some(suspects.few, 2.0)):
        suspects.give_back(attempt, 3.0)
    assert (suspects.few, suspects.moved) == (4, 3.0)
    assert suspects.some(16, 4.0) == lost
    for attempt in reversed(lost):
        suspects.give_back(attempt, 5.0)
    assert (suspects.few, suspects.some(16, 6.0)) == (4, lost)
    suspects.give_back(grave := suspect(held, 2), 7.0)
    assert (suspects.few, suspects.alone(8.0)) == (0, [grave])


def test_a_change_of_leases_concerns_the_batches_of_a_model_that_changed_hands() -> None:
    """Batches are found by the names of their models; each change is told once, and one that was unknown when rows were refused."""
    passing, holders = Passing(), {"one": "", "two": "", "alias": ""}
    first, second = (make_held(1).batch for _ in range(2))
    first.queued_shards, second.queued_shards = {"one": 1, "two": 1}, {"two": 1, "alias": 1}
    for batch in (first, second):
        batch.held.clear()
        passing.add(batch)
    assert len(passing.concerned(holders.get)) == 4
    assert passing.concerned(holders.get) == []
    holders["one"] = "lease"
    assert passing.concerned(holders.get) == [(first, "one")]
    holders["two"] = "lease"
    assert set(passing.concerned(holders.get)) == {(first, "two"), (second, "two")}
    passing.refused(second, "alias", "lease")  # by now it is known whose name it is
    assert passing.concerned(holders.get) == [(second, "alias")]
    passing.remove(first)
    holders.update(one="", two="")
    assert passing.concerned(holders.get) == [(second, "two")]
    passing.refused(second, "lost", "lease")  # results of a model whose rows had ended were lost
    assert passing.concerned(holders.get) == [(second, "lost")]
    passing.remove(second)
    assert passing.concerned(Open().holder) == []

"""A late row is sent to a second engine: one result is recorded, whatever becomes of engines, batch and scheduler."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from scheduler_mesh import EchoEngine, Mesh, answer, eventually, lines_of, mesh, quick, with_engine

from haywain import rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings
from services.scheduler.batch import Attempt
from services.scheduler.breaker import FINAL
from services.scheduler.link import Link

Result = engine_pb2.SequenceResult
ROWS = 100
ENOUGH = 8
"""Rows by which an engine tells what is late."""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have idle engines look for late rows more often."""
    monkeypatch.setattr("services.scheduler.returns._COMPARE_SECONDS", 0.0)
    monkeypatch.setattr("services.scheduler.returns._TICK_SECONDS", 0.02)


class Two:
    """A late engine that holds its one row, and a fast one that has run the rest, and holds what it is sent then."""

    def __init__(self, running: Mesh, late: EchoEngine, fast: EchoEngine, batch_id: str) -> None:
        """Made by `two`."""
        self.running, self.late, self.fast, self.batch_id = running, late, fast, batch_id

    async def progress(self) -> pb.Progress:
        """Ask how far the batch is."""
        return await self.running.progress(self.batch_id)

    async def ended(self, *, sent: int) -> None:
        """Wait for the end: every row is there once, and `sent` sequences were sent in all; nothing is left at any engine."""
        progress = await self.running.ended(self.batch_id)
        assert (progress.counts.completed, progress.running) == (ROWS, 0)
        output, failed = await self.running.sealed(self.batch_id)
        assert (len(output), failed) == (ROWS, [])
        assert len(self.late.sequences) + len(self.fast.sequences) == sent
        links = self.running.scheduler.dispatcher.links
        await eventually(lambda: links.active, lambda active: active == 0)
        assert not self.running.scheduler.dispatcher.stragglers
        assert self.running.scheduler.intake.get(self.batch_id).running == 0


@contextlib.asynccontextmanager
async def two(settings: Settings, **changes: float) -> AsyncIterator[Two]:
    """Run a batch until its last row is at both engines."""
    async with mesh(quick(settings, straggler_seconds=0.1, straggler_factor=0.01, **changes)) as running:
        late = await with_engine(running, engine_id="late", slots=1)
        late.respond = lambda sequence: None
        batch_id = await running.submit(lines_of(ROWS), shard_rows=50)
        await eventually(lambda: len(late.held), lambda held: held == 1)
        fast = EchoEngine(running.settings.data, "fast")
        fast.respond = lambda sequence: answer(sequence) if len(fast.sequences) < ROWS else None
        await fast.start(running.stub)  # it may run all rows before this returns
        running.engines.append(fast)
        await eventually(lambda: len(fast.held), lambda held: held == 1)
        [copy], [row] = fast.held.values(), late.held.values()
        assert (copy.request, copy.attempt, row.attempt) == (row.request, 2, 1)
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == ROWS - 1)
        yield Two(running, late, fast, batch_id)


async def test_the_second_one_is_first(settings: Settings) -> None:
    """The copy's answer is recorded; the row is cancelled at the late engine, and its answer is dropped."""
    async with two(settings) as both:
        assert ((await both.progress()).running, (await both.progress()).queued) == (1, 0)
        held = dict(both.late.held)
        both.fast.release()
        await both.ended(sent=ROWS + 1)
        await eventually(lambda: both.late.cancelled, lambda cancelled: cancelled == list(held))


async def test_the_first_one_is_first(settings: Settings) -> None:
    """The late engine's own answer is recorded, and the copy is cancelled."""
    async with two(settings) as both:
        held = dict(both.fast.held)
        both.late.release()
        await both.ended(sent=ROWS + 1)
        await eventually(lambda: both.fast.cancelled, lambda cancelled: cancelled == list(held))


async def test_both_answer_at_the_same_time(settings: Settings) -> None:
    """Two answers on their way are one recorded row."""
    async with two(settings) as both:
        both.late.release()
        both.fast.release()
        await both.ended(sent=ROWS + 1)


FAILURES = [
    {"status_code": 503, "retryable": True, "error": {"code": "engine_error"}},
    {"status_code": 503, "retryable": True, "error": {"code": "engine_unavailable"}},
    {"status_code": 500, "error": {"code": "engine_error"}},
    {"status_code": 200, "body": b"no JSON"},
    {"status_code": 499, "error": {"code": "cancelled"}},
]


@pytest.mark.parametrize(("failure", "first"), list(zip(FAILURES, ["late", "fast"] * 3, strict=False)))
async def test_a_failure_of_one_is_nobodys(settings: Settings, failure: dict[str, object], first: str) -> None:
    """Whichever engine fails the row, it is neither recorded nor tried again while the other has it."""
    async with two(settings) as both:
        failing, other = (both.late, both.fast) if first == "late" else (both.fast, both.late)
        failing.release(lambda sequence: Result(sequence_id=sequence.sequence_id, **failure))
        links = both.running.scheduler.dispatcher.links
        await eventually(lambda: links.active, lambda active: active == 1)
        assert ((await both.progress()).running, (await both.progress()).counts.completed) == (1, ROWS - 1)
        both.late.respond = both.fast.respond = answer
        other.release()
        await both.ended(sent=ROWS + 1)


async def test_rubbish_is_held_against_its_engine(settings: Settings) -> None:
    """An answer that is none is the fault of the engine that gave it, also when the other one's answer is recorded."""
    async with two(settings) as both:
        links = both.running.scheduler.dispatcher.links
        [fast] = [link for link in links if link.engine.engine_id == "fast"]
        both.fast.release(lambda sequence: Result(sequence_id=sequence.sequence_id, status_code=200, body=b"no JSON"))
        await eventually(lambda: links.active, lambda active: active == 1)
        assert fast.breaker._recent[-1] == FINAL
        both.late.release()
        await both.ended(sent=ROWS + 1)


async def test_a_bad_request_is_one_wherever_it_is(settings: Settings) -> None:
    """A 4xx of the copy is the row's end."""
    async with two(settings) as both:
        bad = {"status_code": 400, "error": {"code": "invalid_request", "message": "no"}}
        both.fast.release(lambda sequence: Result(sequence_id=sequence.sequence_id, **bad))
        assert (await both.running.ended(both.batch_id)).counts.failed == 1
        _, [failed] = await both.running.sealed(both.batch_id)
        assert failed["error"]["code"] == "invalid_request"
        await eventually(lambda: len(both.late.cancelled), lambda count: count == 1)


@pytest.mark.parametrize("lost", ["late", "fast"])
async def test_an_engine_is_lost(settings: Settings, lost: str) -> None:
    """The row goes on at the other engine, as the only one; it isn't queued as well."""
    async with two(settings) as both:
        dying, other = (both.late, both.fast) if lost == "late" else (both.fast, both.late)
        await dying.kill()
        await eventually(lambda: len(list(both.running.scheduler.dispatcher.links)), lambda links: links == 1)
        assert ((await both.progress()).running, (await both.progress()).counts.completed) == (1, ROWS - 1)
        [link] = both.running.scheduler.dispatcher.links
        assert link.copied == set(link.attempts)
        other.release()
        await both.ended(sent=ROWS + 1)


async def test_both_engines_are_lost(settings: Settings) -> None:
    """Then it is a row like any other that was in a lost engine, though it was alone there: it runs again, once."""
    async with two(settings) as both:
        for engine in (both.late, both.fast):
            await engine.kill()
        await eventually(lambda: len(list(both.running.scheduler.dispatcher.links)), lambda links: links == 0)
        assert (await both.progress()).running == 0
        await both.late.revive(both.running.stub)
        await eventually(lambda: len(both.late.held), lambda held: held == 1)
        both.late.release()
        await both.ended(sent=ROWS + 2)


async def test_the_batch_is_stopped(settings: Settings) -> None:
    """Both are cancelled; the row never ran, as far as the batch is concerned."""
    async with two(settings) as both:
        stop = pb.StopBatchRequest(batch_id=both.batch_id, reason=pb.StopBatchRequest.REASON_CANCELLED)
        assert (await rpc.call(both.running.stub.StopBatch, stop)).progress.running == 0
        await eventually(lambda: both.late.cancelled + both.fast.cancelled, lambda cancelled: len(cancelled) == 2)
        output, failed = await both.running.sealed(both.batch_id)
        assert (len(output), [line["error"]["code"] for line in failed]) == (ROWS - 1, ["batch_cancelled"])
        links = both.running.scheduler.dispatcher.links
        await eventually(lambda: links.active, lambda active: active == 0)
        assert not both.running.scheduler.dispatcher.stragglers


async def test_the_lease_is_lost(settings: Settings) -> None:
    """What both engines say counts for nothing then; the row is run by whoever has the shard next, once."""
    async with two(settings) as both:
        claims = both.running.scheduler._claims
        for held in list(both.running.scheduler.intake.get(both.batch_id).held.values()):
            claims.drop(held)
        both.late.respond = both.fast.respond = answer
        both.late.release()
        both.fast.release()
        await eventually(lambda: both.running.scheduler.dispatcher.links.active, lambda active: active == 0)
        assert (await both.progress()).counts.completed == ROWS - 1
        assert not both.running.scheduler.dispatcher.stragglers


async def test_the_scheduler_is_lost(settings: Settings) -> None:
    """One that starts anew knows nothing of copies: it runs the row, once, and none that is recorded."""
    async with two(settings) as both:
        batch_id = both.batch_id
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running, engine_id="third")
        assert (await running.ended(batch_id)).counts.completed == ROWS
        assert len(engine.sequences) == 1
        output, failed = await running.sealed(batch_id)
        assert (len(output), failed) == (ROWS, [])


async def test_a_row_that_times_out_at_one_engine_has_time_left_at_the_other(settings: Settings) -> None:
    """It is given up where it is late, and fails only when its time is up at the other one as well."""
    async with two(settings, row_timeout_seconds=1_000.0) as both:
        for link in both.running.scheduler.dispatcher.links:
            for attempt in link.attempts.values():
                attempt.sent_at -= 2_000 * (link.engine.engine_id == "late")
        await eventually(lambda: len(both.late.cancelled), lambda count: count == 1)
        assert (await both.progress()).counts.failed == 0
        both.fast.release()
        await both.ended(sent=ROWS + 1)


async def test_copies_can_be_switched_off(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a factor of 0 a late row is waited for, though an idle engine looks for rows and knows how long they take."""
    async with mesh(quick(settings, straggler_seconds=0.0, straggler_factor=0.0)) as running:
        late = await with_engine(running, engine_id="late", slots=1)
        late.respond = lambda sequence: None
        batch_id = await running.submit(lines_of(ROWS))
        await eventually(lambda: len(late.held), lambda held: held == 1)
        fast = await with_engine(running, engine_id="fast")
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == ROWS - 1)
        stragglers, looks = running.scheduler.dispatcher.stragglers, []
        pick = stragglers.pick

        def look(link: Link, *terms: Any) -> list[Attempt]:
            looks.append((link.engine.engine_id, len(link.paces["echo"]) >= ENOUGH))
            return pick(link, *terms)

        monkeypatch.setattr(stragglers, "pick", look)
        await eventually(lambda: looks.count(("fast", True)), lambda count: count > 1)
        late.release()
        assert (await running.ended(batch_id)).counts.completed == ROWS
        assert len(fast.sequences) == ROWS - 1

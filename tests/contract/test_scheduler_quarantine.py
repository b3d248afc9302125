"""Engines that fail what they are sent: they get nothing for a while, rows run elsewhere or wait, and nothing is lost by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scheduler_mesh import CHAT, EchoEngine, Mesh, answer, eventually, lines_of, mesh, quick, with_engine

from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings
from services.scheduler import breaker
from services.scheduler.link import Link

Result = engine_pb2.SequenceResult


def failing(*, retryable: bool, status: int = 500) -> EchoEngine.Respond:
    """Fail every sequence."""

    def respond(sequence: engine_pb2.Sequence) -> Result:
        error = engine_pb2.SequenceError(code="engine_error", message="broken")
        return Result(sequence_id=sequence.sequence_id, status_code=status, error=error, retryable=retryable)

    return respond


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pauses begin with a fiftieth of a second, and be the engine's alone however long they get."""
    monkeypatch.setattr(breaker, "_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(breaker, "_DOUBLINGS", 1_000)


async def status_of(running: Mesh, engine_id: str) -> pb.EngineStatus:
    """Ask for an engine."""
    engines = (await rpc.call(running.stub.ListEngines, pb.ListEnginesRequest())).engines
    found: pb.EngineStatus = next(status for status in engines if status.engine.engine_id == engine_id)
    return found


def is_in(state: pb.EngineStatus.State) -> Callable[[pb.EngineStatus], bool]:
    """Tell whether an engine is in a state."""
    return lambda status: status.state == state


@pytest.mark.parametrize("retryable", [True, False])
async def test_a_broken_engine_gets_no_rows_while_another_works(settings: Settings, *, retryable: bool) -> None:
    """An engine that fails everything at once, and would so drain the queue, is quarantined; the other one runs the rows."""
    async with mesh(quick(settings)) as running:
        broken, good = await with_engine(running, engine_id="broken"), await with_engine(running, engine_id="good")
        for name in ("broken", "good"):
            await eventually(lambda name=name: status_of(running, name), is_in(pb.EngineStatus.STATE_READY))
        broken.respond = failing(retryable=retryable)
        good.respond = lambda sequence: None  # it holds what it has until the other one is found out
        batch_id = await running.submit(lines_of(120), shard_rows=40)
        status = await eventually(lambda: status_of(running, "broken"), is_in(pb.EngineStatus.STATE_QUARANTINED))
        assert "failed, the last one: 500 engine_error" in status.quarantine_reason
        assert status.quarantine_until_time.seconds > 0
        good.respond = answer
        good.release()
        progress = await running.ended(batch_id)
        output, failed = await running.sealed(batch_id)
        assert len(output) == progress.counts.completed
        assert len(failed) <= (0 if retryable else 2 * 8 + 3 * 5)
        assert {line["error"]["code"] for line in failed} <= {"engine_error"}
        assert running.scheduler.dispatcher.links.active == 0


@pytest.mark.usefixtures("brief")
async def test_the_only_engine_is_tried_again_and_no_row_pays_for_it(settings: Settings) -> None:
    """While it fails everything rows wait, few are tried, none uses its tries up; when it works again all of them complete."""
    async with mesh(quick(settings, max_attempts=3)) as running:
        engine = await with_engine(running, slots=4)
        engine.respond = failing(retryable=True, status=503)
        batch_id = await running.submit(lines_of(30))
        await eventually(lambda: status_of(running, "e0"), is_in(pb.EngineStatus.STATE_QUARANTINED))
        tried = len(engine.sequences)
        await eventually(lambda: len(engine.sequences), lambda count: count >= tried + 14)  # as long as nobody pays
        engine.respond = answer
        assert (await running.ended(batch_id)).counts.completed == 30
        assert (await status_of(running, "e0")).state == pb.EngineStatus.STATE_READY
        await running.sealed(batch_id)


async def test_a_lone_engine_whose_rows_are_at_fault_goes_on(settings: Settings) -> None:
    """Failures that the engine calls final are the rows' as far as anybody can tell: a batch of them ends as soon as ever."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        engine.respond = failing(retryable=False)
        batch_id = await running.submit(lines_of(100))
        assert (await running.ended(batch_id)).counts.failed == 100
        assert len(engine.sequences) == 100
        assert (await status_of(running, "e0")).state == pb.EngineStatus.STATE_READY


async def test_bad_requests_quarantine_nobody(settings: Settings) -> None:
    """A 4xx is the row's own, however many there are, and whoever else is there."""
    async with mesh(quick(settings)) as running:
        engines = [await with_engine(running, engine_id=name) for name in ("a", "b")]
        for engine in engines:
            engine.respond = failing(retryable=False, status=400)
        batch_id = await running.submit(lines_of(100))
        assert (await running.ended(batch_id)).counts.failed == 100
        assert {(await status_of(running, name)).state for name in ("a", "b")} == {pb.EngineStatus.STATE_READY}


async def call(running: Mesh) -> Result:
    """Run one request now."""
    request = b'{"messages":[{"role":"user","content":"hi"}]}'
    complete = pb.CompleteRequest(tenant="default", endpoint=CHAT, model="echo", request=request)
    result: Result = [event async for event in rpc.stream(running.stub.Complete, complete)][-1].result
    return result


async def test_synchronous_calls_are_refused_while_all_engines_are_quarantined(settings: Settings) -> None:
    """503 with Retry-After, those that wait included; when the pause is over a call is a probe, and ends the quarantine."""
    async with mesh(quick(settings, max_attempts=9)) as running:
        engine = await with_engine(running)
        await eventually(lambda: status_of(running, "e0"), is_in(pb.EngineStatus.STATE_READY))
        engine.respond = failing(retryable=True, status=503)
        with pytest.raises(errors.Unavailable, match="All engines of the model 'echo' are quarantined") as caught:
            await call(running)
        assert caught.value.retry_after in (1, 2)
        breaker_of = running.scheduler.dispatcher.links._breakers._known["e0"]
        breaker_of.until += 3_600
        with pytest.raises(errors.Unavailable, match="quarantined"):
            await call(running)
        assert len(engine.sequences) == 5
        batch_id = await running.submit(lines_of(1))
        assert (await running.progress(batch_id)).waiting_reason == pb.Progress.WAITING_REASON_MODEL_NOT_AVAILABLE
        engine.respond = answer
        breaker_of.until -= 3_600
        await running.ended(batch_id)
        assert (await call(running)).status_code == 200
        assert (await status_of(running, "e0")).state == pb.EngineStatus.STATE_READY


async def test_a_call_ends_a_quarantine(settings: Settings) -> None:
    """Without any batch, a synchronous request is what an engine is tried with when its pause is over."""
    async with mesh(quick(settings, max_attempts=9)) as running:
        engine = await with_engine(running)
        await eventually(lambda: status_of(running, "e0"), is_in(pb.EngineStatus.STATE_READY))
        engine.respond = failing(retryable=True, status=503)
        with pytest.raises(errors.Unavailable):
            await call(running)
        engine.respond = answer
        waits = running.scheduler.dispatcher.links.waits
        await eventually(lambda: waits(("echo", CHAT, False, None)), lambda seconds: seconds is None)
        assert (await call(running)).status_code == 200
        assert (await status_of(running, "e0")).state == pb.EngineStatus.STATE_READY


async def test_rows_for_an_engine_that_is_trusted_meanwhile_are_no_probes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the last probe ends well while lines are read for the next ones, these are rows like any others."""
    async with mesh(quick(settings)) as running:
        dispatcher = running.scheduler.dispatcher
        link = Link(EchoEngine(running.settings.data).description)
        link.ready, link.credits = True, 8
        dispatcher.links.connect(link)
        for _ in range(5):
            link.breaker.bad(breaker.AGAIN, "500", 0.0, alone=False)
        real = dispatcher.sender._read

        async def read(*asked: Any) -> Any:
            found = await real(*asked)
            link.breaker.close(0.0)
            return found

        monkeypatch.setattr(dispatcher.sender, "_read", read)
        await running.submit(lines_of(9))
        message = await eventually(lambda: dispatcher.message(link), bool)
        assert len(message.sequences) == breaker.PROBES
        assert link.probes == set()
        dispatcher.links.disconnect(link)


@pytest.mark.parametrize("drained", [False, True])
async def test_rows_that_were_chosen_for_an_engine_that_is_found_to_fail_are_kept_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, *, drained: bool
) -> None:
    """An engine that is quarantined, or drained, while lines are read for it gets none of them: another one gets them, in order."""
    async with mesh(quick(settings)) as running:
        dispatcher = running.scheduler.dispatcher
        links = [Link(EchoEngine(running.settings.data, name).description) for name in ("e0", "e1")]
        for link in links:
            link.ready, link.credits = True, 8
            dispatcher.links.connect(link)
        real, chosen = dispatcher.sender._read, []

        async def read(*asked: Any) -> Any:
            found = await real(*asked)
            chosen.append(found)
            links[0].draining = drained
            for _ in range(0 if drained else 5):
                links[0].breaker.bad(breaker.AGAIN, "500", running.scheduler._clock.monotonic(), alone=False)
            return found

        monkeypatch.setattr(dispatcher.sender, "_read", read)
        await running.submit(lines_of(6))
        assert await eventually(lambda: dispatcher.message(links[0]), lambda message: message is not None or bool(chosen)) is None
        assert (links[0].credits, links[0].attempts, links[0].probes, dispatcher.links.active) == (8, {}, set(), 0)
        message = await dispatcher.message(links[1])
        assert message is not None
        assert [f"row {row}".encode() in sequence.request for row, sequence in enumerate(message.sequences)] == [True] * 6
        for link in links:
            dispatcher.links.disconnect(link)


@pytest.mark.usefixtures("brief")
async def test_an_engine_that_dies_again_and_again_fails_no_row(settings: Settings) -> None:
    """Beside one that works it is quarantined after some losses, and rows that it took with it run at the other one."""
    async with mesh(quick(settings)) as running:
        dying, good = await with_engine(running, engine_id="dying"), await with_engine(running, engine_id="good", slots=2)
        dying.respond = lambda sequence: None
        turn: list[int] = []

        def slowly(sequence: engine_pb2.Sequence) -> Result | None:
            turn.append(sequence.sequence_id)
            return answer(sequence) if len(turn) % 2 else None

        good.respond = slowly
        batch_id = await running.submit(lines_of(200))
        for _ in range(6):
            await eventually(lambda: len(dying.held), bool)
            await dying.revive(running.stub)
            good.release()
        status = await eventually(lambda: status_of(running, "dying"), lambda status: bool(status.quarantine_reason))
        assert "broke" in status.quarantine_reason
        good.respond = dying.respond = answer
        good.release()
        dying.release()
        assert (await running.ended(batch_id)).counts.completed == 200
        await running.sealed(batch_id)


async def test_a_restart_of_the_engine_ends_its_quarantine(settings: Settings) -> None:
    """Who repairs an engine and starts it anew doesn't wait for the pause to end."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        engine.respond = failing(retryable=True)
        batch_id = await running.submit(lines_of(20))
        await eventually(lambda: status_of(running, "e0"), is_in(pb.EngineStatus.STATE_QUARANTINED))
        running.scheduler.dispatcher.links._breakers._known["e0"].until += 3_600
        engine.respond = answer
        await engine.revive(running.stub)
        assert (await running.ended(batch_id)).counts.completed == 20


async def test_the_only_engine_dies_whatever_it_runs(settings: Settings) -> None:
    """Its rows are not failed one after the other: after one they are held to be innocent, and complete when it works again."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running, slots=16)
        engine.respond = lambda sequence: None
        batch_id = await running.submit(lines_of(40))
        for _ in range(8):
            await eventually(lambda: len(engine.held), bool)
            await engine.revive(running.stub)
        engine.respond = answer
        engine.release()
        progress = await running.ended(batch_id)
        assert progress.counts.failed <= 1
        await running.sealed(batch_id)

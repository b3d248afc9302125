"""What engines do wrong, and what becomes of the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from model_lease_calls import chat
from scheduler_mesh import EchoEngine, answer, eventually, lines_of, mesh, quick, with_engine

from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings
from services.scheduler.figures import figures


async def test_rows_of_a_lost_engine_run_elsewhere(settings: Settings) -> None:
    """When an engine vanishes its rows go back at once, and another engine runs them; recorded ones don't run again."""
    async with mesh(quick(settings)) as running:
        first = await with_engine(running, slots=4)
        first.respond = lambda sequence: answer(sequence) if b"row 1" in sequence.request else None
        batch_id = await running.submit(lines_of(20))
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed and progress.running == 4)
        done = (await running.progress(batch_id)).counts.completed
        await first.kill()
        second = await with_engine(running, engine_id="e1", slots=4)
        await running.ended(batch_id)
        output, error = await running.sealed(batch_id)
        assert (len(output), error) == (20, [])
        assert len(second.sequences) == 20 - done
        engines = (await rpc.call(running.stub.ListEngines, pb.ListEnginesRequest())).engines
        assert [engine.state for engine in engines][1:] == [pb.EngineStatus.STATE_READY]


async def test_rows_of_a_lost_engine_that_cannot_be_read_rest(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked at again when their batch has rested, not at once; then they run, as many at a time as they would have."""
    monkeypatch.setattr("services.scheduler.dispatch._REST_SECONDS", 1_000.0)
    async with mesh(quick(settings)) as running:
        first = await with_engine(running)
        first.respond = lambda sequence: None
        batch_id = await running.submit(lines_of(6))
        await eventually(lambda: len(first.held), (6).__eq__)
        dispatcher, reads = running.scheduler.dispatcher, 0
        real = dispatcher.sender._read

        async def broken(shards: Sequence[Any], spans: Any) -> list[OSError]:
            nonlocal reads
            reads += 1
            return [OSError("the disk is gone") for _ in shards]

        monkeypatch.setattr(dispatcher.sender, "_read", broken)
        await first.kill()
        second = await with_engine(running, engine_id="e1")
        await eventually(lambda: reads, bool)
        assert await chat(running) == "hello"
        assert (reads, len(second.sequences)) == (1, 1)
        monkeypatch.setattr(dispatcher.sender, "_read", real)
        dispatcher._rested(running.scheduler.intake.get(batch_id))
        await running.ended(batch_id)
        assert len((await running.sealed(batch_id))[0]) == 6
        assert second.most == 2


@pytest.mark.parametrize("slots", [3, 16])
async def test_a_row_that_kills_engines_fails_alone(settings: Settings, slots: int) -> None:
    """A poisonous row is found and fails as engine_error; the rows that shared its engine all complete."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running, slots=slots)
        killed = asyncio.Event()

        def respond(sequence: engine_pb2.Sequence) -> engine_pb2.SequenceResult | None:
            if b"row 7" in sequence.request:
                killed.set()
            return None if killed.is_set() else answer(sequence)

        engine.respond = respond
        batch_id = await running.submit(lines_of(40))
        deaths = 0
        while (await running.progress(batch_id)).state == pb.Progress.STATE_ACTIVE:
            if killed.is_set():
                killed.clear()
                deaths += 1
                await engine.revive(running.stub)
            await asyncio.sleep(0.01)
        _, [error] = await running.sealed(batch_id)
        assert (error["custom_id"], error["error"]["code"], error["response"]) == ("c7", "engine_error", None)
        assert deaths <= 3


async def test_two_killers_are_both_found(settings: Settings) -> None:
    """With two poisonous rows in one batch only these two fail."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running, slots=16)
        killed = asyncio.Event()

        def respond(sequence: engine_pb2.Sequence) -> engine_pb2.SequenceResult | None:
            if b"row 7" in sequence.request or b"row 29" in sequence.request:
                killed.set()
            return None if killed.is_set() else answer(sequence)

        engine.respond = respond
        batch_id = await running.submit(lines_of(40))
        while (await running.progress(batch_id)).state == pb.Progress.STATE_ACTIVE:
            if killed.is_set():
                killed.clear()
                await engine.revive(running.stub)
            await asyncio.sleep(0.01)
        output, error = await running.sealed(batch_id)
        assert {line["custom_id"] for line in error} == {"c7", "c29"}
        assert len(output) == 38


async def test_an_engine_that_falls_silent_is_lost(settings: Settings) -> None:
    """Three missed heartbeats lose an engine although its stream stays open; it may come back."""
    async with mesh(quick(settings, heartbeat_ms=60)) as running:
        engine = await with_engine(running)
        engine.respond = lambda _: None
        batch_id = await running.submit(lines_of(4))
        await eventually(lambda: len(engine.held), lambda held: held == 4)
        assert engine._beating is not None
        engine._beating.cancel()
        entry = running.scheduler.engines.entries()[0]
        await eventually(lambda: entry.state, lambda state: state == pb.EngineStatus.STATE_LOST)
        assert (await running.progress(batch_id)).running == 0
        engine.respond = answer
        engine._beating = asyncio.create_task(engine._beat(running.stub))
        await running.ended(batch_id)
        assert engine.streams == 2


async def test_two_engines_of_one_name_do_not_take_each_others_rows_away(settings: Settings) -> None:
    """While one lives, another of its name at another address is refused; once it is gone, the other is let in."""
    async with mesh(quick(settings)) as running:
        first = await with_engine(running)
        first.respond = lambda _: None
        batch_id = await running.submit(lines_of(2))
        await eventually(lambda: len(first.held), lambda held: held == 2)
        second = EchoEngine(settings.data, "other")
        second.description.engine_id, second.description.incarnation = "e0", "2"
        running.engines.append(second)
        with pytest.raises(errors.Conflict, match="is called 'e0', too"):
            await second.start(running.stub)
        await first.register(running.stub)
        assert (first.streams, second.streams) == (1, 0)
        await first.kill()
        second._beating = asyncio.create_task(second._beat(running.stub))
        assert (await running.ended(batch_id)).counts.completed == 2


async def test_lies_are_ignored(settings: Settings) -> None:
    """Results for unknown ids, second results and chunks that nobody asked for change nothing, and are told of."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        engine.respond = lambda _: None
        batch_id = await running.submit(lines_of(4))
        await eventually(lambda: len(engine.held), lambda held: held == 4)
        held = list(engine.held.values())
        lie = engine_pb2.SequenceResult(sequence_id=10**9, status_code=200, body=b"{}")
        chunk = engine_pb2.SequenceDelta(sequence_id=held[0].sequence_id, body=b"{}")
        once = [answer(sequence) for sequence in held]
        engine.out.put_nowait(engine_pb2.RunResponse(results=[lie, *once[:2], *once[:2]], deltas=[chunk], credits=-7))
        engine.out.put_nowait(engine_pb2.RunResponse(results=once, credits=1 << 30))
        progress = await running.ended(batch_id)
        assert progress.counts.completed == 4
        output, error = await running.sealed(batch_id)
        assert (len(output), error) == (4, [])
        (strays,) = [one for one in await figures(running.scheduler)() if one.name == "haywain_engine_strays"]
        assert [sample.value for sample in strays.samples] == [6]
        assert running.scheduler.dispatcher.links.active == 0


async def test_a_row_at_an_engine_for_too_long_times_out(settings: Settings) -> None:
    """A hanging row is cancelled at its engine and recorded as row_timeout; a late result for it is dropped."""
    async with mesh(quick(settings, row_timeout_seconds=0.2)) as running:
        engine = await with_engine(running)
        engine.respond = lambda sequence: None if b"row 2" in sequence.request else answer(sequence)
        batch_id = await running.submit(lines_of(4))
        await running.ended(batch_id)
        _, [error] = await running.sealed(batch_id)
        assert (error["custom_id"], error["error"]["code"]) == ("c2", "row_timeout")
        await eventually(lambda: engine.cancelled, bool)
        await eventually(lambda: running.scheduler.dispatcher.links.active, lambda active: active == 0)


async def test_a_stopped_batch_is_cancelled_at_engines_and_sealed_with_reasons(settings: Settings) -> None:
    """Stopping cancels what runs, drops late results, keeps the first reason, and unrun rows become error lines."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        engine.respond = lambda sequence: answer(sequence) if sequence.sequence_id <= 5 else None
        batch_id = await running.submit(lines_of(30))
        await eventually(lambda: len(engine.held), lambda held: held == 8)
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == 5)
        late = [answer(sequence) for sequence in engine.held.values()]
        for reason in (pb.StopBatchRequest.REASON_CANCELLED, pb.StopBatchRequest.REASON_EXPIRED):
            stopped = await rpc.call(running.stub.StopBatch, pb.StopBatchRequest(batch_id=batch_id, reason=reason))
            assert (stopped.progress.state, stopped.progress.running) == (pb.Progress.STATE_ENDED, 0)
        engine.out.put_nowait(engine_pb2.RunResponse(results=late))
        await eventually(lambda: len(engine.cancelled), lambda cancelled: cancelled == 8)
        output, error = await running.sealed(batch_id)
        assert [line["custom_id"] for line in output] == ["c0", "c1", "c2", "c3", "c4"]
        assert [line["custom_id"] for line in error] == [f"c{number}" for number in range(5, 30)]
        assert {line["error"]["code"] for line in error} == {"batch_cancelled"}
        assert [line["error"]["line"] for line in error] == list(range(6, 31))
        with pytest.raises(errors.BatchMissing):
            await rpc.call(running.stub.StopBatch, pb.StopBatchRequest(batch_id="batch_x", reason=reason))


async def test_a_drained_engine_gets_nothing_more(settings: Settings) -> None:
    """Draining lets an engine finish what it has; nothing more is sent to it."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running, slots=2)
        engine.respond = lambda _: None
        batch_id = await running.submit(lines_of(6))
        await eventually(lambda: len(engine.held), lambda held: held == 2)
        drained = await rpc.call(running.stub.DrainEngine, pb.DrainEngineRequest(engine_id="e0"))
        assert drained.engine.state == pb.EngineStatus.STATE_DRAINING
        engine.release()
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == 2)
        assert not (await rpc.call(running.stub.ListModels, pb.ListModelsRequest())).models
        second = await with_engine(running, engine_id="e1")
        await running.ended(batch_id)
        assert (len(engine.sequences), len(second.sequences)) == (2, 4)
        with pytest.raises(errors.NotFound):
            await rpc.call(running.stub.DrainEngine, pb.DrainEngineRequest(engine_id="none"))


async def test_a_drained_engine_stays_drained_over_a_restart(settings: Settings) -> None:
    """A scheduler that starts anew sends nothing to what was drained, from the first moment on, until that is started anew, too."""
    async with mesh(quick(settings)) as before:
        await with_engine(before)
        await rpc.call(before.stub.DrainEngine, pb.DrainEngineRequest(engine_id="e0"))
    async with mesh(quick(settings)) as after:
        batch_id = await after.submit(lines_of(3))
        engine = await with_engine(after)
        found = lambda: after.scheduler.engines.status(after.scheduler.engines.entries()[0]).state  # noqa: E731
        await eventually(found, lambda state: state == pb.EngineStatus.STATE_DRAINING)
        assert not engine.sequences
        await engine.revive(after.stub)
        assert (await after.ended(batch_id)).counts.completed == 3


async def test_a_journal_that_cannot_be_written_pauses_dispatch_and_loses_nothing(settings: Settings) -> None:
    """While results can't be stored no row is sent and nothing is counted; when they can, all goes on."""
    async with mesh(quick(settings)) as running:
        batch_id = await running.submit(lines_of(20))
        obstacle = settings.data / "incremental"
        obstacle.write_bytes(b"")
        engine = await with_engine(running, slots=4)
        await eventually(lambda: running.scheduler._journals.stuck, bool)
        sent = len(engine.sequences)
        assert sent < 20
        assert (await running.progress(batch_id)).counts.completed == 0
        obstacle.unlink()
        await running.ended(batch_id)
        output, error = await running.sealed(batch_id)
        assert (len(output), error) == (20, [])
        assert len(engine.sequences) == 20


async def test_bad_registrations_are_refused(settings: Settings) -> None:
    """An engine without an id, address, models or slots is refused."""
    async with mesh(quick(settings)) as running:
        engine = EchoEngine(settings.data)
        engine.description.slots = 0
        with pytest.raises(errors.InvalidRequest):
            await engine.register(running.stub)


async def test_rows_whose_engine_has_nothing_behind_it_are_not_failed(settings: Settings) -> None:
    """`engine_unavailable` isn't a try: rows that an engine gives back so, more often than tries are allowed, still complete."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running, slots=4)
        asked: dict[bytes, int] = {}

        def respond(sequence: engine_pb2.Sequence) -> engine_pb2.SequenceResult:
            asked[sequence.request] = asked.get(sequence.request, 0) + 1
            if asked[sequence.request] > settings.scheduler.max_attempts + 1:
                return answer(sequence)
            away = engine_pb2.SequenceError(code="engine_unavailable", message="away")
            return engine_pb2.SequenceResult(sequence_id=sequence.sequence_id, status_code=503, error=away, retryable=True)

        engine.respond = respond
        batch_id = await running.submit(lines_of(3))
        await running.ended(batch_id)
        output, error = await running.sealed(batch_id)
        assert (len(output), error) == (3, [])
        assert {row["response"]["x_provenance"]["attempt"] for row in output} == {1}

"""What a scheduler tells of its batches, engines and models."""

from __future__ import annotations

import pytest
from scheduler_mesh import EchoEngine, answer, eventually, lines_of, mesh, quick, with_engine

from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings
from services.scheduler import service


async def test_results_can_be_read_while_the_batch_runs(settings: Settings) -> None:
    """Recorded lines can be streamed at any time, from any line on."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        engine.respond = lambda sequence: answer(sequence) if sequence.sequence_id < 4 else None
        batch_id = await running.submit(lines_of(9))
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == 3)
        request = pb.ReadResultsRequest(batch_id=batch_id, after_line=1)
        pieces = [piece async for piece in rpc.stream(running.stub.ReadResults, request)]
        assert b"".join(piece.data for piece in pieces).count(b"\n") == 2
        assert pieces[-1].line == 3
        with pytest.raises(errors.BatchMissing):
            async for _ in rpc.stream(running.stub.ReadResults, pb.ReadResultsRequest(batch_id="batch_none")):
                pass


async def test_watchers_hear_of_changes(settings: Settings) -> None:
    """A watcher is told the newest progress of a batch that changed, up to its end."""
    async with mesh(quick(settings)) as running:
        watching = rpc.stream(running.stub.WatchProgress, pb.WatchProgressRequest())
        first = running.loop.create_task(anext(watching))
        await eventually(lambda: running.scheduler.changes._watchers, bool)
        batch_id = await running.submit(lines_of(3))
        assert not (await first).progress  # from now on it hears of changes
        await with_engine(running)
        async for message in watching:
            assert message.progress[0].batch_id == batch_id
            if message.progress[0].state == pb.Progress.STATE_ENDED:
                assert message.progress[0].counts.completed == 3
                break
        await watching.aclose()


async def test_many_changes_are_told_a_few_at_a_time(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changed together comes in several messages, each batch in one of them."""
    monkeypatch.setattr(service, "_TOLD_TOGETHER", 2)
    async with mesh(quick(settings)) as running:
        batch_ids = [await running.submit(lines_of(1)) for _ in range(5)]
        watching = rpc.stream(running.stub.WatchProgress, pb.WatchProgressRequest())
        assert not (await anext(watching)).progress
        for batch_id in batch_ids:
            running.scheduler.changes.add(batch_id)
        told = [[progress.batch_id for progress in (await anext(watching)).progress] for _ in range(3)]
        assert [len(some) for some in told] == [2, 2, 1]
        assert sorted(batch_id for some in told for batch_id in some) == sorted(batch_ids)
        await watching.aclose()


async def test_waiting_has_a_reason(settings: Settings) -> None:
    """A batch without an engine says so, one behind full slots too, and a running one has no reason."""
    async with mesh(quick(settings)) as running:
        batch_id = await running.submit(lines_of(3))
        reasons = pb.Progress.WaitingReason
        assert (await running.progress(batch_id)).waiting_reason == reasons.WAITING_REASON_MODEL_NOT_AVAILABLE
        engine = EchoEngine(settings.data, slots=2)
        engine.respond = lambda _: None
        await engine.start(running.stub)
        running.engines.append(engine)
        progress = await eventually(lambda: running.progress(batch_id), lambda progress: progress.running == 2)
        assert (progress.waiting_reason, progress.queued) == (reasons.WAITING_REASON_UNSPECIFIED, 1)
        other = await running.submit(lines_of(3))
        assert (await running.progress(other)).waiting_reason == reasons.WAITING_REASON_CAPACITY


async def test_what_waits_inside_an_engine_does_not_run(settings: Settings) -> None:
    """Rows that an engine holds ready beyond its slots are told as queued, and the pool counts slots."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running, slots=2)
        engine.respond = lambda _: None
        batch_id = await running.submit(lines_of(9))
        engine.out.put_nowait(engine_pb2.RunResponse(credits=2))
        await eventually(lambda: len(engine.held), lambda held: held == 4)
        progress = await running.progress(batch_id)
        assert (progress.running, progress.queued) == (2, 7)
        assert (await rpc.call(running.stub.GetPoolStatus, pb.GetPoolStatusRequest())).slots_active == 2


async def test_pool_and_models_are_told(settings: Settings) -> None:
    """The pool tells rows, slots and engines; a model of two engines is listed once, with the fields that both honour."""
    async with mesh(quick(settings)) as running:
        first, second = EchoEngine(settings.data), EchoEngine(settings.data, "e1", models=("echo", "org/other"))
        first.description.models[0].fields.extend(["model", "messages", "seed"])
        second.description.models[0].fields.extend(["model", "messages", "stop"])
        for engine in (first, second):
            engine.respond = lambda _: None
            await engine.start(running.stub)
            running.engines.append(engine)
        models = (await rpc.call(running.stub.ListModels, pb.ListModelsRequest())).models
        assert [(model.model, list(model.fields)) for model in models] == [("echo", ["messages", "model"]), ("org/other", [])]
        await running.submit(lines_of(20))
        await eventually(lambda: len(first.held) + len(second.held), lambda held: held == 16)
        status = await rpc.call(running.stub.GetPoolStatus, pb.GetPoolStatusRequest())
        assert (status.intake_rows, status.slots_active, status.active_batches) == (20, 16, 1)
        assert [(engine.engine.engine_id, engine.active) for engine in status.engines] == [("e0", 8), ("e1", 8)]


async def test_forgetting_leaves_the_incremental_file_for_a_while(settings: Settings) -> None:
    """A forgotten batch is unknown, its index is gone, its journal stays until it is swept."""
    async with mesh(quick(settings)) as running:
        await with_engine(running)
        batch_id = await running.submit(lines_of(3))
        await running.ended(batch_id)
        await running.sealed(batch_id)
        for _ in range(2):
            await rpc.call(running.stub.ForgetBatch, pb.ForgetBatchRequest(batch_id=batch_id))
        answered = await rpc.call(running.stub.GetProgress, pb.GetProgressRequest(batch_ids=[batch_id]))
        assert not answered.progress
        assert not running.blobs(f"index-{batch_id}")
        journal = settings.data / "incremental" / f"{batch_id}.jsonl"
        assert journal.read_bytes().count(b"\n") == 3
        await running.scheduler.intake.sweep(journal.stat().st_mtime)
        assert journal.exists()
        await running.scheduler.intake.sweep(journal.stat().st_mtime + 1)
        assert not journal.exists()

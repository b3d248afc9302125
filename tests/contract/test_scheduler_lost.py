"""What a crash of the machine or a hand on the data folder can take away: a batch still ends, and says what it lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_lease_calls import hand, lease, served, state
from scheduler_mesh import EchoEngine, Mesh, answer, eventually, lines_of, mesh, quick, with_engine

from haywain import errors, rpc
from haywain.clock import FakeClock
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings
from services.scheduler.ledger import Opened
from services.scheduler.store import Stored


def journal_of(settings: Settings, batch_id: str) -> Path:
    """Tell where a batch's journal is."""
    return settings.data / "incremental" / f"{batch_id}.jsonl"


async def half_done(running: Mesh, rows: int, done: int) -> tuple[EchoEngine, str]:
    """Run a batch until `done` rows are recorded; the others hang."""
    engine = await with_engine(running)
    engine.respond = answer_so_many(engine, done)
    batch_id = await running.submit(lines_of(rows))
    await eventually(lambda: running.progress(batch_id), recorded(done))
    return engine, batch_id


def answer_so_many(engine: EchoEngine, count: int) -> EchoEngine.Respond:
    """Answer the first rows, and hold the others."""
    return lambda sequence: answer(sequence) if len(engine.sequences) <= count else None


def recorded(count: int) -> Callable[[pb.Progress], bool]:
    """Tell whether so many rows are recorded."""
    return lambda progress: progress.counts.completed == count


async def seal(running: Mesh, batch_id: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Seal a batch; output and error lines."""
    sealed = await rpc.call(running.stub.SealBatch, pb.SealBatchRequest(batch_id=batch_id), timeout=60)
    assert sealed.counts.completed + sealed.counts.failed == sealed.counts.total
    content = [
        running.blobs(f"{kind}-{batch_id}")[0].read_bytes() if running.blobs(f"{kind}-{batch_id}") else b""
        for kind in ("output", "error")
    ]
    output, error = ([json.loads(line) for line in data.splitlines()] for data in content)
    return output, error


@pytest.mark.parametrize("lost", ["input", "index"])
async def test_rows_fail_when_their_input_is_lost(settings: Settings, lost: str) -> None:
    """Rows whose line can't be read any more fail as `batch_failed`; those that ran are kept, and the batch can be sealed."""
    async with mesh(quick(settings)) as running:
        engine, batch_id = await half_done(running, 40, 13)
        await engine.kill()
    async with mesh(quick(settings)) as running:
        running.blobs(f"{lost}-{batch_id}")[0].unlink()
        await with_engine(running)
        progress = await running.ended(batch_id)
        assert (progress.counts.completed, progress.counts.failed) == (13, 27)
        output, error = await seal(running, batch_id)
        assert len(output) == 13
        assert {line["error"]["code"] for line in error} == {"batch_failed"}


async def test_a_stopped_batch_without_its_input_can_be_sealed(settings: Settings) -> None:
    """Rows that never ran have no custom_id then, and each still has its line."""
    async with mesh(quick(settings)) as running:
        _, batch_id = await half_done(running, 20, 4)
        await rpc.call(running.stub.StopBatch, pb.StopBatchRequest(batch_id=batch_id, reason=pb.StopBatchRequest.REASON_CANCELLED))
        for kind in ("input", "index"):
            running.blobs(f"{kind}-{batch_id}")[0].unlink()
        output, error = await seal(running, batch_id)
        assert (len(output), len(error)) == (4, 16)
        assert {(line["custom_id"], line["error"]["code"]) for line in error} == {(None, "batch_cancelled")}


async def test_a_journal_that_lost_what_was_committed(settings: Settings) -> None:
    """Rows whose lines are gone although SQL knows of them run again, and tokens are counted once, also after more restarts."""
    async with mesh(quick(settings)) as running:
        engine, batch_id = await half_done(running, 40, 35)
        await eventually(lambda: running.scheduler.intake.get(batch_id).journal.committed, lambda end: end > 0)
        await running.scheduler.settle()
        await engine.kill()
    journal = journal_of(settings, batch_id)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:7]) + lines[7][:20])
    for done, wanted in ((7, 12), (12, 40)):
        async with mesh(quick(settings)) as running:
            progress = await running.progress(batch_id)
            assert (progress.counts.completed, progress.usage.input_tokens) == (done, 3 * done)
            engine = await with_engine(running)
            engine.respond = answer_so_many(engine, wanted - done)
            await eventually(lambda: running.progress(batch_id), recorded(wanted))
            await running.scheduler.settle()
            await engine.kill()
    async with mesh(quick(settings)) as running:
        progress = await running.ended(batch_id)
        assert (progress.counts.completed, progress.usage.input_tokens, progress.usage.output_tokens) == (40, 120, 80)
        output, error = await seal(running, batch_id)
        assert (len(output), error) == (40, [])


@pytest.mark.parametrize("left", [0, 7])
async def test_a_journal_that_is_lost_before_sealing(settings: Settings, left: int) -> None:
    """Sealing says so, once; the rows whose lines are gone run again, and every row is in one of the files."""
    async with mesh(quick(settings)) as running:
        engine, batch_id = await half_done(running, 40, 40)
        await running.ended(batch_id)
        journal = journal_of(settings, batch_id)
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[:left]) + lines[left][:20]) if left else journal.unlink()
        engine.respond = answer
        with pytest.raises(errors.Conflict, match="lost"):
            await rpc.call(running.stub.SealBatch, pb.SealBatchRequest(batch_id=batch_id))
        progress = await running.ended(batch_id)
        assert (progress.counts.completed, progress.usage.input_tokens, len(engine.sequences)) == (40, 120, 80 - left)
        output, error = await running.sealed(batch_id)
        assert (len(output), error) == (40, [])


async def test_a_batch_whose_results_are_lost_keeps_its_lease(settings: Settings) -> None:
    """Its rows run again under the lease that it was handed; that ends when the batch is sealed."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        await served(running)
        lease_id = await lease(running)
        batch_id = await running.submit(lines_of(4))
        await hand(running, lease_id, batch_id)
        await running.ended(batch_id)
        journal_of(settings, batch_id).unlink()
        with pytest.raises(errors.Conflict, match="lost"):
            await rpc.call(running.stub.SealBatch, pb.SealBatchRequest(batch_id=batch_id))
        assert await state(running, lease_id) == pb.ModelLease.STATE_ACTIVE
        await running.ended(batch_id)
        assert len(engine.sequences) == 8
        assert len((await running.sealed(batch_id))[0]) == 4
        assert await state(running, lease_id) == pb.ModelLease.STATE_RELEASED


@pytest.mark.parametrize("late", [False, True])
async def test_a_batch_that_is_stopped_while_its_results_are_found_to_be_lost(settings: Settings, *, late: bool) -> None:
    """It stays stopped: nothing of it runs again, also when the stop was written before and is known after."""
    async with mesh(quick(settings)) as running:
        engine, batch_id = await half_done(running, 20, 20)
        await running.ended(batch_id)
        journal_of(settings, batch_id).unlink()
        engine.respond = answer
        intake, stops = running.scheduler.intake, list[asyncio.Future[object]]()
        opening, stopping, written, sealed = intake._ledger.open, intake._store.stop, asyncio.Event(), asyncio.Event()

        async def stopped(*terms: Any) -> int:
            reason = await stopping(*terms)
            written.set()
            if late:
                await sealed.wait()
            return reason

        async def opened(stored: Stored) -> Opened:
            stop = pb.StopBatchRequest(batch_id=batch_id, reason=pb.StopBatchRequest.REASON_CANCELLED)
            stops.append(asyncio.ensure_future(rpc.call(running.stub.StopBatch, stop)))
            await (written.wait() if late else stops[0])
            return await opening(stored)

        intake._ledger.open, intake._store.stop = opened, stopped  # type: ignore[method-assign]
        with pytest.raises(errors.Conflict, match="lost"):
            await rpc.call(running.stub.SealBatch, pb.SealBatchRequest(batch_id=batch_id))
        sealed.set()
        await stops[0]
        assert intake.get(batch_id).ended
        output, error = await seal(running, batch_id)
        assert len(output) + len(error) == 20
        assert late or len(engine.sequences) == 20


async def test_a_stopped_batch_without_its_journal_can_be_sealed(settings: Settings) -> None:
    """Nothing of it runs again, and the error lines say what may have been lost."""
    async with mesh(quick(settings)) as running:
        _, batch_id = await half_done(running, 20, 4)
        await rpc.call(running.stub.StopBatch, pb.StopBatchRequest(batch_id=batch_id, reason=pb.StopBatchRequest.REASON_CANCELLED))
        journal_of(settings, batch_id).unlink()
        output, error = await seal(running, batch_id)
        assert (output, len(error)) == ([], 20)
        assert all("lost from the disk" in line["error"]["message"] for line in error)


async def test_lines_behind_a_torn_one_are_no_results(settings: Settings) -> None:
    """What was never synced is not sealed either, though it looks like a result."""
    async with mesh(quick(settings)) as running:
        engine, batch_id = await half_done(running, 20, 4)
        await engine.kill()
    journal = journal_of(settings, batch_id)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines) + b"\0" * 50 + b"\n" + lines[0].replace(b"_00000000", b"_0000000f", 1))
    async with mesh(quick(settings)) as running:
        assert (await running.progress(batch_id)).counts.completed == 4
        assert journal.read_bytes() == b"".join(lines)
        await rpc.call(running.stub.StopBatch, pb.StopBatchRequest(batch_id=batch_id, reason=pb.StopBatchRequest.REASON_CANCELLED))
        output, error = await seal(running, batch_id)
        assert (len(output), len(error)) == (4, 16)


async def test_a_scheduler_that_slept_through_its_leases_keeps_its_shards(settings: Settings) -> None:
    """After a pause longer than a lease nothing runs twice: leases that nobody took are renewed before more are claimed."""
    clock = FakeClock()
    async with mesh(quick(settings), clock) as running:
        engine = await with_engine(running, slots=4)
        engine.respond = lambda sequence: None
        batch_id = await running.submit(lines_of(40), shard_rows=5)
        await eventually(lambda: engine.held, lambda held: len(held) == 4)
        clock.advance(settings.scheduler.lease_seconds + 1)
        rest = dict(engine.held)
        engine.held, engine.respond = {}, answer
        engine.held[min(rest)] = rest.pop(min(rest))
        engine.release()
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed >= 37)
        engine.held = rest
        engine.release()
        await running.ended(batch_id)
        assert len(engine.sequences) == 40
        output, _ = await running.sealed(batch_id)
        assert len(output) == 40


async def test_a_seal_and_a_stop_at_the_same_time(settings: Settings) -> None:
    """Whichever is first, the blobs hold each row once, and what the stop cut off is told by its reason."""
    for _ in range(5):
        async with mesh(quick(settings)) as running:
            engine, batch_id = await half_done(running, 20, 10)
            stop = pb.StopBatchRequest(batch_id=batch_id, reason=pb.StopBatchRequest.REASON_CANCELLED)
            engine.respond = answer
            engine.release()
            both = await asyncio.gather(
                rpc.call(running.stub.StopBatch, stop),
                rpc.call(running.stub.SealBatch, pb.SealBatchRequest(batch_id=batch_id), timeout=60),
                rpc.call(running.stub.StopBatch, stop),
                return_exceptions=True,
            )
            assert not [error for error in (both[0], both[2]) if isinstance(error, BaseException)]
            output, error = await running.sealed(batch_id)
            assert len(output) + len(error) == 20
            assert {line["error"]["code"] for line in error} <= {"batch_cancelled"}
            await engine.kill()
            await rpc.call(running.stub.ForgetBatch, pb.ForgetBatchRequest(batch_id=batch_id))

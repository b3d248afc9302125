"""Batches that are forgotten the moment they end, as small ones are, with others right behind them."""

from __future__ import annotations

import asyncio

import pytest
from scheduler_mesh import Mesh, eventually, lines_of, mesh, quick, with_engine

from haywain import rpc
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings


async def through(running: Mesh, rows: int) -> str:
    """Take a batch from its submission to being forgotten."""
    batch_id = await running.submit(lines_of(rows))
    await running.ended(batch_id)
    await rpc.call(running.stub.ForgetBatch, pb.ForgetBatchRequest(batch_id=batch_id))
    return batch_id


async def test_a_late_checkpoint_of_a_forgotten_batch_touches_no_other(settings: Settings) -> None:
    """What is still to be committed of a batch that is gone must not take the next one out of the queue."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        engine.respond = lambda sequence: None
        batch_id = await running.submit(lines_of(1))
        await eventually(lambda: engine.held, bool)
        gone = running.scheduler.intake.get(batch_id)
        held = dict(gone.held)
        engine.release()
        await running.ended(batch_id)
        await rpc.call(running.stub.ForgetBatch, pb.ForgetBatchRequest(batch_id=batch_id))
        gone.held.update(held)  # as if its last checkpoint had not come yet
        waiting = await running.submit(lines_of(3, model="other"))
        running.scheduler._checkpoints.touch(gone, soon=True)
        await running.scheduler._checkpoints.commit()
        await with_engine(running, engine_id="e1", models=["other"])
        assert (await running.ended(waiting)).counts.completed == 3


async def test_many_small_batches_all_end(settings: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    """However fast they come and go, none is left behind, and nothing is worth a warning."""
    async with mesh(quick(settings)) as running:
        await with_engine(running, slots=16)
        await eventually(lambda: running.scheduler.dispatcher.links.credits(("echo", "/v1/chat/completions", False, None)), bool)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for rows in range(60):
                group.create_task(through(running, rows % 3 + 1))
        assert not running.scheduler.intake.batches
    assert "lease.lost" not in "".join(capfd.readouterr())


async def test_a_batch_that_rests_while_it_is_forgotten_does_not_come_back(settings: Settings) -> None:
    """Another scheduler ran and forgot it while this one waited for the disk: nothing of it stays here."""
    async with mesh(quick(settings)) as running:
        batch_id = await running.submit(lines_of(3))
        scheduler = running.scheduler
        batch = scheduler.intake.get(batch_id)
        scheduler.dispatcher._rest(batch)
        scheduler._gone(batch)
        scheduler.dispatcher._rested(batch)
        assert not scheduler.dispatcher._batches

"""A batches process that ends in the middle of a batch's life, and the next one that goes on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from batches_peers import serve_scheduler
from batches_seam import Batch, Seam, conserved, happens, rows, seam

__all__ = ["seam"]


async def test_counts_survive_a_restart_without_scheduler(seam: Seam) -> None:
    """What a reader was told, however short before the end, is told after a restart too, even while the scheduler is away."""
    async with seam.peers(scheduler=False):
        async with serve_scheduler(seam.settings, seam.scheduler), seam.life():
            batch = await seam.batch_of(rows(3))
            await seam.submitted(batch.batch_id)
            seam.scheduler.run(batch.batch_id, completed=2)
            told = await seam.get(batch.batch_id)
        async with seam.life(driving=False):
            again = await seam.get(batch.batch_id)
    assert (told.counts.completed, told.counts.total) == (2, 3)
    assert (again.counts, again.usage, again.in_progress_time) == (told.counts, told.usage, told.in_progress_time)


@contextlib.asynccontextmanager
async def cut_at(seam: Seam, moment: str) -> AsyncIterator[str]:
    """Bring a batch of four rows to a moment in one life of the service and end that life; the next one runs in the block."""
    async with seam.peers():
        async with seam.life(driving=moment != "created"):
            if moment == "waiting for an engine":
                models, seam.scheduler.models = seam.scheduler.models, []
            batch = await seam.batch_of(rows(4))
            if moment == "waiting for an engine":
                await happens(lambda: seam.scheduler.calls.models)
                seam.scheduler.models = models
            elif moment != "created":
                await seam.submitted(batch.batch_id)
                seam.scheduler.slow_stop = True
            if moment == "cancelling":
                await seam.cancel(batch.batch_id)
                await happens(lambda: seam.scheduler.batches[batch.batch_id].reason)
            if moment == "finalizing as expired":
                seam.clock.advance(24 * 3_600)
                await seam.until(batch.batch_id, Batch.STATUS_FINALIZING)
        seam.scheduler.slow_stop = False
        async with seam.life():
            yield batch.batch_id


@pytest.mark.parametrize("moment", ["created", "waiting for an engine", "in progress", "cancelling", "finalizing as expired"])
async def test_a_restart_goes_on(seam: Seam, moment: str) -> None:
    """Wherever the service is cut off, its next life brings the batch to its end."""
    seam.scheduler.instant = moment in ("created", "waiting for an engine")
    async with cut_at(seam, moment) as batch_id:
        if moment == "in progress":
            seam.scheduler.run(batch_id, completed=4)
        batch = await seam.until(batch_id)
        conserved(batch, 4)
        await seam.settled(batch_id)
    expected = {"cancelling": Batch.STATUS_CANCELLED, "finalizing as expired": Batch.STATUS_EXPIRED}
    assert batch.status == expected.get(moment, Batch.STATUS_COMPLETED)

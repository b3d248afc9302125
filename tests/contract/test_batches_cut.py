"""The batches process cut off in the middle of each call to a peer, before and after the peer did its part."""

from __future__ import annotations

import asyncio

import pytest
from batches_peers import Gate
from batches_seam import Batch, Seam, conserved, rows, seam

from haywain import errors

__all__ = ["seam"]

ENDS = {
    "completed": (
        Batch.STATUS_COMPLETED,
        ["SubmitBatch", "SealBatch", "AdoptBlob output", "AdoptBlob error", "ForgetBatch", "ReleaseBlob"],
    ),
    "cancelled": (Batch.STATUS_CANCELLED, ["StopBatch", "SealBatch", "AdoptBlob output", "AdoptBlob error", "ForgetBatch"]),
    "expired": (Batch.STATUS_EXPIRED, ["StopBatch", "SealBatch", "AdoptBlob output", "ReleaseBlob"]),
}
CUTS = [(end, call, after) for end, (_, calls) in ENDS.items() for call in calls for after in (False, True)]


async def bring_to_its_end(seam: Seam, batch_id: str, end: str) -> None:
    """Let a running batch end in one of the three ways, from wherever it is."""
    if batch_id not in seam.scheduler.batches or seam.scheduler.batches[batch_id].progress.counts.completed:
        return
    if end == "completed":
        seam.scheduler.run(batch_id, completed=2, failed=1)
        return
    seam.scheduler.run(batch_id, completed=1)
    if end == "cancelled":
        await seam.cancel(batch_id)
    else:
        seam.clock.advance(24 * 3_600)


@pytest.mark.parametrize(("end", "call", "after"), CUTS)
async def test_cut_off_in_a_call(seam: Seam, end: str, call: str, after: bool) -> None:
    """The next life takes the batch to the same end, with each row once and one output and one error file."""
    gate = Gate(call, after)
    seam.files.gate = seam.scheduler.gate = gate
    async with seam.peers():
        async with seam.life():
            batch = await seam.batch_of(rows(3))
            if call != "SubmitBatch":
                await seam.submitted(batch.batch_id)
                await bring_to_its_end(seam, batch.batch_id, end)
            await gate.reached.wait()
        gate.call = ""
        async with seam.life():
            if call == "SubmitBatch":
                await seam.submitted(batch.batch_id)
                await bring_to_its_end(seam, batch.batch_id, end)
            done = await seam.until(batch.batch_id)
            await seam.settled(batch.batch_id)
    assert done.status == ENDS[end][0]
    conserved(done, 3)
    assert sorted(seam.files.adopted) == [f"{batch.batch_id}-error", f"{batch.batch_id}-output"]
    assert seam.scheduler.forgotten == {batch.batch_id}


@pytest.mark.parametrize("after", [False, True])
async def test_cut_off_in_creation(seam: Seam, after: bool) -> None:
    """A creation that dies while it holds its input makes no batch, and the hold is let go later."""
    gate = Gate("HoldBlob", after)
    seam.files.gate = gate
    async with seam.peers():
        async with seam.life():
            file_id = await seam.files.put(rows(1))
            creating = asyncio.create_task(seam.create(file_id))
            await gate.reached.wait()
        await asyncio.wait([creating])
        assert creating.cancelled() or isinstance(creating.exception(), errors.HaywainError)
        assert bool(seam.files.holds) == after
        gate.call = ""
        seam.clock.advance(120)
        async with seam.life():
            batch = await seam.create(file_id)
            await seam.submitted(batch.batch_id)
            await seam.intents_gone()
            assert list(seam.files.holds) == [batch.batch_id]

"""Held creations: nothing begins before the client is answered, and a client who is told of a failure is told the truth."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from batches_peers import Gate
from batches_seam import Seam, happens, key, live, rows, seam
from msgspec.structs import replace

from haywain import errors, rpc
from haywain.batches.v1 import batches_pb2
from haywain.clock import FakeClock
from services.batches.held import HELD_SECONDS, Hearing

__all__ = ["live", "seam"]

Outcome = batches_pb2.AnswerCreationResponse
KINDS: dict[str, dict[str, Any]] = {
    "file": {},
    "waited": {"wait_seconds": 9},
    "inline": {"inline_input": rows(2) + b"bad\n", "invalid_rows": batches_pb2.CreateBatchRequest.INVALID_ROWS_REJECT},
    "invalid": {"wait_seconds": 9, "input_file_id": "file-none"},
}


async def held(seam: Seam, kind: str = "file", request_id: str = "r", **fields: Any) -> batches_pb2.Batch:
    """Create a batch of two rows whose client isn't answered yet."""
    fields = KINDS[kind] | fields
    if "inline_input" not in fields and "input_file_id" not in fields:
        fields["input_file_id"] = await seam.files.put(rows(2))
    return (await seam.created(request_id=request_id, held=True, **fields)).batch


async def answered(seam: Seam, *, failed: bool, request_id: str = "r") -> Outcome:
    """Tell how the client was answered."""
    request = batches_pb2.AnswerCreationRequest(request_id=request_id, failed=failed)
    answer: Outcome = await rpc.call(seam.stub.AnswerCreation, request)
    return answer


@pytest.mark.parametrize("kind", ["file", "waited", "inline"])
async def test_a_good_answer(live: Seam, kind: str) -> None:
    """Nothing of it begins until its client is answered; then it runs, and a failure is too late."""
    batch = await held(live, kind)
    other = await live.batch_of(rows(1))
    await live.submitted(other.batch_id)
    assert batch.batch_id not in live.scheduler.batches
    assert (await answered(live, failed=False)).outcome == Outcome.OUTCOME_BATCH
    await live.submitted(batch.batch_id)
    late = await answered(live, failed=True)
    assert (late.outcome, late.batch_id) == (Outcome.OUTCOME_BATCH, batch.batch_id)
    assert (await live.get(batch.batch_id)).batch_id == batch.batch_id


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
async def test_a_bad_answer(seam: Seam, kind: str, restarted: bool) -> None:
    """It is unmade with all that it brought and held, its key is free, and the answer can be told again."""
    async with seam.peers():
        async with seam.life():
            batch = await held(seam, kind, idempotency=key())
            if not restarted:
                assert (await answered(seam, failed=True)).outcome == Outcome.OUTCOME_NOTHING
        async with seam.life():
            assert (await answered(seam, failed=True)).outcome == Outcome.OUTCOME_NOTHING
            with pytest.raises(errors.BatchMissing):
                await seam.get(batch.batch_id)
            assert await seam.listed() == []
            assert seam.written() == []
            assert not seam.files.holds
            assert {request.file_id for request in seam.files.adopted.values()} == seam.files.deleted
            assert await seam.servicer.store.stale_intents(float("inf")) == []
            assert batch.batch_id not in seam.scheduler.batches
            again = await held(seam, kind, "r2", idempotency=key())
            assert again.batch_id != batch.batch_id


async def test_many_good_answers(live: Seam) -> None:
    """They may be told together, unknown ones among them."""
    batches = [await held(live, request_id=f"r{number}") for number in range(3)]
    request = batches_pb2.AnswerCreationRequest(request_id="r0", also=["r1", "nobody", "r2"])
    answer = await rpc.call(live.stub.AnswerCreation, request)
    assert (answer.outcome, answer.batch_id) == (Outcome.OUTCOME_BATCH, batches[0].batch_id)
    for batch in batches:
        await live.submitted(batch.batch_id)


async def test_no_answer(live: Seam) -> None:
    """A batch of whose client nothing is heard for ten seconds runs."""
    live.scheduler.instant = True
    batch = await held(live)
    live.clock.advance(HELD_SECONDS + 1)
    await live.until(batch.batch_id)
    assert (await answered(live, failed=True)).outcome == Outcome.OUTCOME_BATCH


async def test_nobody_could_be_heard(seam: Seam) -> None:
    """A service that was away for so long lets those speak first who have something to say, and unmakes what they say."""
    seam.settings = replace(seam.settings, batches=replace(seam.settings.batches, poll_seconds=20.0))
    async with seam.peers():
        async with seam.life():
            batch = await held(seam)
        seam.clock.advance(HELD_SECONDS + 1)
        async with seam.life():
            await seam.submitted((await seam.batch_of(rows(1))).batch_id)  # it has looked what there is to do
            assert (await answered(seam, failed=True)).outcome == Outcome.OUTCOME_NOTHING
            with pytest.raises(errors.BatchMissing):
                await seam.get(batch.batch_id)


def test_hearing() -> None:
    """Some looks in a row, with no long pause between them, are needed; after each such pause anew."""
    clock = FakeClock()
    hearing = Hearing(1.0, clock)

    def looks(*pauses: float) -> list[bool]:
        seen = []
        for pause in pauses:
            clock.advance(pause)
            seen.append(hearing.look())
        return seen

    assert looks(0, 1, 1, 1, 5) == [False, False, False, True, True]
    assert looks(5.1, 1, 1, 1) == [False, False, False, True]


async def test_a_good_answer_after_a_restart(seam: Seam) -> None:
    """It needn't be the same life that hears of it."""
    async with seam.peers():
        async with seam.life():
            batch = await held(seam)
        async with seam.life():
            assert (await answered(seam, failed=False)).outcome == Outcome.OUTCOME_BATCH
            await seam.submitted(batch.batch_id)


async def test_a_bad_answer_to_a_creation_under_way(live: Seam) -> None:
    """It comes to nothing, however far it was; one that comes only now does, too."""
    live.files.gate = gate = Gate("HoldBlob", after=True)
    file_id = await live.files.put(rows(1))
    creating = asyncio.create_task(held(live, input_file_id=file_id))
    await gate.reached.wait()
    assert (await answered(live, failed=True)).outcome == Outcome.OUTCOME_NOTHING
    gate.opened.set()
    with pytest.raises(errors.Unavailable) as caught:
        await creating
    assert caught.value.undone is None
    with pytest.raises(errors.Unavailable):
        await held(live, input_file_id=file_id)
    await happens(lambda: not live.files.holds)
    assert await live.listed() == []


class Gates(Gate):
    """Two gates in one place."""

    def __init__(self, *gates: Gate) -> None:
        super().__init__()
        self.gates = gates

    async def pass_by(self, call: str, *, after: bool) -> None:
        """Hang at either."""
        for gate in self.gates:
            await gate.pass_by(call, after=after)


async def test_a_bad_answer_while_its_files_are_made(live: Seam) -> None:
    """A file that a creation makes while it is unmade stays no more than the others."""
    adopting, deleting = Gate("AdoptBlob input"), Gate("DeleteFile", after=True)
    live.files.gate = Gates(adopting, deleting)
    creating = asyncio.create_task(held(live, "inline"))
    await adopting.reached.wait()
    failing = asyncio.create_task(answered(live, failed=True))
    await deleting.reached.wait()
    adopting.opened.set()
    await creating
    deleting.opened.set()
    assert (await failing).outcome == Outcome.OUTCOME_NOTHING
    assert {request.file_id for request in live.files.adopted.values()} == live.files.deleted
    assert live.written() == []


async def test_a_refusal_says_that_nothing_was_done(live: Seam) -> None:
    """What the service refuses by itself needs no unmaking."""
    with pytest.raises(errors.InvalidRequest) as caught:
        await held(live, endpoint="/v1/nope")
    assert caught.value.undone
    assert (await answered(live, failed=True)).outcome == Outcome.OUTCOME_NOTHING
    with pytest.raises(errors.InvalidRequest):
        await answered(live, failed=True, request_id="")


async def test_another_client_was_told_of_it(live: Seam) -> None:
    """A batch that an idempotency key answered to somebody stays, whatever its first client is told."""
    batch = await held(live, "inline", idempotency=key())
    again = await live.created(request_id="r2", held=True, idempotency=key(), **KINDS["inline"])
    assert (again.batch.batch_id, again.replayed) == (batch.batch_id, True)
    await live.submitted(batch.batch_id)
    assert (await answered(live, failed=True)).outcome == Outcome.OUTCOME_BATCH
    assert (await answered(live, failed=True, request_id="r2")).outcome == Outcome.OUTCOME_NOTHING


async def test_a_cancel_ends_the_wait(live: Seam) -> None:
    """Who cancels a batch has its id from somewhere: it is there to stay."""
    batch = await held(live)
    await live.cancel(batch.batch_id)
    assert (await answered(live, failed=True)).outcome == Outcome.OUTCOME_BATCH
    await live.until(batch.batch_id, batches_pb2.Batch.STATUS_CANCELLED)


async def test_a_label_ends_the_wait(live: Seam) -> None:
    """Who was told that a batch has new metadata finds it again, and it runs."""
    live.scheduler.instant = True
    batch = await held(live)
    request = batches_pb2.UpdateBatchRequest(batch_id=batch.batch_id, metadata={"a": "b"})
    await rpc.call(live.stub.UpdateBatch, request)
    assert (await answered(live, failed=True)).outcome == Outcome.OUTCOME_BATCH
    assert dict((await live.until(batch.batch_id)).metadata) == {"a": "b"}

"""Idempotency keys: the answer of the first request for a day, nothing created twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from batches_seam import Seam, happens, key, live, rows, seam

from haywain import errors, rpc
from haywain.batches.v1 import batches_pb2
from haywain.scheduler.v1 import scheduler_pb2

__all__ = ["live", "seam"]

REJECT, FAIL = batches_pb2.CreateBatchRequest.INVALID_ROWS_REJECT, batches_pb2.CreateBatchRequest.INVALID_ROWS_FAIL
BAD = b"bad\n"


async def test_the_same_key_answers_the_same(live: Seam) -> None:
    """The second request gets the first one's answer to the bit, whatever became of the batch, and creates nothing."""
    live.scheduler.instant = True
    first = await live.created(inline_input=rows(2) + BAD, invalid_rows=REJECT, metadata={"b": "1", "a": "2"}, idempotency=key())
    assert not first.replayed
    await live.until(first.batch.batch_id)
    update = batches_pb2.UpdateBatchRequest(batch_id=first.batch.batch_id, metadata={"c": "3"})
    await rpc.call(live.stub.UpdateBatch, update)
    second = await live.created(inline_input=rows(2) + BAD, invalid_rows=REJECT, idempotency=key())
    assert second.replayed
    second.replayed = False
    assert second == first
    assert await live.listed() == [first.batch.batch_id]
    assert set(live.files.adopted) == {f"{first.batch.batch_id}-{kind}" for kind in ("input", "rejections", "output", "error")}


async def test_another_body_under_the_key(live: Seam) -> None:
    """It is refused, in its tenant; another tenant's key of the same name is another key."""
    file_id = await live.files.put(rows(1))
    first = await live.created(input_file_id=file_id, idempotency=key())
    with pytest.raises(errors.KeyReused):
        await live.created(input_file_id=file_id, idempotency=key(fingerprint="other"))
    other = await live.created(input_file_id=file_id, idempotency=key(fingerprint="other"), tenant="other")
    assert other.batch.batch_id != first.batch.batch_id
    assert await live.listed() == [first.batch.batch_id]


async def test_a_request_that_still_runs(live: Seam) -> None:
    """Its key is in use, which a retry cures; under another body it is another's key even now."""
    live.scheduler.models, models = [], live.scheduler.models
    running = asyncio.create_task(live.created(inline_input=rows(1), idempotency=key()))
    await happens(lambda: live.scheduler.calls.models >= 1)
    with pytest.raises(errors.KeyInUse) as caught:
        await live.created(inline_input=rows(1), idempotency=key())
    assert caught.value.retryable
    with pytest.raises(errors.KeyReused):
        await live.created(inline_input=rows(2), idempotency=key(fingerprint="other"))
    live.scheduler.models = models
    first = await running
    assert (await live.created(inline_input=rows(1), idempotency=key())).batch == first.batch


async def test_what_failed_is_not_kept(live: Seam) -> None:
    """After an error, and after an answer without a batch, the key is free for the same request and for another."""
    live.scheduler.pool = scheduler_pb2.GetPoolStatusResponse(intake_capacity=0)
    with pytest.raises(errors.CapacityExceeded):
        await live.created(inline_input=rows(1), idempotency=key())
    live.scheduler.pool = scheduler_pb2.GetPoolStatusResponse(intake_capacity=9)
    assert not (await live.created(inline_input=BAD, idempotency=key(fingerprint="other"))).HasField("batch")
    assert not (await live.created(inline_input=rows(1), idempotency=key())).replayed


async def test_the_caller_that_repeats_itself_is_no_replay(live: Seam) -> None:
    """A request_id that comes again got its answer lost on the way: it is the first answer, with or without a key."""
    for name, fields in (("r1", {"idempotency": key()}), ("r2", {})):
        terms: dict[str, Any] = {"inline_input": rows(1) + BAD, "invalid_rows": REJECT, "request_id": name, **fields}
        first, second = await live.created(**terms), await live.created(**terms)
        assert first == second
        assert second.rejections.count == 1
    assert len(await live.listed()) == 2


async def test_answers_are_swept(live: Seam) -> None:
    """After a day the key names nothing any more, and what was kept under it goes."""
    file_id = await live.files.put(rows(1))
    first = await live.created(input_file_id=file_id, idempotency=key())
    live.clock.advance(86_400)
    second = await live.created(input_file_id=file_id, idempotency=key(fingerprint="other"))
    assert second.batch.batch_id != first.batch.batch_id

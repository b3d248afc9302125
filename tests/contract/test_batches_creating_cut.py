"""Creations cut off ahead of the transaction that makes the batch, and behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from batches_peers import Gate
from batches_seam import Seam, conserved, happens, key, live, rows, seam

from haywain import errors
from haywain.batches.v1 import batches_pb2

__all__ = ["live", "seam"]

REJECT, FAIL = batches_pb2.CreateBatchRequest.INVALID_ROWS_REJECT, batches_pb2.CreateBatchRequest.INVALID_ROWS_FAIL
BAD = b"bad\n"


CUTS = [
    ("inline", "AdoptBlob input", False),
    ("inline", "AdoptBlob input", True),
    ("inline", "AdoptBlob rejections", False),
    ("file", "AdoptBlob rejections", True),
]


@pytest.mark.parametrize(("kind", "call", "after"), CUTS)
async def test_cut_off_behind_the_transaction(seam: Seam, kind: str, call: str, after: bool) -> None:
    """A creation that dies once its batch is recorded goes on in the next life: the batch has its files, each once, and runs."""
    data = rows(2) + BAD
    gate = seam.files.gate = Gate(call, after)
    async with seam.peers():
        async with seam.life():
            source: dict[str, Any] = {"inline_input": data}
            if kind == "file":
                source = {"input_file_id": await seam.files.put(data), "wait_seconds": 9}
            creating = asyncio.create_task(seam.created(invalid_rows=REJECT, idempotency=key(), **source))
            await gate.reached.wait()
        await asyncio.wait([creating])
        assert creating.cancelled() or isinstance(creating.exception(), errors.HaywainError)
        gate.call = ""
        seam.scheduler.instant = True
        async with seam.life():
            [batch_id] = await seam.listed()
            again = await seam.created(invalid_rows=REJECT, idempotency=key(), **source)
            assert (again.batch.batch_id, again.replayed) == (batch_id, True)
            conserved(await seam.until(batch_id), 3)
            await seam.settled(batch_id)
    kinds = {name.removeprefix(f"{batch_id}-"): request.file_id for name, request in seam.files.adopted.items()}
    assert set(kinds) == {"rejections", "output", "error"} | ({"input"} if kind == "inline" else set())
    assert kinds["rejections"] == again.rejections.file_id
    assert kinds.get("input", again.batch.input_file_id) == again.batch.input_file_id


@pytest.mark.parametrize("call", ["HoldBlob", "ListModels"])
async def test_cut_off_ahead_of_the_transaction(seam: Seam, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A creation that dies before leaves no batch; blobs and holds go a minute later, and the key is free."""
    reached = asyncio.Event()

    async def hang(*_: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(seam.files if call == "HoldBlob" else seam.scheduler, call, hang)
    data = rows(2) + BAD
    async with seam.peers():
        source: dict[str, Any] = {"inline_input": data}
        if call == "HoldBlob":
            source = {"input_file_id": await seam.files.put(data), "wait_seconds": 9}
        async with seam.life():
            creating = asyncio.create_task(seam.created(invalid_rows=REJECT, idempotency=key(), **source))
            await reached.wait()
        await asyncio.wait([creating])
    monkeypatch.undo()
    async with seam.peers(), seam.life():
        assert await seam.listed() == []
        assert bool(seam.written()) == (call == "ListModels")
        seam.clock.advance(120)
        await seam.intents_gone()
        await seam.nothing_left()
        again = await seam.created(invalid_rows=REJECT, idempotency=key(), **source)
        assert not again.replayed


async def test_a_client_that_leaves(live: Seam) -> None:
    """A caller who hangs up while validation waits leaves nothing for long, and no batch."""
    live.scheduler.models = []
    creating = asyncio.create_task(live.created(inline_input=rows(1)))
    await happens(lambda: live.scheduler.calls.models >= 1)
    creating.cancel()
    await asyncio.wait([creating])
    assert await live.listed() == []
    live.clock.advance(120)
    await live.intents_gone()
    await live.nothing_left()

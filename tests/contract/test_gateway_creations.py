"""Creations that share a call to batches: which do, and what is told of those whose call had to be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.creations import Creations
from gateway.peers import Peer
from haywain import errors, rpc
from haywain.batches.v1 import batches_pb2, batches_pb2_grpc
from haywain.status import packed

NAME = "haywain.batches.v1.BatchesService"


class Batches(batches_pb2_grpc.BatchesServiceServicer):
    """Tells of creations that share a call what it is told to, and creates those that come alone."""

    def __init__(self) -> None:
        self.script: list[str] = []
        """What becomes of all creations of a call, one call after the other."""
        self.shared: list[list[str]] = []
        self.alone: list[str] = []

    async def CreateBatch(self, request: batches_pb2.CreateBatchRequest, context: Any) -> batches_pb2.CreateBatchResponse:
        self.alone.append(request.request_id)
        return created(request)

    async def CreateBatches(self, request: batches_pb2.CreateBatchesRequest, context: Any) -> batches_pb2.CreateBatchesResponse:
        self.shared.append([creation.request.request_id for creation in request.creations])
        what = self.script.pop(0)
        if what == "lost":
            await context.abort(grpc.StatusCode.UNAVAILABLE)
        error = errors.StorageFull() if what == "full" else errors.Unavailable()
        error.undone = True
        outcomes = [batches_pb2.CreationOutcome(error=packed(error)) for _ in request.creations]
        if what in ("first made", "made"):
            outcomes[0] = batches_pb2.CreationOutcome(created=created(request.creations[0].request))
        if what == "made":
            outcomes[1:] = [batches_pb2.CreationOutcome(created=created(one.request)) for one in request.creations[1:]]
        return batches_pb2.CreateBatchesResponse(outcomes=outcomes)


def created(request: batches_pb2.CreateBatchRequest) -> batches_pb2.CreateBatchResponse:
    """Name a batch after its request."""
    return batches_pb2.CreateBatchResponse(batch=batches_pb2.Batch(batch_id=request.request_id))


@pytest.fixture
def batches() -> Batches:
    return Batches()


@pytest.fixture
async def create(batches: Batches, data_dir: Path) -> AsyncIterator[Creations]:
    address = f"unix:{data_dir}/batches.sock"
    service = (batches, batches_pb2_grpc.add_BatchesServiceServicer_to_server, NAME)
    async with rpc.serving(address, [service], grace_seconds=0):
        peer = Peer("batches", address, batches_pb2_grpc.BatchesServiceStub)
        yield Creations(peer)
        await peer.channel.close()


def creation(request_id: str, **fields: Any) -> batches_pb2.CreateBatchRequest:
    """Ask for a batch."""
    return batches_pb2.CreateBatchRequest(request_id=request_id, input_file_id="file-x", **fields)


@pytest.mark.parametrize(
    ("script", "kind", "undone"),
    [
        ("full", errors.StorageFull, True),
        ("lost, full", errors.StorageFull, False),
        ("away, full", errors.StorageFull, True),
        ("first made, full", errors.StorageFull, False),
        ("lost, away, away", errors.Unavailable, False),
        ("away, away, away", errors.Unavailable, True),
        ("away, lost, lost", errors.Unavailable, False),
    ],
)
async def test_a_refusal_speaks_for_all_tries(create: Creations, batches: Batches, script: str, kind: type, undone: bool) -> None:
    """That nothing was created is told only when no try before may have created it."""
    batches.script = script.split(", ")
    told = await asyncio.gather(*(create(creation(name)) for name in ("a", "b")), return_exceptions=True)
    assert batches.shared == [["a", "b"]] * len(script.split(", "))
    assert [(type(error), bool(getattr(error, "undone", None))) for error in told] == [(kind, undone)] * 2


@pytest.mark.parametrize("script", ["made", "away, made", "lost, made", "first made, away, made"])
async def test_a_peer_that_restarts_is_waited_for(create: Creations, batches: Batches, script: str) -> None:
    """Who is told that something is away asks again, as one alone does."""
    batches.script = script.split(", ")
    told = await asyncio.gather(*(create(creation(name)) for name in ("a", "b")))
    assert ([answer.batch.batch_id for answer in told], batches.script) == (["a", "b"], [])


async def test_a_huge_one_goes_alone(create: Creations, batches: Batches) -> None:
    """It can't make a call that others share too large for all of them."""
    batches.script = ["made"]
    huge = creation("huge", metadata={"key": "x" * 100_000})
    told = await asyncio.gather(*(create(one) for one in (creation("a"), huge, creation("b"))))
    assert [answer.batch.batch_id for answer in told] == ["a", "huge", "b"]
    assert (batches.shared, batches.alone) == ([["a", "b"]], ["huge"])

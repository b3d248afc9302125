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
    """Refuses creations that share a call, each for itself, as what surely hasn't happened; creates those that come alone."""

    def __init__(self) -> None:
        self.lost = 0
        """So many calls end as if the process died during them."""
        self.shared: list[list[str]] = []
        self.alone: list[str] = []

    async def CreateBatch(self, request: batches_pb2.CreateBatchRequest, context: Any) -> batches_pb2.CreateBatchResponse:
        self.alone.append(request.request_id)
        return batches_pb2.CreateBatchResponse(batch=batches_pb2.Batch(batch_id=request.request_id))

    async def CreateBatches(self, request: batches_pb2.CreateBatchesRequest, context: Any) -> batches_pb2.CreateBatchesResponse:
        self.shared.append([creation.request.request_id for creation in request.creations])
        if len(self.shared) <= self.lost:
            await context.abort(grpc.StatusCode.UNAVAILABLE)
        error = errors.Unavailable()
        error.undone = True
        return batches_pb2.CreateBatchesResponse(outcomes=[batches_pb2.CreationOutcome(error=packed(error))] * len(self.shared[-1]))


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


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_refusal_speaks_for_the_last_try_alone(create: Creations, batches: Batches, lost: int) -> None:
    """That nothing was created is believed only when the call wasn't lost before: then it may have been."""
    batches.lost = lost
    told = await asyncio.gather(*(create(creation(name)) for name in ("a", "b")), return_exceptions=True)
    assert batches.shared == [["a", "b"]] * (lost + 1)
    assert [type(error) for error in told] == [errors.Unavailable] * 2
    assert [bool(getattr(error, "undone", None)) for error in told] == [not lost] * 2


async def test_a_huge_one_goes_alone(create: Creations, batches: Batches) -> None:
    """It can't make a call that others share too large for all of them."""
    huge = creation("huge", metadata={"key": "x" * 100_000})
    told = await asyncio.gather(*(create(one) for one in (creation("a"), huge, creation("b"))), return_exceptions=True)
    assert isinstance(told[1], batches_pb2.CreateBatchResponse)
    assert (batches.shared, batches.alone) == ([["a", "b"]], ["huge"])

"""CreateBatches: many creations in one call, each with an outcome of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from batches_seam import Batch, Seam, conserved, live, rows, seam

from gateway.creations import Creations
from gateway.peers import Peer
from haywain import errors, log, rpc
from haywain.batches.v1 import batches_pb2, batches_pb2_grpc
from haywain.status import unpacked

__all__ = ["live", "seam"]

_Request = batches_pb2.CreateBatchRequest


def creation(request_id: str, file_id: str, **fields: Any) -> _Request:
    """Ask for a batch of a file."""
    chat = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "tenant": "default"}
    return _Request(**chat | {"request_id": request_id, "input_file_id": file_id} | fields)


async def test_each_has_its_own_outcome(live: Seam) -> None:
    """A good one is created and runs; a bad one beside it is refused with all that a call of its own would tell."""
    file_id = await live.files.put(rows(2))
    wanted = [
        creation("create_1", file_id),
        creation("create_2", file_id, completion_window="1 week"),
        creation("create_3", file_id, endpoint="/v1/none"),
    ]
    many = batches_pb2.CreateBatchesRequest(creations=[batches_pb2.Creation(request=one) for one in wanted])
    answer = await rpc.call(live.stub.CreateBatches, many)
    kinds = [outcome.WhichOneof("outcome") for outcome in answer.outcomes]
    assert kinds == ["created", "error", "error"]
    for outcome, request in zip(answer.outcomes[1:], wanted[1:], strict=True):
        told = unpacked(outcome.error)
        alone = await refused(live, request)
        assert isinstance(told, errors.InvalidRequest)
        assert (told.message, told.code, told.param, told.undone) == (alone.message, alone.code, alone.param, True)
    batch_id = answer.outcomes[0].created.batch.batch_id
    await live.submitted(batch_id)
    live.scheduler.run(batch_id, completed=2)
    conserved(await live.until(batch_id), 2)


async def test_repeating_the_call_creates_nothing_more(live: Seam) -> None:
    """Every creation has a request id: its repetition, in company or alone, answers the batch of the first time."""
    file_id = await live.files.put(rows(1))
    wanted = [creation(f"create_{number}", file_id) for number in range(3)]
    many = batches_pb2.CreateBatchesRequest(creations=[batches_pb2.Creation(request=one) for one in wanted])
    first, again = await rpc.call(live.stub.CreateBatches, many), await rpc.call(live.stub.CreateBatches, many)
    ids = [outcome.created.batch.batch_id for outcome in first.outcomes]
    assert len(set(ids)) == 3
    assert [outcome.created.batch.batch_id for outcome in again.outcomes] == ids
    assert (await rpc.call(live.stub.CreateBatch, wanted[1])).batch.batch_id == ids[1]
    page = await rpc.call(live.stub.ListBatches, batches_pb2.ListBatchesRequest(page_size=100))
    assert sorted(batch.batch_id for batch in page.batches) == sorted(ids)
    for batch_id in ids:
        await live.submitted(batch_id)
        live.scheduler.run(batch_id, completed=1)
        conserved(await live.until(batch_id), 1)


async def test_the_gateway_gathers_what_comes_together(live: Seam) -> None:
    """Creations that come at once share a call; each gets its own batch or error, and its own id in the log."""
    file_id = await live.files.put(rows(1))
    peer = Peer("batches", live.settings.address("batches"), batches_pb2_grpc.BatchesServiceStub)
    sizes: list[int] = []
    create, many = Creations(peer), peer.stub.CreateBatches

    def counted(request: batches_pb2.CreateBatchesRequest, **options: Any) -> Any:
        sizes.append(len(request.creations))
        assert sorted(one.http_request_id for one in request.creations) == sorted(
            f"http-{one.request.request_id}" for one in request.creations
        )
        return many(request, **options)

    peer.stub.CreateBatches = counted

    async def one(number: int) -> batches_pb2.CreateBatchResponse:
        log.bind(request_id=f"http-create_{number}")
        window = "24h" if number % 5 else "1 week"
        return await create(creation(f"create_{number}", file_id, completion_window=window))

    answers = await asyncio.gather(*map(one, range(20)), return_exceptions=True)
    await peer.channel.close()
    bad = [number for number, answer in enumerate(answers) if isinstance(answer, errors.InvalidRequest)]
    good = [answer.batch for answer in answers if isinstance(answer, batches_pb2.CreateBatchResponse)]
    assert bad == [0, 5, 10, 15]
    assert len({batch.batch_id for batch in good}) == 16
    assert all(batch.status == Batch.STATUS_VALIDATING for batch in good)
    assert sizes == [20]
    for batch in good:
        await live.submitted(batch.batch_id)
        live.scheduler.run(batch.batch_id, completed=1)
        conserved(await live.until(batch.batch_id), 1)


async def refused(live: Seam, request: _Request) -> errors.HaywainError:
    """Ask alone."""
    try:
        await rpc.call(live.stub.CreateBatch, request)
    except errors.HaywainError as error:
        return error
    raise AssertionError("it was created")

"""The RPCs of batches: what creation takes and refuses, lists, metadata, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from batches_peers import serve_scheduler
from batches_seam import CHAT, Batch, Seam, happens, live, row, rows, seam
from msgspec.structs import replace

from haywain import errors, rpc
from haywain.batches.v1 import batches_pb2
from haywain.files.v1 import files_pb2
from haywain.scheduler.v1 import scheduler_pb2
from services.batches.admission import UNKNOWN_SECONDS

__all__ = ["live", "seam"]

PAIRS = {str(n): "" for n in range(17)}
REFUSED: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("endpoint", {"endpoint": "/v1/nope"}, "invalid_value", "endpoint", "/v1/embeddings"),
    ("no endpoint", {"endpoint": ""}, "invalid_value", "endpoint", "/v1/chat/completions"),
    ("window", {"completion_window": "1h"}, "invalid_value", "completion_window", "'24h'"),
    ("no window", {"completion_window": ""}, "invalid_value", "completion_window", "'24h'"),
    ("no file", {"input_file_id": ""}, "missing_required_parameter", "input_file_id", "input_file_id"),
    (
        "17 pairs",
        {"metadata": PAIRS},
        "object_above_max_properties",
        "metadata",
        "at most 16 pairs, but got 17",
    ),
    (
        "key",
        {"metadata": {"k" * 65: ""}},
        "string_above_max_length",
        "metadata." + "k" * 64,
        "most 64 characters, but this one has 65",
    ),
    (
        "value",
        {"metadata": {"k": "v" * 513}},
        "string_above_max_length",
        "metadata.k",
        "most 512 characters, but this one has 513",
    ),
    ("hot", {"defaults": {"temperature": 2.1}}, "invalid_value", "temperature", "0 to 2, but got 2.1"),
    ("cold", {"defaults": {"temperature": -0.1}}, "invalid_value", "temperature", "-0.1"),
    ("NaN", {"defaults": {"temperature": float("nan")}}, "invalid_value", "temperature", "nan"),
    ("top_p", {"defaults": {"top_p": 1.1}}, "invalid_value", "top_p", "0 to 1, but got 1.1"),
    ("top_k", {"defaults": {"top_k": -1}}, "invalid_value", "top_k", "-1"),
    ("decoding", {"defaults": {"max_decoding_length": 0}}, "invalid_value", "max_decoding_length", "0"),
    ("context", {"defaults": {"max_context_length": 0}}, "invalid_value", "max_context_length", "0"),
    ("embeddings", {"endpoint": "/v1/embeddings", "defaults": {"top_k": 1}}, "invalid_value", "top_k", "/v1/embeddings"),
    ("soon", {"output_expires_after_seconds": 3_599}, "integer_below_min_value", "output_expires_after.seconds", "3599"),
    ("late", {"output_expires_after_seconds": 2_592_001}, "integer_above_max_value", "output_expires_after.seconds", "2592001"),
]


@pytest.mark.parametrize(("fields", "code", "param", "told"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
async def test_what_creation_refuses(live: Seam, fields: dict[str, Any], code: str, param: str, told: str) -> None:
    """The error names parameter, limit and measured value, and nothing is stored or held."""
    file_id = await live.files.put(rows(1))
    with pytest.raises(errors.InvalidRequest) as caught:
        await live.create(**{"input_file_id": file_id} | fields)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert told in caught.value.message
    assert await listed(live) == []
    assert not live.files.holds


async def listed(seam: Seam, **fields: Any) -> list[str]:
    """List a page of ids."""
    answer = await rpc.call(seam.stub.ListBatches, batches_pb2.ListBatchesRequest(**fields))
    return [batch.batch_id for batch in answer.batches]


@pytest.mark.parametrize(
    ("purpose", "status", "told"),
    [
        ("fine-tune", files_pb2.File.STATUS_PROCESSED, "'fine-tune'"),
        ("batch", files_pb2.File.STATUS_DELETED, "deleted"),
        ("batch", files_pb2.File.STATUS_EXPIRED, "expired"),
        ("batch", files_pb2.File.STATUS_ERROR, "can't be used"),
    ],
)
async def test_a_file_that_is_no_input(live: Seam, purpose: str, status: int, told: str) -> None:
    """A file of another purpose, deleted or expired is refused by param input_file_id."""
    file_id = await live.files.put(rows(1), purpose, status)
    with pytest.raises(errors.InvalidRequest, match=told) as caught:
        await live.create(file_id)
    assert caught.value.param == "input_file_id"


async def test_a_missing_file_can_be_refused(seam: Seam) -> None:
    """With check_file_at_create a missing file is an error of the creation."""
    seam.settings = replace(seam.settings, batches=replace(seam.settings.batches, check_file_at_create=True))
    async with seam.peers(), seam.life():
        with pytest.raises(errors.InvalidRequest, match="file-nope") as caught:
            await seam.create("file-nope")
        assert caught.value.param == "input_file_id"
        assert await listed(seam) == []


@pytest.mark.parametrize(("window", "seconds"), [("90s", 90), ("5m", 300), ("24h", 86_400), ("168h", 604_800)])
async def test_any_window(seam: Seam, window: str, seconds: int) -> None:
    """With completion_windows any, seconds, minutes and hours up to 168h are taken."""
    seam.settings = replace(seam.settings, batches=replace(seam.settings.batches, completion_windows="any"))
    async with seam.peers(), seam.life(driving=False):
        batch = await seam.batch_of(rows(1), completion_window=window)
        assert batch.expire_time.ToSeconds() - batch.create_time.ToSeconds() == seconds
        for bad in ("169h", "0s", "1d", "24", "h", "-1h", "1.5h", "٣h", "24h\n", "604801s"):
            with pytest.raises(errors.InvalidRequest):
                await seam.batch_of(rows(1), completion_window=bad)


async def test_one_active_batch_on_a_file(seam: Seam) -> None:
    """With one_active_per_file a second batch is refused until the first has ended."""
    seam.settings = replace(seam.settings, batches=replace(seam.settings.batches, one_active_per_file=True))
    async with seam.peers(), seam.life():
        seam.scheduler.instant = True
        seam.scheduler.models, models = [], seam.scheduler.models
        file_id = await seam.files.put(rows(1))
        first = await seam.create(file_id)
        with pytest.raises(errors.InvalidRequest, match=first.batch_id):
            await seam.create(file_id)
        assert list(seam.files.holds) == [first.batch_id]
        seam.scheduler.models = models
        await seam.until(first.batch_id)
        await seam.create(file_id)


async def test_a_full_intake(live: Seam) -> None:
    """What would overfill the intake is refused before anything is stored, with the numbers; validating rows count."""
    live.scheduler.models = []
    live.scheduler.pool = scheduler_pb2.GetPoolStatusResponse(intake_rows=5, intake_capacity=10)
    await live.batch_of(rows(3))
    with pytest.raises(errors.CapacityExceeded) as caught:
        await live.batch_of(rows(3))
    assert "at most 10 rows: 8 are waiting and this file has 3" in caught.value.message
    assert caught.value.retry_after == UNKNOWN_SECONDS
    assert len(await listed(live)) == len(live.files.holds) == 1
    await live.batch_of(rows(2))


async def test_the_intake_without_scheduler(seam: Seam) -> None:
    """While the scheduler is away, the rows of all batches that haven't ended count, against the capacity set."""
    seam.settings = replace(seam.settings, scheduler=replace(seam.settings.scheduler, intake_rows=4))
    async with seam.peers(scheduler=False), seam.life():
        await seam.batch_of(rows(3))
        with pytest.raises(errors.CapacityExceeded):
            await seam.batch_of(rows(2))
        await seam.batch_of(rows(1))


async def test_the_same_request_twice(live: Seam) -> None:
    """A request_id answers the batch of the first time, one after the other or at once; tenants don't share them."""
    file_id = await live.files.put(rows(1))
    batches = await asyncio.gather(*(live.create(file_id, request_id="r") for _ in range(5)))
    again = await live.create(file_id, request_id="r")
    assert {batch.batch_id for batch in (*batches, again)} == {again.batch_id}
    other = await live.create(file_id, request_id="r", tenant="other")
    assert other.batch_id != again.batch_id
    assert set(live.files.holds) <= {again.batch_id, other.batch_id}


async def test_what_a_batch_says(live: Seam) -> None:
    """The answer has what was asked for, and Get and List say the same."""
    fields = {
        "metadata": {"a": "ü"},
        "priority": Batch.PRIORITY_EXPEDITED,
        "model": "parrot",
        "defaults": {"temperature": 0.0, "top_k": 3},
    }
    batch = await live.batch_of(rows(1), **fields)
    assert (batch.endpoint, batch.completion_window, batch.priority) == (CHAT, "24h", Batch.PRIORITY_EXPEDITED)
    assert (dict(batch.metadata), batch.model) == ({"a": "ü"}, "parrot")
    assert batch.defaults.HasField("temperature")
    assert (batch.defaults.top_k, batch.defaults.HasField("top_p")) == (3, False)
    await live.submitted(batch.batch_id)
    got = await live.get(batch.batch_id)
    answer = await rpc.call(live.stub.ListBatches, batches_pb2.ListBatchesRequest())
    assert list(answer.batches) == [got]


async def test_another_tenant_s_batch(live: Seam) -> None:
    """It is answered like one that never was, whatever is asked."""
    batch = await live.batch_of(rows(1), tenant="me")
    for batch_id, tenant in ((batch.batch_id, "you"), ("batch_nope", "me")):
        calls = [
            (live.stub.GetBatch, batches_pb2.GetBatchRequest),
            (live.stub.UpdateBatch, batches_pb2.UpdateBatchRequest),
            (live.stub.CancelBatch, batches_pb2.CancelBatchRequest),
        ]
        for method, request in calls:
            with pytest.raises(errors.BatchMissing, match=f"No batch found with id '{batch_id}'"):
                await rpc.call(method, request(batch_id=batch_id, tenant=tenant))
    assert await listed(live, tenant="you") == []


async def test_pages(live: Seam) -> None:
    """Newest first, whatever the clock says; ties neither loop nor skip; an unknown cursor is an error."""
    live.scheduler.models = []
    made = [(await live.batch_of(rows(1))).batch_id for _ in range(5)]
    found: list[str] = []
    token = ""
    while True:
        answer = await rpc.call(live.stub.ListBatches, batches_pb2.ListBatchesRequest(page_size=2, page_token=token))
        found += [batch.batch_id for batch in answer.batches]
        token = answer.next_page_token
        if not token:
            break
    assert found == made[::-1]
    assert await listed(live, page_token=made[1]) == [made[0]]
    assert await listed(live, page_token=made[0]) == []
    with pytest.raises(errors.NoSuchCursor):
        await listed(live, page_token="batch_nope")  # noqa: S106 - a cursor
    with pytest.raises(errors.NoSuchCursor):
        await listed(live, page_token=made[0], tenant="other")


async def test_a_page_costs_one_call(live: Seam) -> None:
    """The progress of a whole page is asked for at once."""
    batches = [await live.batch_of(rows(1)) for _ in range(3)]
    for batch in batches:
        await live.submitted(batch.batch_id)
    before = len(live.scheduler.calls.progress)
    await listed(live)
    assert 3 in live.scheduler.calls.progress[before:]


async def test_metadata_is_replaced(live: Seam) -> None:
    """An update replaces all pairs, up to 32, and nothing else, also of a batch that has ended."""
    live.scheduler.instant = True
    batch = await live.batch_of(rows(1), metadata={"a": "1", "b": "2"})
    done = await live.until(batch.batch_id)
    request = batches_pb2.UpdateBatchRequest(batch_id=batch.batch_id, metadata={str(n): "x" for n in range(32)})
    updated = (await rpc.call(live.stub.UpdateBatch, request)).batch
    assert dict(updated.metadata) == dict(request.metadata)
    updated.ClearField("metadata")
    done.ClearField("metadata")
    assert updated == done
    with pytest.raises(errors.InvalidRequest, match="at most 32 pairs, but got 33"):
        await rpc.call(
            live.stub.UpdateBatch,
            batches_pb2.UpdateBatchRequest(batch_id=batch.batch_id, metadata={str(n): "x" for n in range(33)}),
        )


async def test_what_can_not_be_cancelled(live: Seam) -> None:
    """A batch that is finalizing or has ended otherwise is a conflict that names its status."""
    live.scheduler.instant = True
    completed = await live.until((await live.batch_of(rows(1))).batch_id)
    failed = await live.until((await live.batch_of(b"bad")).batch_id)
    for batch, status in ((completed, "completed"), (failed, "failed")):
        with pytest.raises(errors.Conflict, match=f"Cannot cancel a batch with status '{status}'"):
            await live.cancel(batch.batch_id)
    live.scheduler.gate.call = "SealBatch"
    finalizing = await live.batch_of(rows(1))
    await live.until(finalizing.batch_id, Batch.STATUS_FINALIZING)
    with pytest.raises(errors.Conflict, match="'finalizing'"):
        await live.cancel(finalizing.batch_id)


async def test_counts_while_it_runs(seam: Seam) -> None:
    """Progress is live, and stays what was seen last while the scheduler is away."""
    async with seam.peers(scheduler=False), seam.life():
        async with serve_scheduler(seam.settings, seam.scheduler):
            batch = await seam.batch_of(rows(5))
            await seam.submitted(batch.batch_id)
            seam.scheduler.run(batch.batch_id, completed=2, failed=1)
            running = await seam.get(batch.batch_id)
            assert (running.counts.total, running.counts.completed, running.counts.failed) == (5, 2, 1)
            assert running.usage.output_tokens == 14
            assert running.HasField("in_progress_time")
            assert running.progress.queued == 5
            await happens(lambda: seam.servicer.driver.book.started_at(batch.batch_id))
        away = await seam.get(batch.batch_id)
        assert away.counts == running.counts


async def test_deleting_the_input_harms_no_batch(live: Seam) -> None:
    """From its creation on, a batch holds its input."""
    live.scheduler.models, models = [], live.scheduler.models
    file_id = await live.files.put(row("a"))
    batch = await live.create(file_id)
    live.files.files[file_id].status = files_pb2.File.STATUS_DELETED
    assert live.files.holds == {batch.batch_id: file_id}
    live.scheduler.instant, live.scheduler.models = True, models
    assert (await live.until(batch.batch_id)).status == Batch.STATUS_COMPLETED

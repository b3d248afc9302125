"""Creation that waits for validation, or that brings its lines along: what it answers, and what it leaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from batches_peers import serve_scheduler
from batches_seam import Batch, Seam, conserved, happens, key, live, row, rows, seam
from msgspec.structs import replace

from haywain import errors
from haywain.batches.v1 import batches_pb2
from haywain.files.v1 import files_pb2
from haywain.scheduler.v1 import scheduler_pb2

__all__ = ["live", "seam"]

REJECT, FAIL = batches_pb2.CreateBatchRequest.INVALID_ROWS_REJECT, batches_pb2.CreateBatchRequest.INVALID_ROWS_FAIL
BAD = b"bad\n"


async def test_inline_lines_become_a_file(live: Seam) -> None:
    """The batch names a file of purpose batch with exactly those lines, held as long as it runs; its rows run from it."""
    answer = await live.created(inline_input=rows(3))
    batch = answer.batch
    assert (batch.status, batch.counts.total, batch.model) == (Batch.STATUS_VALIDATING, 3, "echo")
    assert (answer.rejections.count, answer.rejections.file_id) == (0, "")
    assert answer.HasField("rejections")
    [adopted] = live.files.adopted.values()
    assert (adopted.file_id, adopted.purpose, adopted.line_count) == (batch.input_file_id, "batch", 3)
    assert adopted.expires_after_seconds == 2_592_000
    assert live.files.holds == {batch.batch_id: batch.input_file_id}
    await live.submitted(batch.batch_id)
    submitted = live.scheduler.batches[batch.batch_id].request
    assert (await live.blobs.local(submitted.input_blob_key)).read_bytes() == rows(3)
    live.scheduler.run(batch.batch_id, completed=3)
    conserved(await live.until(batch.batch_id), 3)
    await live.settled(batch.batch_id)
    assert (await live.blobs.local(submitted.input_blob_key)).exists()


@pytest.mark.parametrize(
    ("fields", "code", "told"),
    [
        ({"inline_input": row("a") * 1_001}, "array_above_max_length", "at most 1000 records, but got 1001"),
        ({"inline_input": b"x" * (4 * 1_048_576 + 1)}, "array_above_max_length", "4194304 bytes, but got 4194305"),
        ({"inline_input": row("a"), "input_file_id": "file-0"}, "invalid_value", "got both"),
        ({"inline_input": row("a"), "wait_seconds": -1.0}, "invalid_value", "at least 0, but got -1"),
        ({"inline_input": row("a"), "pack": True}, "invalid_value", "'pack' means nothing to /v1/chat/completions"),
        ({"inline_input": row("a"), "idempotency": key("")}, "invalid_value", "1 to 512 bytes, but this one has 0"),
        ({"inline_input": row("a"), "idempotency": key("é" * 257)}, "invalid_value", "1 to 512 bytes, but this one has 514"),
    ],
)
async def test_what_is_refused(live: Seam, fields: dict[str, Any], code: str, told: str) -> None:
    """The error has the limit and the measured value, and nothing is stored."""
    with pytest.raises(errors.InvalidRequest, match=told) as caught:
        await live.created(**fields)
    assert caught.value.code == code
    await live.nothing_left()


@pytest.mark.parametrize("inline", [True, False])
async def test_what_validation_rejects_is_told(live: Seam, inline: bool) -> None:
    """An answer that waited has the number of bad lines, the first of them, and a file of them all; the others run."""
    data = row("a") + BAD * 150 + row("a") + row("b")
    source: dict[str, Any] = {"inline_input": data} if inline else {"input_file_id": await live.files.put(data), "wait_seconds": 9}
    answer = await live.created(invalid_rows=REJECT, **source)
    batch, rejections = answer.batch, answer.rejections
    assert (batch.counts.total, batch.counts.completed, batch.counts.failed) == (153, 0, 151)
    assert (rejections.count, len(rejections.records)) == (151, 100)
    assert [record.error.line for record in rejections.records] == list(range(2, 102))
    assert not rejections.records[0].HasField("custom_id")
    adopted = live.files.adopted[f"{batch.batch_id}-rejections"]
    assert (adopted.file_id, adopted.purpose, adopted.line_count) == (rejections.file_id, "batch_rejections", 151)
    lines = [json.loads(line) for line in (await live.blobs.local(adopted.blob_key)).read_bytes().splitlines()]
    assert lines[-1]["custom_id"] == "a"
    assert lines[-1]["error"] == {"code": "duplicate_custom_id", "message": lines[-1]["error"]["message"], "line": 152}
    await live.submitted(batch.batch_id)
    submitted = live.scheduler.batches[batch.batch_id].request
    assert (submitted.row_count, submitted.rejected_count) == (2, 151)
    assert (await live.blobs.local(submitted.rejected_blob_key)).read_bytes().count(b"\n") == 151
    live.scheduler.run(batch.batch_id, completed=2)
    conserved(await live.until(batch.batch_id), 153)
    await live.settled(batch.batch_id)
    assert (await live.blobs.local(adopted.blob_key)).exists()


async def test_rejecting_without_waiting(live: Seam) -> None:
    """Bad lines are counted as failed once validated, and handed to sealing; their blob goes with the batch."""
    batch = await live.batch_of(row("a") + BAD, invalid_rows=REJECT)
    assert batch.counts.total == 0
    await live.submitted(batch.batch_id)
    running = await live.get(batch.batch_id)
    assert (running.counts.total, running.counts.failed) == (2, 1)
    assert f"rejected-{batch.batch_id}" in live.written()
    live.scheduler.run(batch.batch_id, completed=1)
    conserved(await live.until(batch.batch_id), 2)
    await live.settled(batch.batch_id)
    assert not [name for name in live.written() if name.startswith(("rejected", "index"))]


async def test_every_line_rejected(live: Seam) -> None:
    """Without waiting, a batch of nothing but bad lines completes with all of them failed."""
    batch = await live.batch_of(BAD + BAD, invalid_rows=REJECT)
    done = await live.until(batch.batch_id)
    assert done.status == Batch.STATUS_COMPLETED
    assert (done.counts.completed, done.counts.failed, bool(done.output_file_id), bool(done.error_file_id)) == (0, 2, False, True)


@pytest.mark.parametrize(("setting", "asked", "rejects"), [("reject", 0, True), ("fail", 0, False), ("reject", FAIL, False)])
async def test_the_setting_is_for_creations_that_say_nothing(seam: Seam, setting: str, asked: int, rejects: bool) -> None:
    """batches.invalid_rows decides unless the creation does."""
    seam.settings = replace(seam.settings, batches=replace(seam.settings.batches, invalid_rows=setting))
    seam.scheduler.instant = True
    async with seam.peers(), seam.life():
        batch = await seam.until((await seam.batch_of(row("a") + BAD, invalid_rows=asked)).batch_id)
    assert batch.status == (Batch.STATUS_COMPLETED if rejects else Batch.STATUS_FAILED)


async def test_a_setting_without_meaning(seam: Seam) -> None:
    """A word that is none of the two stops the service from starting."""
    seam.settings = replace(seam.settings, batches=replace(seam.settings.batches, invalid_rows="ignore"))
    with pytest.raises(errors.SettingsError, match=r"batches\.invalid_rows 'ignore': expected fail or reject"):
        async with seam.life():
            pass


async def test_a_bad_line_fails_the_batch_at_once(live: Seam) -> None:
    """An answer that waited shows the failed batch with its errors, and the bad lines as rejected."""
    answer = await live.created(input_file_id=await live.files.put(row("a") + BAD), wait_seconds=9)
    batch = answer.batch
    assert (batch.status, batch.error.code, [error.line for error in batch.errors]) == (
        Batch.STATUS_FAILED,
        "validation_failed",
        [2],
    )
    assert (answer.rejections.count, answer.rejections.records[0].error.code) == (1, "invalid_json_line")
    assert live.files.adopted[f"{batch.batch_id}-rejections"].file_id == answer.rejections.file_id
    assert (await live.get(batch.batch_id)).failed_time == batch.failed_time
    await live.settled(batch.batch_id)


@pytest.mark.parametrize("policy", [FAIL, REJECT])
@pytest.mark.parametrize("inline", [True, False])
async def test_no_record_can_run(live: Seam, policy: int, inline: bool) -> None:
    """Then the answer has the bad lines and no batch, and nothing was created."""
    data = BAD + row("a", model="nope")
    source: dict[str, Any] = {"inline_input": data} if inline else {"input_file_id": await live.files.put(data), "wait_seconds": 9}
    answer = await live.created(invalid_rows=policy, request_id="r", **source)
    assert not answer.HasField("batch")
    assert (answer.rejections.count, answer.rejections.file_id) == (2, "")
    assert [record.error.code for record in answer.rejections.records] == ["invalid_json_line", "model_not_found"]
    await live.nothing_left()


async def test_waiting_for_a_file_that_is_not_there(live: Seam) -> None:
    """The answer has the failed batch."""
    answer = await live.created(input_file_id="file-nope", wait_seconds=9)
    assert (answer.batch.status, answer.batch.error.code) == (Batch.STATUS_FAILED, "invalid_request")
    assert answer.HasField("rejections")
    await live.settled(answer.batch.batch_id)


async def test_waiting_has_an_end(live: Seam) -> None:
    """When no engine comes in time, the batch is answered as it is, and validated later."""
    live.scheduler.models, models = [], live.scheduler.models
    answer = await live.created(input_file_id=await live.files.put(rows(2)), wait_seconds=0.3)
    assert answer.batch.status == Batch.STATUS_VALIDATING
    assert not answer.HasField("rejections")
    live.scheduler.models, live.scheduler.instant = models, True
    conserved(await live.until(answer.batch.batch_id), 2)


async def test_waiting_for_an_engine(live: Seam) -> None:
    """An engine that comes while the answer waits is waited for."""
    live.scheduler.models, models = [], live.scheduler.models
    creating = asyncio.create_task(live.created(inline_input=rows(1)))
    await happens(lambda: live.scheduler.calls.models >= 2)
    live.scheduler.models = models
    assert (await creating).batch.counts.total == 1


async def test_a_full_intake_stores_nothing(live: Seam) -> None:
    """A refused creation that had validated already leaves no batch, no blob, no hold, no file."""
    live.scheduler.pool = scheduler_pb2.GetPoolStatusResponse(intake_rows=5, intake_capacity=6)
    for source in ({"inline_input": rows(2) + BAD}, {"input_file_id": await live.files.put(rows(2)), "wait_seconds": 9.0}):
        with pytest.raises(errors.CapacityExceeded, match="at most 6 rows: 5 are waiting"):
            await live.created(invalid_rows=REJECT, **source)
    await live.nothing_left()


async def test_parallel_creations_never_overfill(live: Seam) -> None:
    """Of creations at the same time, as many are taken as fit, whatever kind they are."""
    live.scheduler.pool = scheduler_pb2.GetPoolStatusResponse(intake_capacity=20)
    file_id = await live.files.put(rows(3))
    kinds: list[dict[str, Any]] = [
        {"input_file_id": file_id},
        {"input_file_id": file_id, "wait_seconds": 9},
        {"inline_input": rows(3)},
    ]
    outcomes = await asyncio.gather(*(live.created(**kinds[n % 3]) for n in range(15)), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, errors.CapacityExceeded)]
    assert (len(await live.listed()), len(refused)) == (6, 9)
    assert len(live.files.holds) == 6


async def test_the_scheduler_is_away(seam: Seam) -> None:
    """Inline lines wait for it like for an engine; the answer comes in time, and the batch is kept."""
    async with seam.peers(scheduler=False), seam.life():
        creating = asyncio.create_task(seam.created(inline_input=rows(1)))
        await asyncio.sleep(0)
        async with serve_scheduler(seam.settings, seam.scheduler):
            assert (await creating).batch.counts.total == 1


async def test_the_same_request_when_it_could_not_be_made_any_more(live: Seam) -> None:
    """Repeated after its file was deleted, a request answers its batch; a new one is refused."""
    file_id = await live.files.put(rows(1))
    first = await live.create(file_id, request_id="r")
    live.files.files[file_id].status = files_pb2.File.STATUS_DELETED
    assert (await live.create(file_id, request_id="r")).batch_id == first.batch_id
    with pytest.raises(errors.InvalidRequest):
        await live.create(file_id, request_id="s")
    assert set(live.files.holds) <= {first.batch_id}

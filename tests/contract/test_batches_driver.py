"""The driver of batches, over real gRPC, with files and scheduler played by small servers (batches_peers.py)."""

from __future__ import annotations

import json
import struct

import pytest
from batches_peers import serve_scheduler
from batches_seam import CHAT, Batch, Seam, conserved, happens, live, ordered, row, rows, seam

from haywain import rpc
from haywain.batches.v1 import batches_pb2
from haywain.clock import seconds
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2
from services.batches import turns

__all__ = ["live", "seam"]

Reason = scheduler_pb2.StopBatchRequest


async def test_a_batch_runs_to_completed(live: Seam) -> None:
    """From a file to output and error files, counts, usage and timestamps, with nothing left at the peers."""
    batch = await live.batch_of(rows(5), metadata={"a": "b"})
    assert batch.status == Batch.STATUS_VALIDATING
    await live.submitted(batch.batch_id)
    assert not (await live.get(batch.batch_id)).HasField("in_progress_time")
    live.clock.advance(5)
    live.scheduler.run(batch.batch_id, completed=3, failed=2, started=live.clock.now() - 1)
    done = await live.until(batch.batch_id)
    conserved(done, 5)
    assert done.status == Batch.STATUS_COMPLETED
    assert (done.counts.completed, done.usage.output_tokens, done.model) == (3, 21, "echo")
    assert seconds(done.in_progress_time) == live.clock.now() - 1
    assert not done.HasField("progress")
    await live.settled(batch.batch_id)
    assert live.scheduler.forgotten == {batch.batch_id}
    names = {request.filename: (request.purpose, request.line_count) for request in live.files.adopted.values()}
    assert names == {
        f"batch_output_{batch.batch_id}.jsonl": ("batch_output", 3),
        f"batch_error_{batch.batch_id}.jsonl": ("batch_output", 2),
    }


async def test_what_is_submitted(live: Seam) -> None:
    """The scheduler gets endpoint, lane, expiry, defaults, shards of at most shard_rows, and an index that fits them."""
    data = b"\n" + rows(9)
    defaults = {"temperature": 0.5, "max_decoding_length": 7}
    batch = await live.batch_of(data, priority=Batch.PRIORITY_EXPEDITED, defaults=defaults, model="echo", deterministic=False)
    await live.submitted(batch.batch_id)
    request = live.scheduler.batches[batch.batch_id].request
    assert (request.endpoint, request.lane, request.row_count) == (CHAT, engine_pb2.LANE_EXPEDITED, 9)
    assert request.expire_time.ToSeconds() == int(live.clock.now()) + 24 * 3_600
    assert json.loads(request.body_defaults) == {"temperature": 0.5, "max_tokens": 7, "model": "echo"}
    assert [(shard.model, shard.first_row, shard.row_count) for shard in request.shards] == [
        ("echo", 0, 4),
        ("echo", 4, 4),
        ("echo", 8, 1),
    ]
    index = request.index or (await live.blobs.local(request.index_blob_key)).read_bytes()
    entries = list(struct.iter_unpack("<QII", index))
    lines = data.split(b"\n")
    assert [data[offset : offset + length] for offset, length, _ in entries] == lines[1:10]
    assert [line for _, _, line in entries] == list(range(2, 11))


async def test_bad_lines_fail_the_batch(live: Seam) -> None:
    """Every bad line is listed, counts are zero, there are no files, and the input is let go."""
    batch = await live.batch_of(row("a") + b"not json\n" + row("a"))
    failed = await live.until(batch.batch_id)
    assert failed.status == Batch.STATUS_FAILED
    assert [(error.code, error.line) for error in failed.errors] == [("invalid_json_line", 2), ("duplicate_custom_id", 3)]
    assert failed.error.code == "validation_failed"
    assert "line 2" in failed.error.message
    assert (failed.counts.total, failed.output_file_id, failed.error_file_id) == (0, "", "")
    ordered(failed)
    await live.settled(batch.batch_id)
    assert not live.scheduler.batches
    assert live.scheduler.forgotten == {batch.batch_id}


async def test_a_missing_file_fails_the_batch(live: Seam) -> None:
    """A file that doesn't exist is no error at creation, but fails the batch by name."""
    batch = await live.create("file-nope")
    assert batch.status == Batch.STATUS_VALIDATING
    failed = await live.until(batch.batch_id)
    assert [(error.code, error.param, error.line) for error in failed.errors] == [("invalid_request", "file_id", 0)]
    assert "file-nope" in failed.errors[0].message


@pytest.mark.parametrize("data", [b"\n \n\r\n", b"\xef\xbb\xbf\n"])
async def test_a_file_without_rows_fails_the_batch(live: Seam, data: bytes) -> None:
    """A file of white space only has its own clear error."""
    failed = await live.until((await live.batch_of(data)).batch_id)
    assert [error.code for error in failed.errors] == ["empty_file"]


async def test_no_engine_at_all_is_waited_for(live: Seam) -> None:
    """While no model is served nothing fails as model_not_found; when one comes the batch goes on."""
    models, live.scheduler.models = live.scheduler.models, []
    batch = await live.batch_of(rows(1))
    await happens(lambda: live.scheduler.calls.models >= 2)
    assert (await live.get(batch.batch_id)).status == Batch.STATUS_VALIDATING
    live.scheduler.models = models
    await live.submitted(batch.batch_id)


async def test_a_model_that_is_not_served_fails_the_batch(live: Seam) -> None:
    """When models are served, another one's name is an error of its line."""
    failed = await live.until((await live.batch_of(row("a", model="other"))).batch_id)
    assert [(error.code, error.param) for error in failed.errors] == [("model_not_found", "body.model")]


async def test_an_alias_runs_on_its_model(live: Seam) -> None:
    """Shards carry the model's own id, the batch the id that was asked for."""
    batch = await live.batch_of(row("a", model="parrot") + row("b", model="echo"))
    await live.submitted(batch.batch_id)
    assert {shard.model for shard in live.scheduler.batches[batch.batch_id].request.shards} == {"echo"}
    assert (await live.get(batch.batch_id)).model == "parrot"


@pytest.mark.parametrize("expires", [False, True])
async def test_results_that_are_lost_before_sealing(live: Seam, expires: bool) -> None:
    """Their rows run again while the batch is finalizing; where that would be for too long it ends as expired."""
    batch = await live.batch_of(rows(6))
    await live.submitted(batch.batch_id)
    live.scheduler.lost = True
    live.scheduler.run(batch.batch_id, completed=6)
    await happens(lambda: not live.scheduler.lost)
    assert (await live.get(batch.batch_id)).status == Batch.STATUS_FINALIZING
    if expires:
        live.clock.advance(24 * 3_600)
    else:
        live.scheduler.run(batch.batch_id, completed=1)
    done = await live.until(batch.batch_id)
    conserved(done, 6)
    assert done.status == (Batch.STATUS_EXPIRED if expires else Batch.STATUS_COMPLETED)
    assert done.counts.completed == (5 if expires else 6)


async def test_cancelling_stops_rows_and_keeps_the_finished_ones(live: Seam) -> None:
    """Cancel answers `cancelling` at once; finished rows are kept, each other row gets its error line."""
    batch = await live.batch_of(rows(6))
    await live.submitted(batch.batch_id)
    live.scheduler.slow_stop = True
    live.scheduler.run(batch.batch_id, completed=2)
    asked = await live.cancel(batch.batch_id)
    assert asked.status == Batch.STATUS_CANCELLING
    assert asked.HasField("cancelling_time")
    assert (await live.cancel(batch.batch_id)).status == Batch.STATUS_CANCELLING
    await happens(lambda: live.scheduler.batches[batch.batch_id].reason == Reason.REASON_CANCELLED)
    live.scheduler.end_stopped(batch.batch_id)
    cancelled = await live.until(batch.batch_id)
    assert cancelled.status == Batch.STATUS_CANCELLED
    conserved(cancelled, 6)
    assert cancelled.counts.completed == 2
    assert (await live.cancel(batch.batch_id)).cancelled_time == cancelled.cancelled_time


async def test_cancelled_while_no_engine_is_there(live: Seam) -> None:
    """A batch that waits for any engine is cancelled at once, and each row gets its error line."""
    live.scheduler.models = []
    batch = await live.batch_of(rows(3))
    await happens(lambda: live.scheduler.calls.models)
    await live.cancel(batch.batch_id)
    cancelled = await live.until(batch.batch_id)
    assert cancelled.status == Batch.STATUS_CANCELLED
    conserved(cancelled, 3)
    assert cancelled.counts.failed == 3
    assert not cancelled.HasField("in_progress_time")


async def test_waiting_for_an_engine_is_told(live: Seam) -> None:
    """A batch that waits in validating for an engine says so, alone and in lists, and no longer once there is one."""
    reasons = scheduler_pb2.Progress
    live.scheduler.models, models = [], live.scheduler.models
    batch = await live.batch_of(rows(1))
    await happens(lambda: live.servicer.driver.waits_for_models(batch.batch_id))
    [listed] = (await rpc.call(live.stub.ListBatches, batches_pb2.ListBatchesRequest())).batches
    for told in (await live.get(batch.batch_id), listed):
        assert told.status == Batch.STATUS_VALIDATING
        assert told.progress.waiting_reason == reasons.WAITING_REASON_MODEL_NOT_AVAILABLE
    live.scheduler.models = models
    running = await live.until(batch.batch_id, Batch.STATUS_IN_PROGRESS)
    assert running.progress.waiting_reason == reasons.WAITING_REASON_UNSPECIFIED


async def test_cancelled_while_its_bad_lines_are_found(live: Seam) -> None:
    """A cancelled batch whose lines are bad ends cancelled, with its errors; the scheduler hears of it: it may have a lease."""
    live.scheduler.models = []
    batch = await live.batch_of(b"bad\n")
    await happens(lambda: live.scheduler.calls.models)
    await live.cancel(batch.batch_id)
    cancelled = await live.until(batch.batch_id)
    assert cancelled.status == Batch.STATUS_CANCELLED
    assert [error.code for error in cancelled.errors] == ["invalid_json_line"]
    assert cancelled.counts.total == 0
    await live.settled(batch.batch_id)
    assert live.scheduler.forgotten == {batch.batch_id}


async def test_expiry_keeps_what_is_finished(live: Seam) -> None:
    """At expires_at the rest of the rows are stopped as expired, through finalizing."""
    batch = await live.batch_of(rows(4))
    await live.submitted(batch.batch_id)
    live.scheduler.run(batch.batch_id, completed=1, started=live.clock.now() + 1)
    await happens(lambda: live.servicer.driver.book.started_at(batch.batch_id))
    live.scheduler.slow_stop = True
    live.clock.advance(24 * 3_600 + 1)
    await live.until(batch.batch_id, Batch.STATUS_FINALIZING)
    await happens(lambda: live.scheduler.batches[batch.batch_id].reason == Reason.REASON_EXPIRED)
    live.scheduler.end_stopped(batch.batch_id)
    expired = await live.until(batch.batch_id)
    assert expired.status == Batch.STATUS_EXPIRED
    conserved(expired, 4)
    assert expired.counts.completed == 1


async def test_expiry_while_no_engine_is_there(live: Seam) -> None:
    """A batch that never met an engine expires, and each row gets its error line."""
    live.scheduler.models = []
    batch = await live.batch_of(rows(2))
    await happens(lambda: live.scheduler.calls.models)
    live.clock.advance(24 * 3_600)
    expired = await live.until(batch.batch_id)
    assert expired.status == Batch.STATUS_EXPIRED
    conserved(expired, 2)


async def test_without_hints_polling_is_enough(live: Seam) -> None:
    """A batch whose hint never comes is found by polling."""
    live.scheduler.hints = False
    batch = await live.batch_of(rows(1))
    await live.submitted(batch.batch_id)
    live.scheduler.run(batch.batch_id, completed=1)
    conserved(await live.until(batch.batch_id), 1)


async def test_many_small_batches_share_one_poll(live: Seam) -> None:
    """Waiting batches cost one GetProgress a poll, not one each, and all of them end."""
    batches = [await live.batch_of(rows(1)) for _ in range(40)]
    for batch in batches:
        await live.submitted(batch.batch_id)
    await happens(lambda: max(live.scheduler.calls.progress) == 40)
    for batch in batches:
        live.scheduler.run(batch.batch_id, completed=1)
    for batch in batches:
        conserved(await live.until(batch.batch_id), 1)


async def test_very_many_are_asked_for_in_turns(live: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait, a poll asks for a bounded number, and each comes to its turn."""
    for name in ("ASKED_MOST", "TOGETHER"):
        monkeypatch.setattr(turns, name, 3)
    live.scheduler.hints = False
    batches = [await live.batch_of(rows(1)) for _ in range(7)]
    for batch in batches:
        await live.submitted(batch.batch_id)
        live.scheduler.run(batch.batch_id, completed=1)
    for batch in batches:
        conserved(await live.until(batch.batch_id), 1)
    assert max(live.scheduler.calls.progress) <= 3


async def test_the_scheduler_away_fails_nothing(seam: Seam) -> None:
    """Batches created, read and waiting while the scheduler is away keep their counts and go on when it is back."""
    async with seam.peers(scheduler=False), seam.life():
        async with serve_scheduler(seam.settings, seam.scheduler):
            first = await seam.batch_of(rows(2))
            await seam.submitted(first.batch_id)
            seam.scheduler.run(first.batch_id, completed=1)
            await happens(lambda: seam.servicer.driver.book.started_at(first.batch_id))
        second = await seam.batch_of(rows(2))
        assert (await seam.get(first.batch_id)).counts.completed == 1
        seam.scheduler.run(first.batch_id, completed=1)
        async with serve_scheduler(seam.settings, seam.scheduler):
            conserved(await seam.until(first.batch_id), 2)
            await seam.submitted(second.batch_id)


async def test_a_scheduler_that_lost_a_batch_gets_it_again(live: Seam) -> None:
    """A batch that the scheduler doesn't know any more is submitted again, running or being cancelled."""
    running, stopping = await live.batch_of(rows(2)), await live.batch_of(rows(2))
    for batch in (running, stopping):
        await live.submitted(batch.batch_id)
    live.scheduler.instant = True
    live.scheduler.batches.clear()
    await live.cancel(stopping.batch_id)
    conserved(await live.until(running.batch_id), 2)
    conserved(await live.until(stopping.batch_id), 2)

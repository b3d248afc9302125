"""Batches: the body of a creation, and a batch as clients see it."""

from __future__ import annotations

import json

import pytest

from gateway.batch_object import BatchObject
from gateway.body import decoded
from gateway.creation import creation
from haywain import errors, openai
from haywain.batches.v1 import batches_pb2
from haywain.clock import timestamp
from haywain.scheduler.v1 import scheduler_pb2

FIELDS = """
    id object endpoint model input_file_id completion_window status output_file_id error_file_id errors created_at in_progress_at
    expires_at finalizing_at completed_at failed_at expired_at cancelling_at cancelled_at started_at request_counts usage metadata
    priority waiting_reason error max_decoding_length max_context_length temperature top_p top_k x_progress
"""


def test_every_field_is_there() -> None:
    """A batch has every field of the contract, in its order, null where there is nothing."""
    shown = json.loads(openai.encode(BatchObject.of(batches_pb2.Batch(batch_id="batch_a", create_time=timestamp(3.9)))))
    assert list(shown) == FIELDS.split()
    assert shown["created_at"] == 3
    assert [name for name in shown if shown[name] == ""] == ["endpoint", "completion_window"]  # every real batch has them
    assert shown["usage"] is None
    assert shown["metadata"] is None
    assert shown["request_counts"] == {"total": 0, "completed": 0, "failed": 0}


def test_large_counts_are_integers() -> None:
    """Counts are JSON integers of any size."""
    batch = batches_pb2.Batch(counts=scheduler_pb2.RowCounts(total=2**53 + 1))
    assert b'"total":9007199254740993' in openai.encode(BatchObject.of(batch))


def test_progress() -> None:
    """Progress tells the rows and, while something moves, when it would be over."""
    batch = batches_pb2.Batch(progress=scheduler_pb2.Progress(queued=90, running=10, rows_per_second=4))
    progress = BatchObject.of(batch).x_progress
    assert progress is not None
    assert (progress.queued, progress.running, progress.eta_seconds) == (90, 10, 25)
    batch.progress.rows_per_second = 0
    still = BatchObject.of(batch).x_progress
    assert still is not None
    assert still.eta_seconds is None


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("WAITING_REASON_UNSPECIFIED", None),
        ("WAITING_REASON_QUEUED", "queued"),
        ("WAITING_REASON_MODEL_NOT_AVAILABLE", "model_not_available"),
        ("WAITING_REASON_LEASE_UNAVAILABLE", "lease_unavailable"),
        ("WAITING_REASON_CAPACITY", "capacity"),
    ],
)
def test_waiting_reasons(reason: str, word: str | None) -> None:
    """Each reason has its word."""
    value = scheduler_pb2.Progress.WaitingReason.Value(reason)
    progress = scheduler_pb2.Progress(waiting_reason=value)
    assert BatchObject.of(batches_pb2.Batch(progress=progress)).waiting_reason == word
    validating = BatchObject.of(batches_pb2.Batch(progress=progress, status=batches_pb2.Batch.STATUS_VALIDATING))
    assert (validating.waiting_reason, validating.x_progress) == (word, None)


def test_errors_of_lines() -> None:
    """Bad lines keep their numbers; the whole batch's error has none."""
    whole = batches_pb2.LineError(code="a", message="b")
    line = batches_pb2.LineError(code="c", message="d", param="e", line=7)
    shown = BatchObject.of(batches_pb2.Batch(errors=[whole, line], error=whole))
    assert json.loads(openai.encode(shown.errors)) == {
        "object": "list",
        "data": [
            {"code": "a", "line": None, "message": "b", "param": None},
            {"code": "c", "line": 7, "message": "d", "param": "e"},
        ],
    }
    assert json.loads(openai.encode(shown.error)) == {"code": "a", "message": "b"}


def test_creation_has_defaults() -> None:
    """Only the input file must be named; what is not given stays unset."""
    request = creation({"input_file_id": "file-a"})
    assert (request.endpoint, request.completion_window) == ("/v1/chat/completions", "24h")
    assert request.priority == batches_pb2.Batch.PRIORITY_STANDARD
    assert not request.defaults.HasField("temperature")


def test_creation_takes_all() -> None:
    """Every field arrives where it belongs; a whole number is a number."""
    request = creation(
        {
            "input_file_id": "file-a", "endpoint": "/v1/completions", "completion_window": "24h", "metadata": {"a": "b"},
            "output_expires_after": {"anchor": "created_at", "seconds": 3600}, "model": "m", "priority": "expedited",
            "max_decoding_length": 5, "max_context_length": 6, "temperature": 1, "top_p": 0.5, "top_k": 0, "deterministic": True,
        }
    )  # fmt: skip
    assert request.output_expires_after_seconds == 3600
    assert dict(request.metadata) == {"a": "b"}
    assert (request.defaults.temperature, request.defaults.top_k, request.deterministic) == (1.0, 0, True)


def test_booleans_are_no_numbers() -> None:
    """true is neither an integer nor a decimal number."""
    for field in ("top_k", "temperature"):
        with pytest.raises(errors.InvalidRequest, match="but got a boolean"):
            creation({"input_file_id": "a", field: True})


async def test_large_bodies_are_decoded_off_the_loop() -> None:
    """A body of any size is decoded just as strictly."""
    with pytest.raises(errors.InvalidRequest, match="duplicate"):
        await decoded(b'{"a": 1, "a": 1, "b": "' + b"x" * 300_000 + b'"}')

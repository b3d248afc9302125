"""A batch as clients see it."""

from __future__ import annotations

from typing import Any, Literal, Self

import msgspec

from haywain.batches.v1 import batches_pb2
from haywain.scheduler.v1 import scheduler_pb2

__all__ = ["BatchObject"]

_WAITING = {
    scheduler_pb2.Progress.WAITING_REASON_QUEUED: "queued",
    scheduler_pb2.Progress.WAITING_REASON_MODEL_NOT_AVAILABLE: "model_not_available",
    scheduler_pb2.Progress.WAITING_REASON_LEASE_UNAVAILABLE: "lease_unavailable",
    scheduler_pb2.Progress.WAITING_REASON_CAPACITY: "capacity",
}


class LineErrorObject(msgspec.Struct, kw_only=True):
    """A bad line; `line` is null for the whole batch."""

    code: str
    line: int | None
    message: str
    param: str | None


class ErrorList(msgspec.Struct, kw_only=True):
    """All bad lines."""

    object: Literal["list"] = "list"
    data: list[LineErrorObject]


class BatchError(msgspec.Struct, kw_only=True):
    """Why the whole batch failed."""

    code: str
    message: str


class RequestCounts(msgspec.Struct, kw_only=True):
    """Rows by outcome."""

    total: int
    completed: int
    failed: int


class InputDetails(msgspec.Struct, kw_only=True):
    """Part of `usage`."""

    cached_tokens: int


class OutputDetails(msgspec.Struct, kw_only=True):
    """Part of `usage`."""

    reasoning_tokens: int


class Usage(msgspec.Struct, kw_only=True):
    """Tokens, summed over rows."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ProgressObject(msgspec.Struct, kw_only=True):
    """What runs now; `eta_seconds` is null as long as nothing moves."""

    queued: int
    running: int
    rows_per_second: float
    eta_seconds: int | None
    tokens_per_second: float


class BatchObject(msgspec.Struct, kw_only=True):
    """A batch."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    input_file_id: str | None
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    errors: ErrorList | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    started_at: int | None
    request_counts: RequestCounts
    usage: Usage | None
    metadata: dict[str, str] | None
    priority: str
    waiting_reason: str | None
    error: BatchError | None
    max_decoding_length: int | None
    max_context_length: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    x_progress: ProgressObject | None

    @classmethod
    def of(cls, batch: batches_pb2.Batch) -> Self:
        """Make from a record."""
        return cls(
            id=batch.batch_id,
            endpoint=batch.endpoint,
            model=batch.model or None,
            input_file_id=batch.input_file_id or None,
            completion_window=batch.completion_window,
            status=batches_pb2.Batch.Status.Name(batch.status).removeprefix("STATUS_").lower(),
            output_file_id=batch.output_file_id or None,
            error_file_id=batch.error_file_id or None,
            errors=ErrorList(data=[_line_error(error) for error in batch.errors]) if batch.errors else None,
            created_at=batch.create_time.seconds,
            in_progress_at=_time(batch, "in_progress_time"),
            expires_at=_time(batch, "expire_time"),
            finalizing_at=_time(batch, "finalizing_time"),
            completed_at=_time(batch, "completed_time"),
            failed_at=_time(batch, "failed_time"),
            expired_at=_time(batch, "expired_time"),
            cancelling_at=_time(batch, "cancelling_time"),
            cancelled_at=_time(batch, "cancelled_time"),
            started_at=_time(batch, "in_progress_time"),
            request_counts=RequestCounts(total=batch.counts.total, completed=batch.counts.completed, failed=batch.counts.failed),
            usage=_usage(batch),
            metadata=dict(sorted(batch.metadata.items())) or None,
            priority="expedited" if batch.priority == batches_pb2.Batch.PRIORITY_EXPEDITED else "standard",
            waiting_reason=_WAITING.get(batch.progress.waiting_reason),
            error=BatchError(code=batch.error.code, message=batch.error.message) if batch.HasField("error") else None,
            max_decoding_length=_default(batch, "max_decoding_length"),
            max_context_length=_default(batch, "max_context_length"),
            temperature=_default(batch, "temperature"),
            top_p=_default(batch, "top_p"),
            top_k=_default(batch, "top_k"),
            x_progress=_progress(batch),
        )


def _time(batch: batches_pb2.Batch, name: Any) -> int | None:
    return int(getattr(batch, name).seconds) if batch.HasField(name) else None


def _default(batch: batches_pb2.Batch, name: Any) -> Any:
    return getattr(batch.defaults, name) if batch.defaults.HasField(name) else None


def _line_error(error: batches_pb2.LineError) -> LineErrorObject:
    return LineErrorObject(code=error.code, line=error.line or None, message=error.message, param=error.param or None)


def _usage(batch: batches_pb2.Batch) -> Usage | None:
    if not batch.HasField("usage"):
        return None
    usage = batch.usage
    return Usage(
        input_tokens=usage.input_tokens,
        input_tokens_details=InputDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.output_tokens,
        output_tokens_details=OutputDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.input_tokens + usage.output_tokens,
    )


def _progress(batch: batches_pb2.Batch) -> ProgressObject | None:
    if not batch.HasField("progress") or batch.status == batches_pb2.Batch.STATUS_VALIDATING:
        return None
    now = batch.progress
    left = now.queued + now.running
    return ProgressObject(
        queued=now.queued,
        running=now.running,
        rows_per_second=round(now.rows_per_second, 3),
        eta_seconds=round(left / now.rows_per_second) if now.rows_per_second > 0 else None,
        tokens_per_second=round(now.tokens_per_second, 3),
    )

"""Records as protobuf messages, with the live progress laid over them."""

from __future__ import annotations

from haywain.batches.v1 import batches_pb2
from haywain.clock import seconds, timestamp
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2
from services.batches.faults import Rejects
from services.batches.lifecycle import TERMINAL, Status
from services.batches.progress import counts_of, tokens_of
from services.batches.record import Counts, Fault, Record, Tokens

__all__ = ["batch_message", "rejections_message"]

_Batch = batches_pb2.Batch
_STATUS = {status: getattr(_Batch, f"STATUS_{status.name}") for status in Status}


def batch_message(record: Record, progress: scheduler_pb2.Progress | None) -> _Batch:
    """Make a batch; `progress` None where there is none. Counts are those of whichever is further."""
    if record.status in TERMINAL:
        progress = None
    counts, usage = _furthest(record, progress)
    if record.plan is not None and counts.completed + counts.failed <= record.plan.rejected:
        usage = None  # lines that never were rows use nothing
    started = record.in_progress_at
    if started is None and progress is not None and record.status is Status.IN_PROGRESS:
        live = seconds(progress.start_time)
        started = max(live, record.created_at) if live is not None else None
    return _Batch(
        batch_id=record.batch_id,
        tenant=record.tenant,
        endpoint=record.endpoint,
        model=record.model or record.default_model,
        input_file_id=record.input_file_id,
        completion_window=record.completion_window,
        status=_STATUS[record.status],
        output_file_id=record.output_file_id,
        error_file_id=record.error_file_id,
        errors=[_fault(fault) for fault in record.errors or ()],
        error=None if record.error is None else _fault(record.error),
        create_time=timestamp(record.created_at),
        in_progress_time=timestamp(started),
        expire_time=timestamp(record.expires_at),
        finalizing_time=timestamp(record.finalizing_at),
        completed_time=timestamp(record.completed_at),
        failed_time=timestamp(record.failed_at),
        expired_time=timestamp(record.expired_at),
        cancelling_time=timestamp(record.cancelling_at),
        cancelled_time=timestamp(record.cancelled_at),
        counts=scheduler_pb2.RowCounts(total=counts.total, completed=counts.completed, failed=counts.failed),
        usage=None if usage is None else _usage(usage),
        metadata=record.metadata,
        priority=_Batch.PRIORITY_EXPEDITED if record.expedited else _Batch.PRIORITY_STANDARD,
        defaults=_defaults(record),
        progress=progress,
        rejected_count=0 if record.plan is None else record.plan.rejected,
    )


def rejections_message(rejects: Rejects, file_id: str) -> batches_pb2.Rejections:
    """Make what a creation that waited says of bad records."""
    records = [batches_pb2.RejectedRecord(error=_fault(one.fault), custom_id=one.custom_id) for one in rejects.first]
    return batches_pb2.Rejections(count=rejects.count, records=records, file_id=file_id)


def _furthest(record: Record, progress: scheduler_pb2.Progress | None) -> tuple[Counts, Tokens | None]:
    kept = record.counts
    if progress is None or progress.counts.completed + progress.counts.failed < kept.completed + kept.failed:
        return kept, record.usage
    live = counts_of(progress.counts)
    return Counts(kept.total or live.total, live.completed, live.failed), tokens_of(progress)


def _usage(usage: Tokens) -> engine_pb2.Usage:
    return engine_pb2.Usage(
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def _fault(fault: Fault) -> batches_pb2.LineError:
    return batches_pb2.LineError(code=fault.code, message=fault.message, param=fault.param, line=fault.line)


def _defaults(record: Record) -> batches_pb2.SamplingDefaults:
    defaults = record.defaults
    return batches_pb2.SamplingDefaults(
        max_decoding_length=defaults.max_decoding_length,
        max_context_length=defaults.max_context_length,
        temperature=defaults.temperature,
        top_p=defaults.top_p,
        top_k=defaults.top_k,
    )

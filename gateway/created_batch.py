"""The answer to a creation: the batch, and what validation found when it was waited for."""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.batch_object import BatchObject
from haywain.batches.v1 import batches_pb2

__all__ = ["CreatedBatch", "NoValidRecords"]


class RejectedRecord(msgspec.Struct, kw_only=True):
    """A record that can't run; `line` counts from 1, `custom_id` is null where there is none."""

    line: int
    custom_id: str | None
    code: str
    message: str
    param: str | None


class CreatedBatch(BatchObject, kw_only=True):
    """A new batch. What begins with `rejected` is null unless the answer waited for validation."""

    rejected_count: int | None = None
    rejected_records: list[RejectedRecord] | None = None
    rejected_records_file_id: str | None = None

    @classmethod
    def created(cls, answer: batches_pb2.CreateBatchResponse) -> CreatedBatch:
        """Make from the service's answer; the same from the same, byte for byte."""
        made = cls.of(answer.batch)
        if answer.HasField("rejections"):
            made.rejected_count = answer.rejections.count
            made.rejected_records = _records(answer.rejections)
            made.rejected_records_file_id = answer.rejections.file_id or None
        return made


class Refusal(msgspec.Struct, kw_only=True):
    """Why nothing was created."""

    message: str
    type: Literal["invalid_request_error"] = "invalid_request_error"
    param: str | None = None
    code: Literal["no_valid_records"] = "no_valid_records"
    rejected_count: int
    rejected_records: list[RejectedRecord]
    rejected_records_file_id: str | None = None


class NoValidRecords(msgspec.Struct, kw_only=True):
    """The answer when none of a batch's records can run: 400, and nothing was created."""

    error: Refusal

    @classmethod
    def of(cls, answer: batches_pb2.CreateBatchResponse) -> NoValidRecords:
        """Make from the service's answer."""
        rejections = answer.rejections
        count = rejections.count
        found = f"{count} {'is' if count == 1 else 'are'} not valid" if count else "there are none"
        message = f"None of the batch's records can run: {found}."
        if rejections.records:
            first = rejections.records[0].error
            message += f" The first is line {first.line}: {first.message}"
        return cls(error=Refusal(message=message, rejected_count=count, rejected_records=_records(rejections)))


def _records(rejections: batches_pb2.Rejections) -> list[RejectedRecord]:
    return [
        RejectedRecord(
            line=record.error.line,
            custom_id=record.custom_id if record.HasField("custom_id") else None,
            code=record.error.code,
            message=record.error.message,
            param=record.error.param or None,
        )
        for record in rejections.records
    ]

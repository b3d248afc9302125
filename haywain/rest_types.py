"""The REST API's objects as typed dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

__all__ = ["Batch", "BatchFields", "CreatedBatch", "File", "RejectedRecord"]


class File(TypedDict):
    """A file, as the mesh tells it."""

    id: str
    object: str
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: str
    status_details: str | None
    checksum: str | None


class Batch(TypedDict):
    """A batch, as the mesh tells it."""

    id: str
    object: str
    endpoint: str
    model: str | None
    input_file_id: str | None
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    errors: dict[str, Any] | None
    error: dict[str, Any] | None
    created_at: int
    in_progress_at: int | None
    started_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: dict[str, int]
    usage: dict[str, Any] | None
    metadata: dict[str, str] | None
    priority: str | None
    waiting_reason: str | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    max_decoding_length: int | None
    max_context_length: int | None
    x_progress: dict[str, Any] | None


class RejectedRecord(TypedDict):
    """An input line that can't run."""

    line: int
    """from 1"""
    custom_id: str | None
    code: str
    message: str
    param: str | None


class CreatedBatch(Batch):
    """A new batch. What begins with `rejected` is None unless the answer waited for validation."""

    rejected_count: int | None
    rejected_records: list[RejectedRecord] | None
    """the first hundred"""
    rejected_records_file_id: str | None
    """a file with an error line for each"""


class BatchFields(TypedDict, total=False):
    """What a batch may say for all of its rows; a row's own body goes first. None is the mesh's default."""

    endpoint: str
    """/v1/chat/completions unless told otherwise"""
    completion_window: str
    """24h"""
    metadata: Mapping[str, str] | None
    model: str | None
    """of rows that name none"""
    priority: str | None
    """standard, expedited"""
    temperature: float | None
    top_p: float | None
    top_k: int | None
    max_decoding_length: int | None
    """tokens a row may generate"""
    max_context_length: int | None
    """tokens of a row's prompt and answer together"""
    output_expires_after: Mapping[str, Any] | None
    invalid_rows: str | None
    """fail: the whole batch; reject: only those rows"""
    deterministic: bool | None
    pack: bool | None

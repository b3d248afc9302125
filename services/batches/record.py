"""A batch as it is kept: one frozen struct a row of SQL, with its JSON columns decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec

from services.batches.lifecycle import Status

__all__ = ["Counts", "Defaults", "Fault", "OwnFile", "Plan", "Record", "Rejected", "Shard", "Tokens", "from_row", "to_row"]


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with a line, or with the batch as a whole (`line` 0). `param` is empty for none."""

    code: str
    message: str
    param: str = ""
    line: int = 0


class Rejected(msgspec.Struct, frozen=True):
    """A bad line, with its custom_id if it has one that could be one."""

    fault: Fault
    custom_id: str | None


class Shard(msgspec.Struct, frozen=True):
    """A run of index entries of one model."""

    model: str
    first_row: int
    row_count: int


class Plan(msgspec.Struct, frozen=True):
    """What validation found: kept before the scheduler hears of it, so that a restart submits the same and nothing else."""

    row_count: int
    shards: list[Shard]
    rejected: int = 0
    """Lines that run no more: they are in the blob of error lines."""
    index: bytes = b""
    """All of it, where rows are few; then there is no blob of it."""


class Defaults(msgspec.Struct, frozen=True):
    """Sampling that rows inherit; None where the batch says nothing."""

    max_decoding_length: int | None = None
    max_context_length: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    def members(self) -> dict[str, tuple[str, Any]]:
        """Map the name in a row's body to the name in the batch and the value, for what is set."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        return {_IN_BODY.get(name, name): (name, value) for name, value in given.items() if value is not None}


_IN_BODY = {"max_decoding_length": "max_tokens"}


class OwnFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a batch brings with it: a blob, and the id and record it gets right after the batch is created."""

    kind: str
    """input, rejections"""
    file_id: str
    blob_key: str
    purpose: str
    size_bytes: int
    line_count: int
    sha256: str
    expires_after_seconds: int


class Counts(msgspec.Struct, frozen=True):
    """Rows by outcome."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Tokens(msgspec.Struct, frozen=True):
    """Tokens that the rows used."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. Times in Unix seconds; ids are empty and times None where there is nothing yet.

    `default_model` is what rows without a model run; `model` is what the first row asked for. `outcome` is what `finalizing` ends
    in. `submitted`: the scheduler has it. `settled`: the scheduler and files keep nothing for it any more. `adopted`: files has its
    `own_files`. `rows_left` is how many rows may still come, for the intake. `held_until`: nothing of it has begun, and nothing
    does before then unless its client was answered (held.py); 0 once something has.
    """

    batch_id: str
    tenant: str
    request_id: str | None = None
    endpoint: str
    default_model: str = ""
    model: str = ""
    input_file_id: str
    input_blob_key: str = ""
    line_count: int = 0
    completion_window: str
    expedited: bool = False
    deterministic: bool = False
    defaults: Defaults = Defaults()
    metadata: dict[str, str] = {}
    output_expires_after_seconds: int = 0
    status: Status = Status.VALIDATING
    outcome: Status | None = None
    plan: Plan | None = None
    submitted: bool = False
    settled: bool = False
    validation_losses: int = 0
    lease_owner: str = ""
    lease_until: float = 0.0
    errors: list[Fault] | None = None
    error: Fault | None = None
    counts: Counts = Counts()
    usage: Tokens | None = None
    output_file_id: str = ""
    error_file_id: str = ""
    created_at: float
    expires_at: float
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelling_at: float | None = None
    cancelled_at: float | None = None
    reject: bool = False
    pack: bool = False
    own_files: list[OwnFile] | None = None
    adopted: bool = True
    rows_left: int = 0
    held_until: float = 0.0

    def own(self, kind: str) -> OwnFile | None:
        """Find the file of a kind that the batch brings with it."""
        return next((file for file in self.own_files or () if file.kind == kind), None)


_BOOLEANS = ("expedited", "deterministic", "submitted", "settled", "reject", "pack", "adopted")
_TYPES = get_type_hints(Record)
_JSON = {
    name: msgspec.json.Decoder(_TYPES[name]).decode
    for name in ("defaults", "metadata", "plan", "errors", "error", "counts", "usage", "own_files")
}
_encode = msgspec.json.Encoder().encode


def column(name: str, value: Any) -> Any:
    """Turn a field's value into its column's: JSON as text, booleans as integers."""
    if value is None:
        return None
    if name in _JSON:
        return _encode(value).decode()
    return int(value) if name in _BOOLEANS else value


def to_row(record: Record) -> dict[str, Any]:
    """Turn a record into parameters, one a column."""
    row = msgspec.structs.asdict(record)
    return row | {name: column(name, row[name]) for name in (*_JSON, *_BOOLEANS)}


def from_row(row: Mapping[str, Any]) -> Record:
    """Turn a row of SQL into a record. What SQL has is what `to_row` made: only what it changed is changed back."""
    fields = dict(row)
    for name, decode in _JSON.items():
        if fields[name] is not None:
            fields[name] = decode(fields[name])
    for name in _BOOLEANS:
        fields[name] = bool(fields[name])
    fields["status"] = Status(fields["status"])
    fields["outcome"] = fields["outcome"] and Status(fields["outcome"])
    return Record(**fields)

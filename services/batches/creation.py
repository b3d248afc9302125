"""What a batch must be to be created: the checks of REST.md §3 on the request and on the input file's record."""

from __future__ import annotations

import re
from collections.abc import Mapping

from haywain import errors, ids
from haywain.batches.v1 import batches_pb2
from haywain.files.v1 import files_pb2
from haywain.openai import ENDPOINTS
from haywain.settings import BatchesSettings
from services.batches.held import HELD_SECONDS
from services.batches.record import Defaults, Record

__all__ = ["CREATE_PAIRS", "UPDATE_PAIRS", "check_file", "check_key", "check_metadata", "gone", "new_record", "patience"]

CREATE_PAIRS = 16
UPDATE_PAIRS = 32
KEY_LENGTH = 64
VALUE_LENGTH = 512
MAX_WINDOW_SECONDS = 168 * 3_600
MIN_EXPIRY_SECONDS = 3_600
MAX_EXPIRY_SECONDS = 2_592_000
MAX_WAIT_SECONDS = 30.0
INLINE_LINES, INLINE_BYTES = 1_000, 4 * 1_048_576
KEY_BYTES = 512
_Request = batches_pb2.CreateBatchRequest
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([smh])", re.ASCII)
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600}
_RANGES: dict[str, tuple[float, float]] = {
    "max_decoding_length": (1, 2**31 - 1),
    "max_context_length": (1, 2**31 - 1),
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, 2**31 - 1),
}


def new_record(request: batches_pb2.CreateBatchRequest, settings: BatchesSettings, now: float) -> Record:
    """Check a request and make the record of its batch. Raises InvalidRequest that names the parameter."""
    if request.inline_input:
        _check_inline(request)
    elif not request.input_file_id:
        message = "Missing required parameter: 'input_file_id'."
        raise errors.InvalidRequest(message, code="missing_required_parameter", param="input_file_id")
    if request.endpoint not in ENDPOINTS:
        raise _unsupported(request.endpoint, ENDPOINTS, "endpoint")
    window = _window_seconds(request.completion_window, settings.completion_windows)
    check_metadata(request.metadata, CREATE_PAIRS)
    _check_expiry(request.output_expires_after_seconds)
    if request.pack and request.endpoint != "/v1/embeddings":
        raise errors.InvalidRequest(f"'pack' means nothing to {request.endpoint}.", param="pack")
    by_request = {_Request.INVALID_ROWS_FAIL: False, _Request.INVALID_ROWS_REJECT: True}
    return Record(
        batch_id=ids.new("batch_"),
        tenant=request.tenant or "default",
        request_id=request.request_id or None,
        endpoint=request.endpoint,
        default_model=request.model,
        input_file_id=request.input_file_id,
        completion_window=request.completion_window,
        expedited=request.priority == batches_pb2.Batch.PRIORITY_EXPEDITED,
        deterministic=request.deterministic,
        reject=by_request.get(request.invalid_rows, settings.invalid_rows == "reject"),
        pack=request.pack,
        defaults=_defaults(request),
        metadata=dict(request.metadata),
        output_expires_after_seconds=request.output_expires_after_seconds,
        created_at=now,
        expires_at=now + window,
        held_until=now + HELD_SECONDS if request.held and request.request_id else 0.0,
    )


def patience(request: batches_pb2.CreateBatchRequest) -> float:
    """Tell how many seconds the answer may wait for validation. Raises InvalidRequest."""
    if not request.wait_seconds >= 0:
        raise errors.InvalidRequest(f"wait_seconds must be at least 0, but got {request.wait_seconds}.", param="wait_seconds")
    return MAX_WAIT_SECONDS if request.inline_input else min(request.wait_seconds, MAX_WAIT_SECONDS)


def check_key(key: str) -> None:
    """Refuse what can't be an idempotency key. Raises InvalidRequest."""
    if not 1 <= (size := len(key.encode())) <= KEY_BYTES:
        message = f"An idempotency key has 1 to {KEY_BYTES} bytes, but this one has {size}."
        raise errors.InvalidRequest(message, param="Idempotency-Key")


def check_file(file: files_pb2.File) -> None:
    """Refuse a file that can't be a batch's input. Raises InvalidRequest."""
    state = files_pb2.File.Status
    if file.status in (state.STATUS_DELETED, state.STATUS_EXPIRED):
        raise gone(file.file_id, errors.FileGone(code="file_expired" if file.status == state.STATUS_EXPIRED else ""))
    if file.status == state.STATUS_ERROR:
        raise errors.InvalidRequest(f"The file '{file.file_id}' can't be used: {file.status_details}.", param="input_file_id")
    if file.purpose != "batch":
        message = f"The file '{file.file_id}' has the purpose '{file.purpose}'; a batch's input must have the purpose 'batch'."
        raise errors.InvalidRequest(message, param="input_file_id")


def gone(file_id: str, error: errors.FileGone) -> errors.InvalidRequest:
    """Make the error of an input whose bytes are gone."""
    what = "has expired" if error.code == "file_expired" else "was deleted"
    return errors.InvalidRequest(f"The file '{file_id}' {what}.", param="input_file_id")


def check_metadata(metadata: Mapping[str, str], pairs: int) -> None:
    """Refuse metadata over the limits. Raises InvalidRequest with the limit and the measured value."""
    if len(metadata) > pairs:
        message = f"Invalid 'metadata': expected at most {pairs} pairs, but got {len(metadata)}."
        raise errors.InvalidRequest(message, code="object_above_max_properties", param="metadata")
    for key, value in metadata.items():
        for text, limit, what in ((key, KEY_LENGTH, "keys"), (value, VALUE_LENGTH, "values")):
            if len(text) > limit:
                param = f"metadata.{key[:KEY_LENGTH]}"
                message = f"Invalid '{param}': {what} have at most {limit} characters, but this one has {len(text)}."
                raise errors.InvalidRequest(message, code="string_above_max_length", param=param)


def _check_inline(request: batches_pb2.CreateBatchRequest) -> None:
    if request.input_file_id:
        message = "Expected one of 'input_file_id' and 'requests', but got both."
        raise errors.InvalidRequest(message, param="requests")
    size, lines = len(request.inline_input), request.inline_input.rstrip(b"\n").count(b"\n") + 1
    for measured, limit, what in ((lines, INLINE_LINES, "records"), (size, INLINE_BYTES, "bytes")):
        if measured > limit:
            message = f"Invalid 'requests': expected at most {limit} {what}, but got {measured}. Upload a file instead."
            raise errors.InvalidRequest(message, code="array_above_max_length", param="requests")


def _window_seconds(text: str, allowed: str) -> int:
    if allowed != "any":
        if text != "24h":
            raise _unsupported(text, ("24h",), "completion_window")
        return 24 * 3_600
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _UNIT_SECONDS[match[2]] if match else 0
    if not 0 < seconds <= MAX_WINDOW_SECONDS:
        message = f"Invalid value: '{text[:64]}'. Expected seconds, minutes or hours such as '90s', '30m' or '24h', up to '168h'."
        raise errors.InvalidRequest(message, param="completion_window")
    return seconds


def _unsupported(value: str, supported: tuple[str, ...], param: str) -> errors.InvalidRequest:
    named = ", ".join(f"'{one}'" for one in supported)
    return errors.InvalidRequest(f"Invalid value: '{value[:128]}'. Supported values are: {named}.", param=param)


def _defaults(request: batches_pb2.CreateBatchRequest) -> Defaults:
    given = {name: getattr(request.defaults, name) for name in _RANGES if request.defaults.HasField(name)}
    for name, value in given.items():
        low, high = _RANGES[name]
        if not low <= value <= high:  # NaN is in no range
            message = f"Invalid value for '{name}': expected {low} to {high}, but got {value}."
            raise errors.InvalidRequest(message, param=name)
        if request.endpoint == "/v1/embeddings":
            raise errors.InvalidRequest(f"'{name}' means nothing to {request.endpoint}.", param=name)
    return Defaults(**given)


def _check_expiry(seconds: int) -> None:
    if seconds == 0 or MIN_EXPIRY_SECONDS <= seconds <= MAX_EXPIRY_SECONDS:
        return
    code = "integer_below_min_value" if seconds < MIN_EXPIRY_SECONDS else "integer_above_max_value"
    message = f"Invalid 'output_expires_after.seconds': expected {MIN_EXPIRY_SECONDS} to {MAX_EXPIRY_SECONDS}, but got {seconds}."
    raise errors.InvalidRequest(message, code=code, param="output_expires_after.seconds")

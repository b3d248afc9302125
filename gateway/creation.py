"""What a client sends to create a batch, as a request to the batches service."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.answer import TENANT, Context, header
from gateway.body import Body
from haywain import errors
from haywain.batches.v1 import batches_pb2

__all__ = ["MAX_WAIT_SECONDS", "creation", "wait_seconds"]

MAX_WAIT_SECONDS = 30
MAX_RECORDS = 1_000
_Request = batches_pb2.CreateBatchRequest
_PRIORITIES = {"standard": batches_pb2.Batch.PRIORITY_STANDARD, "expedited": batches_pb2.Batch.PRIORITY_EXPEDITED}
_INVALID_ROWS = {"": _Request.INVALID_ROWS_UNSPECIFIED, "fail": _Request.INVALID_ROWS_FAIL, "reject": _Request.INVALID_ROWS_REJECT}
_WAIT = re.compile(r'wait\s*=\s*"?0*([0-9]+)"?')


class _Inline(msgspec.Struct):
    requests: list[msgspec.Raw]


_inline = msgspec.json.Decoder(_Inline)


def creation(members: dict[str, Any], data: bytes = b"") -> _Request:
    """Translate the body of a creation. Raises InvalidRequest for a missing, unknown or mistyped field.

    `data` is the body that `members` were decoded from: inline records keep its very bytes. Words and limits that native callers
    meet as well are checked by the batches service.
    """
    body = Body(members)
    records = body.array("requests")
    request = _Request(
        tenant=TENANT,
        input_file_id=_input_file(body, inline=records is not None),
        inline_input=b"" if records is None else _lines(records, data),
        endpoint=body.string("endpoint", "/v1/chat/completions"),
        completion_window=body.string("completion_window", "24h"),
        metadata=body.strings("metadata"),
        priority=_PRIORITIES[body.word("priority", "standard", tuple(_PRIORITIES))],
        model=body.string("model"),
        deterministic=body.boolean("deterministic"),
        pack=body.boolean("pack"),
        invalid_rows=_INVALID_ROWS[body.word("invalid_rows", "", ("fail", "reject"))],
        defaults=batches_pb2.SamplingDefaults(
            max_decoding_length=body.integer("max_decoding_length"),
            max_context_length=body.integer("max_context_length"),
            temperature=body.decimal("temperature"),
            top_p=body.decimal("top_p"),
            top_k=body.integer("top_k"),
        ),
        output_expires_after_seconds=_expiry(body.member("output_expires_after")),
    )
    body.finish()
    return request


def wait_seconds(context: Context) -> int:
    """Read `Prefer: wait=N`; more than 30 is as good as 30, and what can't be understood is no preference (RFC 7240)."""
    for preference in re.split("[,;]", header(context, "prefer")):
        if found := _WAIT.fullmatch(preference.strip().lower()):
            return min(int(found[1][:9]), MAX_WAIT_SECONDS)
    return 0


def _input_file(body: Body, *, inline: bool) -> str:
    if not inline:
        return body.required("input_file_id")
    if body.given("input_file_id"):
        message = "Expected either 'input_file_id' or 'requests', but got both."
        raise errors.InvalidRequest(message, param="requests")
    return ""


def _lines(records: list[Any], data: bytes) -> bytes:
    """Write inline records as lines, their text as it came but for white space."""
    if not records:
        message = "Invalid 'requests': empty array. Expected an array with minimum length 1, but got an empty array instead."
        raise errors.InvalidRequest(message, code="empty_array", param="requests")
    if len(records) > MAX_RECORDS:
        message = (
            f"Invalid 'requests': array too long. Expected an array with maximum length {MAX_RECORDS}, but got an array with "
            f"length {len(records)} instead. Upload a file instead."
        )
        raise errors.InvalidRequest(message, code="array_above_max_length", param="requests")
    return b"".join(msgspec.json.format(bytes(record), indent=-1) + b"\n" for record in _inline.decode(data).requests)


def _expiry(expiry: Body | None) -> int:
    if expiry is None:
        return 0
    expiry.word("anchor", "created_at", ("created_at",))
    seconds = expiry.integer("seconds", 1)
    if seconds is None:
        param = "output_expires_after.seconds"
        raise errors.InvalidRequest(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)
    expiry.finish()
    return seconds

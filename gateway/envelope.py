"""Errors as HTTP tells them: the only table from our errors to statuses, types and headers.

The gateway answers over gRPC; the status, the envelope and the headers travel as trailing metadata, and Envoy's rest_shim.lua makes
the HTTP response of them. Plain answers set a status other than 200 by `x-http-status` in their initial metadata.
"""

from __future__ import annotations

import math

import grpc

from haywain import errors, openai

__all__ = ["BROKEN_STREAM", "PreconditionFailed", "RangeNotSatisfiable", "envelope", "http_status", "metadata"]

BROKEN_STREAM = b"\x7a\x02\x0a\x05"
"""An answer whose field 15, `http_body`, ends within its first member: Envoy can't parse it, and cuts the HTTP response instead of
ending it as if it were whole. (Bytes that are no field at all wouldn't do: Envoy looks for field 15 only, and skips the rest.)"""

_TABLE: dict[grpc.StatusCode, tuple[int, str]] = {
    grpc.StatusCode.INVALID_ARGUMENT: (400, "invalid_request_error"),
    grpc.StatusCode.UNAUTHENTICATED: (401, "invalid_request_error"),
    grpc.StatusCode.PERMISSION_DENIED: (403, "permission_error"),
    grpc.StatusCode.NOT_FOUND: (404, "invalid_request_error"),
    grpc.StatusCode.FAILED_PRECONDITION: (409, "invalid_request_error"),
    grpc.StatusCode.ABORTED: (409, "invalid_request_error"),
    grpc.StatusCode.OUT_OF_RANGE: (413, "invalid_request_error"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (429, "rate_limit_error"),
    grpc.StatusCode.INTERNAL: (500, "server_error"),
    grpc.StatusCode.UNAVAILABLE: (503, "server_error"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (504, "server_error"),
}
_INTERNAL = "The server had an error while processing your request."
_MESSAGE_BYTES = 2_000
"""as JSON; headers are not for novels"""


_SDK_WAITS_SECONDS = 60.0
"""OpenAI's clients wait so long because of `retry-after`; of what lasts longer they are told to ask no more."""


class PreconditionFailed(errors.InvalidRequest):
    """The content isn't the version that the request is for."""

    default_code = "precondition_failed"


class RangeNotSatisfiable(errors.InvalidRequest):
    """The requested range lies outside the file."""

    default_code = "range_not_satisfiable"

    def __init__(self, message: str = "", *, size: int = 0, code: str = "", param: str = "", retry_after: float = 0.0) -> None:
        """`size` is the file's, in bytes."""
        super().__init__(message, code=code, param=param, retry_after=retry_after)
        self.size = size


_SPECIAL = {PreconditionFailed: 412, RangeNotSatisfiable: 416, errors.KeyReused: 422}


def http_status(error: errors.HaywainError) -> int:
    """Tell the HTTP status of an error."""
    for kind, status in _SPECIAL.items():
        if isinstance(error, kind):
            return status
    return _TABLE.get(type(error).status, (500, ""))[0]


def envelope(error: errors.HaywainError) -> bytes:
    """Encode `{"error":{"message","type","param","code"}}`; what went wrong inside of us is not told."""
    status, kind = _TABLE.get(type(error).status, (500, "server_error"))
    message = _INTERNAL if status == 500 else error.message
    # At worst one character becomes twelve (a surrogate pair, escaped).
    while len(openai.encode(message)) > _MESSAGE_BYTES:
        message = message[: max(len(message) * 3 // 4, 1)]
    return openai.error_body(message, code=error.code, param=error.param[:200], kind=kind)


def metadata(error: errors.HaywainError) -> tuple[tuple[str, str | bytes], ...]:
    """Make the trailing metadata of a failed call."""
    status = http_status(error)
    # Of ASCII only DEL is neither escaped by JSON nor allowed in a header.
    body = envelope(error).decode("ascii").replace("\x7f", "\\u007f")
    pairs = [("x-http-status", str(status)), ("x-haywain-error", body)]
    if error.retry_after or status in {429, 503}:
        pairs.append(("retry-after", str(max(math.ceil(error.retry_after), 1))))
    if error.undone:
        pairs.append(("x-haywain-undone", "true"))
    waits = isinstance(error, errors.LeaseUnavailable) and error.retry_after <= _SDK_WAITS_SECONDS
    if isinstance(error, errors.Conflict | errors.LeaseUnavailable) and not waits:
        pairs.append(("x-should-retry", "false"))
    if isinstance(error, RangeNotSatisfiable):
        pairs.append(("content-range", f"bytes */{error.size}"))
    return tuple(pairs)

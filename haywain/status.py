"""An error on the wire: a gRPC status with `ErrorInfo`, and back into its class."""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from haywain import errors

__all__ = ["Metadata", "details", "error_of", "packed", "short", "unpacked"]

_DETAILS = "grpc-status-details-bin"
_DOMAIN = "haywain"
_MESSAGE_BYTES = 2_000
"""gRPC metadata has a soft limit of 8 KiB, a hard one of 16 KiB, and the message travels twice, once percent-encoded."""

Metadata = tuple[tuple[str, str | bytes], ...]


def short(text: str, size: int = _MESSAGE_BYTES) -> str:
    """Cut a text so that it takes at most so many bytes."""
    return text.encode(errors="replace")[:size].decode(errors="ignore")


def details(error: errors.HaywainError) -> Metadata:
    """Make the trailing metadata that tells an error's class and facts."""
    return ((_DETAILS, packed(error)),)


def packed(error: errors.HaywainError) -> bytes:
    """Write an error, with its class and facts, as a google.rpc.Status."""
    info = error_details_pb2.ErrorInfo(
        reason=error.reason(),
        domain=_DOMAIN,
        metadata={"code": short(error.code, 200), "param": short(error.param, 200), "retry_after": f"{error.retry_after:g}"},
    )
    if error.undone:
        info.metadata["undone"] = "true"
    about = any_pb2.Any()
    about.Pack(info)
    status = status_pb2.Status(code=error.status.value[0], message=short(error.message), details=[about])
    return bytes(status.SerializeToString())


def unpacked(data: bytes, message: str = "") -> errors.HaywainError | None:
    """Rebuild an error from a google.rpc.Status, with its own message unless there is another; None when it isn't one of ours."""
    status = status_pb2.Status.FromString(data)
    for about in status.details:
        info = error_details_pb2.ErrorInfo()
        kind = errors.by_reason(info.reason) if about.Unpack(info) and info.domain == _DOMAIN else None
        if kind is not None:
            facts = info.metadata
            told = kind(
                message or status.message,
                code=facts.get("code", ""),
                param=facts.get("param", ""),
                retry_after=float(facts.get("retry_after") or 0),
            )
            told.undone = facts.get("undone") == "true" or None
            return told
    return None


def error_of(error: grpc.aio.AioRpcError) -> errors.HaywainError:
    """Rebuild what the peer raised from a status; a status without our `ErrorInfo` becomes the nearest class."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS and isinstance(value, bytes) and (told := unpacked(value, error.details() or "")) is not None:
            return told
    match error.code():
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return errors.Unavailable(retry_after=1)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.DeadlineExceeded(retry_after=1)
        case _:
            return errors.HaywainError(f"{error.code().name}: {error.details()}")

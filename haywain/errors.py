"""Everything that can go wrong, as one tree.

    HaywainError
    ├── InvalidRequest          the caller's fault; never retry unchanged
    │   ├── NoSuchCursor        a page token that names nothing
    │   └── KeyReused           an idempotency key that belongs to another request
    ├── Unauthenticated
    ├── PermissionDenied
    ├── NotFound
    │   ├── FileMissing         no record, or not this tenant's
    │   ├── FileGone            deleted or expired; the record stays
    │   ├── UploadMissing
    │   ├── BatchMissing
    │   ├── LeaseMissing
    │   └── ModelMissing
    ├── Conflict                the object's state forbids it; a retry can't cure it
    ├── TooLarge
    ├── CapacityExceeded        try again after `retry_after`
    ├── LeaseUnavailable        somebody else leases the model, for `retry_after` or longer
    ├── KeyInUse                the request with this idempotency key is still running: try again
    ├── FencedOff               the lease was lost to a newer epoch
    ├── Unavailable             a peer or a store is away for now
    │   └── StorageFull
    ├── DeadlineExceeded
    └── SettingsError           what the operator wrote can't be used; told at start, exit 1

Domain code raises these. `haywain.rpc` turns them into a gRPC status with `ErrorInfo` and back into the same class at the
caller. Only `gateway/envelope.py` knows their HTTP side. A class's docstring is its default message.
"""

from __future__ import annotations

import inspect
import re
from typing import ClassVar

import grpc

__all__ = [
    "BatchMissing", "CapacityExceeded", "Conflict", "DeadlineExceeded", "FencedOff", "FileGone", "FileMissing", "HaywainError",
    "InvalidRequest", "KeyInUse", "KeyReused", "LeaseMissing", "LeaseUnavailable", "ModelMissing", "NoSuchCursor", "NotFound",
    "PermissionDenied", "SettingsError", "StorageFull", "TooLarge", "Unauthenticated", "Unavailable", "UploadMissing", "by_reason",
]  # fmt: skip


class HaywainError(Exception):
    """The server had an error while processing your request."""

    status: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    retryable: ClassVar[bool] = False
    default_code: ClassVar[str] = ""

    def __init__(self, message: str = "", *, code: str = "", param: str = "", retry_after: float = 0.0) -> None:
        """`code` and `param` are OpenAI's words for the envelope; `retry_after` is in seconds, 0 for none."""
        self.message = message or inspect.cleandoc(type(self).__doc__ or "")
        self.code = code or self.default_code
        self.param = param
        self.retry_after = retry_after
        self.undone: bool | None = None
        """True: whoever raised this vouches that nothing was done. False: that can't be known."""
        super().__init__(self.message)

    @classmethod
    def reason(cls) -> str:
        """Name the class as `ErrorInfo.reason` does: UPPER_SNAKE_CASE."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()


class InvalidRequest(HaywainError):
    """The request is not valid."""

    status = grpc.StatusCode.INVALID_ARGUMENT
    default_code = "invalid_value"


class NoSuchCursor(InvalidRequest):
    """The page token names nothing in this list."""


class KeyReused(InvalidRequest):
    """This idempotency key was used for another request."""

    default_code = "idempotency_key_reused"


class Unauthenticated(HaywainError):
    """Incorrect API key provided."""

    status = grpc.StatusCode.UNAUTHENTICATED
    default_code = "invalid_api_key"


class PermissionDenied(HaywainError):
    """You are not allowed to do this."""

    status = grpc.StatusCode.PERMISSION_DENIED


class NotFound(HaywainError):
    """No such object."""

    status = grpc.StatusCode.NOT_FOUND


class FileMissing(NotFound):
    """No such File object."""


class FileGone(NotFound):
    """The file's content is gone."""

    default_code = "file_deleted"


class UploadMissing(NotFound):
    """No such Upload object."""


class BatchMissing(NotFound):
    """No such batch."""


class LeaseMissing(NotFound):
    """No such lease."""


class ModelMissing(NotFound):
    """The model does not exist or is not served now."""

    default_code = "model_not_found"


class Conflict(HaywainError):
    """The object's state does not allow this."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class TooLarge(HaywainError):
    """The request is too large."""

    status = grpc.StatusCode.OUT_OF_RANGE
    default_code = "request_too_large"


class CapacityExceeded(HaywainError):
    """The intake is full; try again later."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    retryable = True
    default_code = "capacity_exceeded"


class LeaseUnavailable(HaywainError):
    """The model is leased by somebody else."""

    status = grpc.StatusCode.ABORTED
    retryable = True
    default_code = "lease_unavailable"


class KeyInUse(HaywainError):
    """A request with this idempotency key is still running; try again."""

    status = grpc.StatusCode.ABORTED
    retryable = True
    default_code = "idempotency_key_in_use"


class FencedOff(HaywainError):
    """The lease was lost to a newer epoch."""

    status = grpc.StatusCode.ABORTED


class Unavailable(HaywainError):
    """The service is temporarily unavailable. Please retry."""

    status = grpc.StatusCode.UNAVAILABLE
    retryable = True
    default_code = "service_unavailable"


class StorageFull(Unavailable):
    """There is no room left on the storage; nothing was stored. Please retry later."""

    default_code = "storage_full"


class DeadlineExceeded(HaywainError):
    """The request timed out."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED
    retryable = True
    default_code = "timeout"


class SettingsError(HaywainError):
    """The settings can't be used."""

    status = grpc.StatusCode.FAILED_PRECONDITION


def _tree(root: type[HaywainError]) -> dict[str, type[HaywainError]]:
    classes = {root.reason(): root}
    for child in root.__subclasses__():
        if child.__module__ == __name__:  # those that others derive are theirs alone
            classes |= _tree(child)
    return classes


def by_reason(reason: str) -> type[HaywainError] | None:
    """Find the class that `reason()` names, None for a stranger's."""
    return _tree(HaywainError).get(reason)

"""What Triton's refusals mean: the one door for its errors.

busy       its queue is full, or the model says that it can't take more: sent again, with fewer at a time
away       the server or its model is not there: sent again when it is back; the request never ran
lost       the connection broke under the request, which may be what broke it
dead       the model's process is dead, of this request or of an earlier one; Triton says that the model is ready all the same
slow       no answer for too long: sent again, as if it was lost
late       its deadline has passed
stopped    cancelled, though not by us: sent again
refused    the request's own fault: the row's error
failed     the model failed on it: the row's error, after tries elsewhere
"""

from __future__ import annotations

import re
from typing import Final, Literal

import grpc

from haywain.errors import HaywainError, InvalidRequest

__all__ = ["Failure", "Kind", "failure"]

Kind = Literal["busy", "away", "lost", "dead", "slow", "late", "stopped", "refused", "failed"]

_REQUEST_ID = re.compile(r"^\[request id: [^\]]*\] ")
_BY_MESSAGE: Final[tuple[tuple[re.Pattern[str], Kind], ...]] = (
    (re.compile(r"Exceeds maximum queue size|Request timeout expired|Max(imum)? queue size"), "busy"),
    (re.compile(r"Request for unknown model|model .* is not ready|Server is stopping|Server is not ready"), "away"),
    (re.compile(r"Stub process .* is not healthy|stub process has exited|Failed to initialize stub"), "dead"),
    (re.compile(r"[Rr]equest (was|has been) cancell?ed"), "stopped"),
)
_BY_CODE: Final[dict[grpc.StatusCode, Kind]] = {
    grpc.StatusCode.CANCELLED: "stopped",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "busy",
    grpc.StatusCode.INVALID_ARGUMENT: "refused",
    grpc.StatusCode.OUT_OF_RANGE: "refused",
    grpc.StatusCode.UNAUTHENTICATED: "away",
    grpc.StatusCode.PERMISSION_DENIED: "away",
}
_MESSAGE_CHARACTERS: Final = 2_000


class Failure(Exception):
    """Why a request wasn't answered."""

    def __init__(self, kind: Kind, reason: str) -> None:
        """`reason` in Triton's words."""
        super().__init__(reason)
        self.kind: Kind = kind
        self.reason = reason

    @property
    def error(self) -> HaywainError:
        """The row's error."""
        if self.kind == "refused":
            return InvalidRequest(self.reason, code="invalid_request")
        return HaywainError(f"Triton: {self.reason}", code="engine_error")


def failure(code: grpc.StatusCode | None, message: str, *, connected: bool) -> Failure:
    """Classify a status, or (None) an error message in a response; `connected`: the connection still stands."""
    reason = _REQUEST_ID.sub("", message or "no reason given")[:_MESSAGE_CHARACTERS]
    kind = next((kind for pattern, kind in _BY_MESSAGE if pattern.search(reason)), None)
    if kind is None and code is grpc.StatusCode.UNAVAILABLE:
        kind = "busy" if connected else "lost"
    if kind is None and code is not None:
        kind = _BY_CODE.get(code)
    return Failure(kind or "failed", reason)

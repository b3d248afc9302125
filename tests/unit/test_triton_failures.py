"""What Triton's refusals mean."""

from __future__ import annotations

import grpc
import pytest

from engine.triton.failures import failure

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
INTERNAL = grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(
    ("code", "message", "connected", "kind"),
    [
        (None, "[request id: x] Exceeds maximum queue size", True, "busy"),
        (UNAVAILABLE, "Request timeout expired", True, "busy"),
        (UNAVAILABLE, "come back later", True, "busy"),
        (UNAVAILABLE, "Socket closed", False, "lost"),
        (None, "Request for unknown model: 'm' has no available versions", True, "away"),
        (INTERNAL, "Stub process 'm_0_0' is not healthy.", True, "dead"),
        (grpc.StatusCode.CANCELLED, "", True, "stopped"),
        (INTERNAL, "Request was cancelled", True, "stopped"),
        (grpc.StatusCode.INVALID_ARGUMENT, "temperature must be positive", True, "refused"),
        (INTERNAL, "CUDA out of memory", True, "failed"),
        (None, "unexpected inference input 'nope' for model 'm'", True, "failed"),
    ],
)
def test_the_kind_of_a_failure(code: grpc.StatusCode | None, message: str, connected: bool, kind: str) -> None:
    """Triton's own words first, then the status; the connection tells a refusal from a loss."""
    assert failure(code, message, connected=connected).kind == kind


def test_the_words_reach_the_row_without_our_id() -> None:
    """What Triton puts before its message for its own log is taken off."""
    assert failure(None, "[request id: 17] inference input 'a' is odd", connected=True).reason == "inference input 'a' is odd"

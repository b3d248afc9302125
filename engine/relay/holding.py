"""How long a row waits in an engine while the server is away or busy, and how it goes back: to another engine, if there is one."""

from __future__ import annotations

from typing import Final

from engine import answers
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import Unavailable

__all__ = ["gone_back", "hold"]

_CALL_SECONDS: Final = 2.0
"""someone waits for a synchronous request: better told soon"""


def hold(seconds: float, *, interactive: bool) -> float:
    """Tell how long a row waits: `seconds`, a synchronous request not so long."""
    return min(seconds, _CALL_SECONDS) if interactive else seconds


def gone_back(sequence_id: int, server: str, reason: str) -> pb.SequenceResult:
    """Make the result of a sequence that waited too long. It never ran: the scheduler counts no try."""
    error = Unavailable(f"{server} is away: {reason}", code="engine_unavailable", retry_after=1)
    return answers.error_result(sequence_id, error)

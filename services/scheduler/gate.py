"""What may be sent just now, whatever there is room for: a question that the dispatcher asks and model leases answer."""

from __future__ import annotations

from typing import Protocol

from haywain import errors
from services.scheduler.calls import Call

__all__ = ["Gate", "Open"]


class Gate(Protocol):
    """Answers at once, by what is in memory. Who keeps one says when answers may have changed."""

    def lets(self, batch_id: str, model: str) -> bool:
        """Tell whether a batch's rows of a model may be sent."""

    def refusal(self, call: Call) -> errors.HaywainError | None:
        """Tell why a call may not run, None when it may."""


class Open:
    """Lets everything through."""

    def lets(self, batch_id: str, model: str) -> bool:
        """Let it."""
        return True

    def refusal(self, call: Call) -> errors.HaywainError | None:
        """Let it."""
        return None

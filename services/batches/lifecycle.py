"""A batch's life as one table: which status may follow which, and which timestamp each sets.

    validating ──▶ in_progress ──▶ finalizing ──▶ completed
      │   │           │  │             └────────▶ expired
      │   │           │  └──▶ failed
      │   └──▶ failed │
      └───────┬───────┘
              ▼
          cancelling ──▶ cancelled

A status changes by one compare-and-set statement whose `where status in (…)` comes from this table; a terminal status never
changes, and nothing leads from cancelling back to running. A batch that expires while it is validated passes through in_progress
like any other, so that each of its rows gets its error line.
"""

from __future__ import annotations

import enum

__all__ = ["STAMPS", "TERMINAL", "TRANSITIONS", "Status", "can", "sources"]


class Status(enum.StrEnum):
    """The words of the REST contract; SQL holds the same."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.VALIDATING: frozenset({Status.IN_PROGRESS, Status.FAILED, Status.CANCELLING}),
    Status.IN_PROGRESS: frozenset({Status.FINALIZING, Status.FAILED, Status.CANCELLING}),
    Status.FINALIZING: frozenset({Status.COMPLETED, Status.EXPIRED}),
    Status.CANCELLING: frozenset({Status.CANCELLED}),
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset(),
    Status.EXPIRED: frozenset(),
    Status.CANCELLED: frozenset(),
}

TERMINAL = frozenset(status for status, following in TRANSITIONS.items() if not following)

STAMPS: dict[Status, str] = {
    Status.VALIDATING: "created_at",
    Status.FAILED: "failed_at",
    Status.FINALIZING: "finalizing_at",
    Status.COMPLETED: "completed_at",
    Status.EXPIRED: "expired_at",
    Status.CANCELLING: "cancelling_at",
    Status.CANCELLED: "cancelled_at",
}
"""The column that entering a status sets. in_progress has none here: `in_progress_at` is when the first row ran."""


def can(old: Status, new: Status) -> bool:
    """Tell whether `new` may follow `old`."""
    return new in TRANSITIONS[old]


def sources(new: Status) -> list[Status]:
    """List what `new` may follow, in order of declaration."""
    return [old for old in Status if can(old, new)]

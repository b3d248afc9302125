"""Whether a new batch is taken in, decided in the transaction that would make it."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from haywain import errors
from haywain.db import Transaction
from services.batches.record import Record

__all__ = ["Admission", "Waiting", "admit", "until_free"]

COUNTED_SECONDS = 1.0

LEAST_SECONDS, UNKNOWN_SECONDS, MOST_SECONDS = 5.0, 30.0, 300.0
"""when to try again what the intake had no room for"""


class Admission(msgspec.Struct, frozen=True):
    """What must hold for a batch to be taken in, told by its creator just before.

    `intake_rows` is the scheduler's, None when it is away. What waits is counted in SQL in any case, which may be a poll behind
    with what has ended, and so never too low; the scheduler's number may be higher when it has work of others. `rows_per_second`
    is how quickly rows leave. `void` are the request ids whose creation must not happen (held.py).
    """

    intake_capacity: int
    intake_rows: int | None
    rows_per_second: float
    one_active_per_file: bool
    void: Container[str] = ()


class Waiting:
    """The rows that wait, counted once a second and when it matters: else a creation would cost more, the more batches are open."""

    def __init__(self) -> None:
        """Nothing was counted."""
        self._most = 0
        """No more wait, unless other replicas took some in since then."""
        self._counted_at = float("-inf")

    def fit(self, lines: int, admission: Admission, now: float) -> bool:
        """Tell whether so many more fit whatever has ended since the count; then they are counted as well."""
        self._most += lines
        fresh = 0 <= now - self._counted_at < COUNTED_SECONDS
        return fresh and self._most + (admission.intake_rows or 0) <= admission.intake_capacity

    def count(self, tx: Transaction, lines: int, admission: Admission, now: float) -> int:
        """Count those that wait now, before so many are added."""
        ours = int((tx.fetch_one("rows_left") or {})["rows_left"])
        self._most, self._counted_at = ours + lines, now
        if admission.intake_rows is None:
            return ours
        return max(ours, admission.intake_rows + int((tx.fetch_one("rows_validating") or {})["line_count"]))


def admit(tx: Transaction, record: Record, admission: Admission, waiting: Waiting, now: float) -> None:
    """Check a new batch against what is there. Raises CapacityExceeded, InvalidRequest, and Unavailable for a void request."""
    if record.request_id in admission.void:
        raise errors.Unavailable(retry_after=1)
    if admission.one_active_per_file:
        other = tx.fetch_one("active_on_file", tenant=record.tenant, input_file_id=record.input_file_id)
        if other is not None:
            message = f"The file '{record.input_file_id}' is already used by the active batch '{other['batch_id']}'."
            raise errors.InvalidRequest(message, param="input_file_id")
    if waiting.fit(record.line_count, admission, now):
        return
    wait = waiting.count(tx, record.line_count, admission, now)
    over = wait + record.line_count - admission.intake_capacity
    if record.rows_left and over > 0:
        message = (
            f"The intake holds at most {admission.intake_capacity} rows: {wait} are waiting and this file has "
            f"{record.line_count}. Try again later."
        )
        raise errors.CapacityExceeded(message, retry_after=until_free(over, admission.rows_per_second))


def until_free(rows: int, rows_per_second: float) -> float:
    """Estimate in how many seconds so many rows will have left the intake, within reason; while none leaves, nobody knows."""
    if rows_per_second <= 0:
        return UNKNOWN_SECONDS
    return min(max(rows / rows_per_second, LEAST_SECONDS), MOST_SECONDS)

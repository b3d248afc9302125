"""What the Batches service counts and measures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from prometheus_client import Metric

from haywain.metrics import Figures, counter, figure, histogram
from services.batches.lifecycle import TERMINAL, Status
from services.batches.record import Record

__all__ = ["VALIDATION_LINES", "VALIDATION_SECONDS", "figures", "moved"]

_TRANSITIONS = counter("haywain_batch_transitions", "Batches that came to a status.", "status")
VALIDATION_LINES = counter("haywain_validation_lines", "Lines of input files that were read by validation.")
VALIDATION_SECONDS = histogram(
    "haywain_validation_seconds", "What validating a file took.", (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
)
for _status in Status:
    _TRANSITIONS.labels(_status.value)


def moved(record: Record | None) -> Record | None:
    """Count a batch that came to another status; None is none."""
    if record is not None:
        _TRANSITIONS.labels(record.status).inc()
    return record


def figures(unsettled: Callable[[], Awaitable[Mapping[str, int]]]) -> Figures:
    """Tell how many batches there are in each status that isn't terminal."""

    async def look() -> list[Metric]:
        found = await unsettled()
        live = {(status.value,): float(found.get(status.value, 0)) for status in Status if status not in TERMINAL}
        return [figure("haywain_batches", "Batches in a status that isn't terminal.", live, "status")]

    return look

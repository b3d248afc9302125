"""What may be sent just now, whatever there is room for: a question that the dispatcher asks and model leases answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from haywain import errors
from services.scheduler.batch import Batch
from services.scheduler.calls import Call

__all__ = ["Gate", "Open", "Passing"]


class Gate(Protocol):
    """Answers at once, by what is in memory. Who keeps one says when answers may have changed."""

    def lets(self, batch_id: str, model: str) -> bool:
        """Tell whether a batch's rows of a model may be sent."""

    def refusal(self, call: Call) -> errors.HaywainError | None:
        """Tell why a call may not run, None when it may."""

    def holder(self, model: str) -> object:
        """Tell who has a model. As long as that is the same, so is what `lets` says of rows of the model."""


class Open:
    """Lets everything through."""

    def lets(self, batch_id: str, model: str) -> bool:
        """Let it."""
        return True

    def refusal(self, call: Call) -> errors.HaywainError | None:
        """Let it."""
        return None

    def holder(self, model: str) -> object:
        """Nobody has it."""
        return None


class Passing:
    """The batches whose rows want to pass, by what they call their model, and who had it: so those are found who may pass now."""

    def __init__(self) -> None:
        """There are none."""
        self._batches: dict[str, set[Batch]] = {}
        self._holders: dict[str, object] = {}

    def add(self, batch: Batch) -> None:
        """Take a batch in."""
        for model in {*batch.queued_shards, *batch.open_models}:
            self._batches.setdefault(model, set()).add(batch)

    def remove(self, batch: Batch) -> None:
        """Take a batch out."""
        for model in [model for model, batches in self._batches.items() if batch in batches]:
            self._batches[model].discard(batch)
            if not self._batches[model]:
                del self._batches[model]

    def refused(self, batch: Batch, model: str, holder: object) -> None:
        """Take note of who has a model by now: its name may not have been known for its own before, nor that its rows are left."""
        self._batches.setdefault(model, set()).add(batch)
        self._holders[model] = holder

    def concerned(self, holder: Callable[[str], object]) -> list[tuple[Batch, str]]:
        """Give the batches, and their models, that others have than the last time, or that are new since."""
        before, self._holders = self._holders, {model: holder(model) for model in self._batches}
        models = [model for model, now in self._holders.items() if model not in before or before[model] != now]
        return [(batch, model) for model in models for batch in self._batches[model]]

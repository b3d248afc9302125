"""The last that was seen of each open batch's progress: what readers get while the scheduler is away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from haywain.clock import seconds
from haywain.scheduler.v1 import scheduler_pb2
from services.batches.record import Counts, Tokens

__all__ = ["ProgressBook", "counts_of", "figures_of", "tokens_of", "without_counts"]

Progress = scheduler_pb2.Progress
_ENDED = (Progress.STATE_ENDED, Progress.STATE_SEALED)


class ProgressBook:
    """Progress by batch. It holds no more batches than are open here, and counts in it never go back."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._seen: dict[str, Progress | None] = {}
        self._lost: set[str] = set()
        self._changed: set[str] = set()

    def open(self, batch_id: str) -> None:
        """Begin to keep a batch's progress."""
        self._seen.setdefault(batch_id, None)

    def close(self, batch_id: str) -> None:
        """Keep it no longer."""
        self._seen.pop(batch_id, None)
        self._lost.discard(batch_id)
        self._changed.discard(batch_id)

    def note(self, progress: Iterable[Progress]) -> list[str]:
        """Keep what is news; answers the batches that have ended."""
        ended = []
        for news in progress:
            batch_id = news.batch_id
            if batch_id not in self._seen:
                continue
            self._lost.discard(batch_id)
            seen = self._seen[batch_id]
            if seen is None or _done(news) >= _done(seen) or news.state in _ENDED:
                self._seen[batch_id] = news
                if seen is None or _done(news) > _done(seen) or news.HasField("start_time") != seen.HasField("start_time"):
                    self._changed.add(batch_id)
            if news.state in _ENDED:
                ended.append(batch_id)
        return ended

    def get(self, batch_id: str) -> Progress | None:
        """Tell what was seen last."""
        return self._seen.get(batch_id)

    def newest(self, news: Progress | None, batch_id: str) -> Progress | None:
        """Choose between an answer just got and what was seen: whichever is further."""
        seen = self._seen.get(batch_id)
        if news is None or (seen is not None and _done(seen) > _done(news)):
            return seen
        return news

    def has_ended(self, batch_id: str) -> bool:
        """Tell whether a batch can be sealed."""
        seen = self._seen.get(batch_id)
        return seen is not None and seen.state in _ENDED

    def rows_per_second(self) -> float:
        """Tell how quickly rows end, over all batches, as far as that was seen."""
        return sum(seen.rows_per_second for seen in self._seen.values() if seen is not None and seen.state not in _ENDED)

    def started_at(self, batch_id: str) -> float | None:
        """Tell when the first row was dispatched, None when that isn't known."""
        seen = self._seen.get(batch_id)
        return seconds(seen.start_time) if seen is not None else None

    def lose(self, batch_id: str) -> None:
        """Note that the scheduler doesn't know a batch that it was given: what was seen of it is void."""
        if batch_id in self._seen:
            self._seen[batch_id] = None
            self._lost.add(batch_id)

    def reopen(self, batch_id: str) -> None:
        """Note that a batch that had ended has not: some of its rows run again."""
        if batch_id in self._seen:
            self._seen[batch_id] = None

    def is_lost(self, batch_id: str) -> bool:
        """Tell whether the scheduler must be given the batch again."""
        return batch_id in self._lost

    def take_changes(self) -> dict[str, tuple[Counts, Tokens | None, float | None]]:
        """Answer what changed since the last call: counts, tokens and the first row's start of each batch."""
        changed, self._changed = self._changed, set()
        news = {batch_id: seen for batch_id in changed if (seen := self._seen.get(batch_id)) is not None}
        return {batch_id: (counts_of(seen.counts), tokens_of(seen), seconds(seen.start_time)) for batch_id, seen in news.items()}

    def kept(self, seen: Progress | None) -> None:
        """Note that what was seen of a batch is kept; if more was seen meanwhile, that is not."""
        if seen is not None and self._seen.get(seen.batch_id) is seen:
            self._changed.discard(seen.batch_id)

    def give_back(self, batch_ids: Iterable[str]) -> None:
        """Count as changed again what could not be kept."""
        self._changed.update(batch_id for batch_id in batch_ids if batch_id in self._seen)


def counts_of(counts: scheduler_pb2.RowCounts) -> Counts:
    """Read counts."""
    return Counts(counts.total, counts.completed, counts.failed)


def figures_of(seen: Progress | None) -> dict[str, Any]:
    """Tell what a record says of how far its batch is; nothing when that isn't known."""
    if seen is None:
        return {}
    counts = counts_of(seen.counts)
    return {"counts": counts, "usage": tokens_of(seen), "rows_left": max(counts.total - counts.completed - counts.failed, 0)}


def without_counts(progress: Progress | None) -> Progress | None:
    """Leave out what is counted."""
    if progress is None:
        return None
    rest = Progress()
    rest.CopyFrom(progress)
    for name in ("counts", "usage", "start_time"):
        rest.ClearField(name)
    return rest


def tokens_of(told: Progress | scheduler_pb2.SealBatchResponse) -> Tokens | None:
    """Read usage, None until a row ended."""
    if not told.HasField("usage") or not told.counts.completed + told.counts.failed:
        return None
    usage = told.usage
    return Tokens(usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens)


def _done(progress: Progress) -> int:
    return progress.counts.completed + progress.counts.failed

"""How far batches are: counts of recorded rows, rates over the last seconds, why nothing runs, and who wants to hear of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from haywain.clock import timestamp
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from services.scheduler.batch import Batch, Submission, Tally

__all__ = ["Changes", "counts", "describe", "usage"]

_HINT_SECONDS = 0.2
_TOGETHER_SECONDS = 0.02
"""Batches that end so close together are told of together."""


class _Watcher:
    def __init__(self) -> None:
        self.changed: set[str] = set()
        self.ended: set[str] = set()
        """Those of them that ended."""
        self.some = asyncio.Event()
        self.urgent = asyncio.Event()

    def all(self) -> set[str]:
        """Take what changed."""
        changed, self.changed, self.ended = self.changed, set(), set()
        self.some.clear()
        self.urgent.clear()
        return changed

    def soon(self) -> set[str]:
        """Take what ended."""
        ended, self.ended = self.ended, set()
        self.changed -= ended
        self.urgent.clear()
        if not self.changed:
            self.some.clear()
        return ended


class Changes:
    """Tells watchers which batches changed, a few times a second at most; of those that ended, at once."""

    def __init__(self) -> None:
        """Start without watchers."""
        self._watchers: set[_Watcher] = set()

    def add(self, batch_id: str, *, urgent: bool = False) -> None:
        """Say that a batch changed."""
        for watcher in self._watchers:
            watcher.changed.add(batch_id)
            watcher.some.set()
            if urgent:
                watcher.ended.add(batch_id)
                watcher.urgent.set()

    async def watch(self) -> AsyncIterator[set[str]]:
        """Yield sets of changed batches until the watcher leaves; an empty one first, once nothing will be missed any more."""
        loop = asyncio.get_running_loop()
        watcher = _Watcher()
        self._watchers.add(watcher)
        try:
            yield set()
            while True:
                await watcher.some.wait()
                yield watcher.all()
                now = loop.time()
                until = now + _HINT_SECONDS
                while now < until:
                    await asyncio.sleep(_TOGETHER_SECONDS)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(until):
                            await watcher.urgent.wait()
                    if ended := watcher.soon():
                        yield ended
                    now = loop.time()
        finally:
            self._watchers.discard(watcher)


def describe(batch: Batch, why: Callable[[Batch], pb.Progress.WaitingReason], running: float) -> pb.Progress:
    """Make the message; `why` is asked when no row runs. `running` is the part of all that is at engines that is in slots."""
    ended = batch.ended
    rows, tokens = (0.0, 0.0) if ended else batch.meter.rates()
    state = pb.Progress.STATE_SEALED if batch.submission.sealed else pb.Progress.STATE_ENDED if ended else pb.Progress.STATE_ACTIVE
    total = batch.submission.row_count
    in_slots = max(round(batch.running * running), min(batch.running, 1))
    in_slots = min(in_slots, max(0, total - batch.accepted))  # some run twice, and some were accepted twice: a lease was lost
    waiting = pb.Progress.WAITING_REASON_UNSPECIFIED if ended or batch.running else why(batch)
    return pb.Progress(
        batch_id=batch.batch_id,
        state=state,
        counts=counts(batch.submission, batch.tally),
        usage=usage(batch.tally),
        queued=0 if ended else max(0, total - batch.accepted - in_slots),
        running=in_slots,
        rows_per_second=rows,
        tokens_per_second=tokens,
        start_time=timestamp(batch.start_time),
        waiting_reason=waiting,
    )


def counts(terms: Submission, tally: Tally) -> pb.RowCounts:
    """Make the message: lines that validation rejected have failed, too."""
    rejected = terms.rejected_count
    return pb.RowCounts(total=terms.row_count + rejected, completed=tally.completed, failed=tally.failed + rejected)


def usage(tally: Tally) -> engine_pb2.Usage:
    """Make the message."""
    return engine_pb2.Usage(
        input_tokens=tally.input_tokens,
        cached_tokens=tally.cached_tokens,
        output_tokens=tally.output_tokens,
        reasoning_tokens=tally.reasoning_tokens,
    )

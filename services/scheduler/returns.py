"""What comes back from engines: results, chunks, credits, and the loss of an engine. Engines are not trusted.

A lost engine's calls fail at once, because someone waits; its rows become suspects (see `suspects`), unless the engine ended its
stream in good order. A row that was alone and has been lost often enough is what killed it, and fails.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

from haywain import errors, log
from haywain.clock import Clock
from haywain.engine.v1 import engine_pb2
from haywain.settings import SchedulerSettings
from services.scheduler.batch import Attempt
from services.scheduler.calls import Call
from services.scheduler.dispatch import Dispatcher
from services.scheduler.link import Link
from services.scheduler.recording import Recorder

__all__ = ["Returns"]

_RETRY_SECONDS = 0.2
_RETRY_SECONDS_MAX = 10.0
_PAUSES_MAX = 10
_TIMEOUT_TICK_SECONDS = 0.25
_log = log.get()


class Returns:
    """Places what engines say."""

    def __init__(self, settings: SchedulerSettings, clock: Clock, dispatcher: Dispatcher, recorder: Recorder) -> None:
        """Rows that are to be tried again go back to `dispatcher`."""
        self._settings = settings
        self._clock = clock
        self._dispatcher = dispatcher
        self._recorder = recorder
        recorder.retry = self._retry
        self.stray = 0
        """Results and chunks for sequences that are not in flight."""

    def arrived(self, link: Link, response: engine_pb2.RunResponse) -> None:
        """Take a message in."""
        full = self._dispatcher.links.active >= self._settings.slots
        for delta in response.deltas:
            self._delta(link, delta)
        if response.results:
            self._results(link, response.results)
        if response.credits > 0:
            link.credits = min(link.credits + response.credits, self._settings.slots)
        if full:
            self._dispatcher.links.wake_all()
        else:
            link.wake.set()

    def lost(self, link: Link, *, in_order: bool) -> None:
        """Place what was in flight at an engine whose stream ended; `in_order` when the engine ended it itself."""
        self._dispatcher.links.disconnect(link)
        attempts = list(link.attempts.values())
        alone = len(attempts) == link.active
        for call in link.calls.values():
            call.fail(errors.Unavailable("The engine that ran this request was lost.", retry_after=1))
        suspects: list[Attempt] = []
        for attempt in attempts:
            attempt.held.batch.running -= 1
            attempt.attempt += 1
            if in_order:
                self._dispatcher.again(attempt)
                continue
            attempt.losses += 1
            if alone and len(attempts) == 1 and attempt.losses >= self._settings.max_losses:
                message = f"the engine was lost {attempt.losses} times while it ran this request, the last time with nothing else"
                self._recorder.failed(attempt, "engine_error", message)
            else:
                suspects.append(attempt)
        self._dispatcher.suspect(suspects)
        link.attempts.clear()
        link.bytes = 0
        link.calls.clear()
        link.ghosts.clear()

    async def run(self) -> None:
        """Give up rows that are at an engine for too long, until cancelled."""
        limit = self._settings.row_timeout_seconds
        while limit > 0:
            await asyncio.sleep(min(_TIMEOUT_TICK_SECONDS, limit / 4))
            before = self._clock.monotonic() - limit
            for link in self._dispatcher.links:
                self._time_out(link, before)

    def _time_out(self, link: Link, before: float) -> None:
        late = []
        for sequence_id, attempt in link.attempts.items():  # the longest there first
            if attempt.sent_at > before:
                break
            late.append((sequence_id, attempt))
        for sequence_id, attempt in late:
            link.give_up_row(sequence_id)
            attempt.held.batch.running -= 1
            seconds = self._settings.row_timeout_seconds
            self._recorder.failed(attempt, "row_timeout", f"the engine did not answer within {seconds:g} seconds")

    def _results(self, link: Link, results: Iterable[engine_pb2.SequenceResult]) -> None:
        attempts, ended = link.attempts, 0
        try:
            for result in results:
                attempt = attempts.pop(result.sequence_id, None)
                if attempt is not None:
                    ended += 1
                    link.bytes -= attempt.length
                    held = attempt.held
                    held.batch.running -= 1
                    self._recorder.ended(attempt, result, link.lines(held.key[0]))
                else:
                    ended += self._no_row(link, result)
        finally:  # an exception ends the stream, and then the count must be right
            link.ended += ended
            self._dispatcher.links.active -= ended

    def _no_row(self, link: Link, result: engine_pb2.SequenceResult) -> bool:
        """Place a result that isn't a row's; False when nothing was in flight."""
        if (call := link.calls.pop(result.sequence_id, None)) is not None:
            self._call_ended(call, result)
        elif result.sequence_id in link.ghosts:
            link.ghosts.discard(result.sequence_id)
        else:
            self._stray(link, result.sequence_id)
            return False
        return True

    def _delta(self, link: Link, delta: engine_pb2.SequenceDelta) -> None:
        call = link.calls.get(delta.sequence_id)
        if call is None:
            if delta.sequence_id not in link.ghosts:
                self._stray(link, delta.sequence_id)
        elif not call.delta(delta):
            del link.calls[delta.sequence_id]
            link.give_up(delta.sequence_id)

    def _call_ended(self, call: Call, result: engine_pb2.SequenceResult) -> None:
        again = result.retryable and not call.streamed and not call.gone and call.attempt < self._settings.max_attempts
        if not again:
            call.end(result)
            return
        call.attempt += 1
        try:
            self._dispatcher.call(call)
        except errors.CapacityExceeded as error:
            call.fail(error)

    def _retry(self, attempt: Attempt) -> None:
        pause = min(_RETRY_SECONDS_MAX, _RETRY_SECONDS * 2.0**attempt.pauses) * random.uniform(0.5, 1.5)  # noqa: S311
        attempt.pauses = min(attempt.pauses + 1, _PAUSES_MAX)  # also of one that is away: it may say so at once, again and again
        asyncio.get_running_loop().call_later(pause, self._dispatcher.again, attempt)

    def _stray(self, link: Link, sequence_id: int) -> None:
        self.stray += 1
        if self.stray & (self.stray - 1) == 0:  # the 1st, 2nd, 4th, 8th, …
            _log.warning("result.stray", engine_id=link.engine.engine_id, sequence_id=sequence_id, times=self.stray)

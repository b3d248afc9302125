"""What comes back from engines: results, chunks, credits, and the loss of an engine. Engines are not trusted.

A lost engine's calls fail at once, because someone waits; its rows become suspects (see `suspects`), unless the engine ended its
stream in good order. A row that was alone and has been lost often enough is what killed it, and fails. What runs twice (see
`stragglers`) goes on where it is still in flight.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from haywain import errors, log
from haywain.clock import Clock
from haywain.engine.v1 import engine_pb2
from haywain.settings import SchedulerSettings
from services.scheduler.batch import Attempt
from services.scheduler.breaker import FINAL, GOOD, verdict
from services.scheduler.calls import Call
from services.scheduler.dispatch import Dispatcher
from services.scheduler.faults import Faults
from services.scheduler.link import Link
from services.scheduler.recording import Recorder
from services.scheduler.results import clean_body
from services.scheduler.stragglers import Pace, compare

__all__ = ["Returns"]

_RETRY_SECONDS = 0.2
_RETRY_SECONDS_MAX = 10.0
_PAUSES_MAX = 10
_TICK_SECONDS = 0.25
_COMPARE_SECONDS = 1.0
_SAMPLES = 4
_NOWHERE = -1.0
"""When a row was sent that is in flight no more."""
_DEATHS_MAX = 8
"""So many losses more a row is given at an engine that is lost whatever it runs."""
_log = log.get()


class Returns:
    """Places what engines say."""

    def __init__(self, settings: SchedulerSettings, clock: Clock, dispatcher: Dispatcher, recorder: Recorder) -> None:
        """Rows that are to be tried again go back to `dispatcher`."""
        self._settings = settings
        self._clock = clock
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._faults = Faults(clock, dispatcher)
        recorder.retry = self._retry

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
        if link.active and not in_order:
            self._faults.lost(link, attempts)
        most = self._settings.max_losses + (_DEATHS_MAX if link.breaker.dying else 0)
        for call in link.calls.values():
            call.fail(errors.Unavailable("The engine that ran this request was lost.", retry_after=1))
        suspects: list[Attempt] = []
        for attempt in attempts:
            attempt.held.batch.running -= 1
            attempt.attempt += 1
            attempt.sent_at = _NOWHERE
            if self._goes_on(attempt):
                continue
            attempt.losses += not in_order
            if in_order:
                self._dispatcher.again(attempt)
            elif alone and len(attempts) == 1 and attempt.losses >= most:
                message = f"the engine was lost {attempt.losses} times while it ran this request, the last time with nothing else"
                self._recorder.failed(attempt, "engine_error", message)
            else:
                suspects.append(attempt)
        self._dispatcher.suspect(suspects)
        link.attempts.clear()
        link.bytes = 0
        link.calls.clear()
        link.ghosts.clear()

    def _goes_on(self, attempt: Attempt) -> bool:
        """Tell whether a row of a lost engine is at another one, too. That is not held against it, but it isn't copied again."""
        twin = self._dispatcher.stragglers.part(attempt)
        if twin is None:
            return False
        if (place := self._dispatcher.links.find(twin)) is not None:
            place[0].copied.add(place[1])
            place[0].copies.discard(place[1])
        return True

    async def run(self) -> None:
        """Look after rows that are at an engine for too long, and after engines that are tried again or slow, until cancelled."""
        limit = self._settings.row_timeout_seconds
        compared = self._clock.monotonic()
        while True:
            await asyncio.sleep(min(_TICK_SECONDS, limit / 4) if limit > 0 else _TICK_SECONDS)
            now, links = self._clock.monotonic(), list(self._dispatcher.links)
            for link in links:
                if limit > 0:
                    self._time_out(link, now - limit)
                self._faults.look(link)
            if now - compared >= _COMPARE_SECONDS:
                compared = now
                self._compare(links)

    def _compare(self, links: Sequence[Link]) -> None:
        """Find slow engines, and have idle ones look for rows that are late elsewhere."""
        for link in compare(links):
            _log.warning("engine.slow" if link.slow else "engine.not_slow", engine_id=link.engine.engine_id)
            link.wake.set()
        for link in links:
            if len(links) > 1 and not link.slow and not link.breaker.quarantined and link.active < link.engine.slots:
                link.looks = True
                link.wake.set()

    def _time_out(self, link: Link, before: float) -> None:
        late = []
        for sequence_id, attempt in link.attempts.items():  # the longest there first
            if attempt.sent_at > before:
                break
            late.append((sequence_id, attempt))
        why = f"no answer within {self._settings.row_timeout_seconds:g} seconds"
        for sequence_id, attempt in late:
            link.give_up_row(sequence_id)
            attempt.held.batch.running -= 1
            self._faults.judge(link, sequence_id, FINAL, why)
            if self._dispatcher.stragglers.part(attempt) is None:  # else the row has time left at another engine
                self._recorder.failed(attempt, "row_timeout", f"the engine gave {why}")

    def _results(self, link: Link, results: Sequence[engine_pb2.SequenceResult]) -> None:
        attempts, ended, good = link.attempts, 0, 0
        odd = bool(link.probes or self._dispatcher.stragglers)
        self._sample(link, results)
        try:
            for result in results:
                attempt = attempts.pop(result.sequence_id, None)
                if attempt is not None:
                    ended += 1
                    link.bytes -= attempt.length
                    attempt.held.batch.running -= 1
                    if odd or result.status_code != 200:
                        self._row(link, attempt, result)
                    elif self._recorder.ended(attempt, result, link.lines(attempt.held.model)):
                        good += 1
                    else:
                        self._rubbish(link, result)
                else:
                    ended += self._no_row(link, result)
        finally:  # an exception ends the stream, and then the count must be right
            link.ended += ended
            self._dispatcher.links.active -= ended
        if good:
            link.breaker.good(good)

    def _row(self, link: Link, attempt: Attempt, result: engine_pb2.SequenceResult) -> None:
        """Place what isn't just good, or may be of a probe, or of a row that runs twice."""
        good = result.status_code == 200
        if not good:
            self._faults.failed(link, attempt, result)
        if self._dispatcher.stragglers and not self._counts(attempt, result):
            if good:
                self._rubbish(link, result)
            return
        recorded = self._recorder.ended(attempt, result, link.lines(attempt.held.model))
        if good and not recorded:
            self._rubbish(link, result)
        elif good:
            self._faults.ended(link, result)

    def _rubbish(self, link: Link, result: engine_pb2.SequenceResult) -> None:
        self._faults.judge(link, result.sequence_id, FINAL, "an answer that is not a JSON object")

    def _counts(self, attempt: Attempt, result: engine_pb2.SequenceResult) -> bool:
        """Tell whether a result is the row's: while it runs twice a failure of the engine isn't; an answer ends the other one."""
        twin = self._dispatcher.stragglers.part(attempt)
        if twin is None:
            return True
        answered = clean_body(result.body) is not None if result.status_code == 200 else verdict(result) == GOOD
        if answered and (place := self._dispatcher.links.find(twin)) is not None:
            place[0].give_up_row(place[1])
            twin.held.batch.running -= 1
        return answered

    def _sample(self, link: Link, results: Sequence[engine_pb2.SequenceResult]) -> None:
        """Note how long a few rows of a message took; all of them would tell the same and cost more."""
        now = self._clock.monotonic()
        for result in results[:_SAMPLES]:
            attempt = link.attempts.get(result.sequence_id)
            if attempt is not None and result.status_code == 200:
                seconds = now - attempt.sent_at - max(0, result.queue_ms) / 1000
                pace = link.paces.setdefault(attempt.held.model, Pace())
                pace.add(max(0.0, seconds), result.usage.output_tokens)

    def _no_row(self, link: Link, result: engine_pb2.SequenceResult) -> bool:
        """Place a result that isn't a row's; False when nothing was in flight."""
        if (call := link.calls.pop(result.sequence_id, None)) is not None:
            self._faults.ended(link, result)
            self._call_ended(link, call, result)
        elif result.sequence_id in link.ghosts:
            link.ghosts.discard(result.sequence_id)
            link.probes.discard(result.sequence_id)
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

    def _call_ended(self, link: Link, call: Call, result: engine_pb2.SequenceResult) -> None:
        used = result.usage
        link.tokens.add(used.input_tokens, used.cached_tokens, used.output_tokens)
        again = result.retryable and not call.streamed and not call.gone and call.attempt < self._settings.max_attempts
        if not again:
            call.end(result)
            return
        call.attempt += 1
        try:
            self._dispatcher.call(call)
        except errors.HaywainError as error:
            call.fail(error)

    def _retry(self, attempt: Attempt) -> None:
        pause = min(_RETRY_SECONDS_MAX, _RETRY_SECONDS * 2.0**attempt.pauses) * random.uniform(0.5, 1.5)  # noqa: S311
        attempt.sent_at = _NOWHERE
        attempt.pauses = min(attempt.pauses + 1, _PAUSES_MAX)  # also of one that is away: it may say so at once, again and again
        asyncio.get_running_loop().call_later(pause, self._dispatcher.again, attempt)

    def _stray(self, link: Link, sequence_id: int) -> None:
        link.breaker.strays = times = link.breaker.strays + 1
        if times & (times - 1) == 0:  # the 1st, 2nd, 4th, 8th, …
            _log.warning("result.stray", engine_id=link.engine.engine_id, sequence_id=sequence_id, times=times)

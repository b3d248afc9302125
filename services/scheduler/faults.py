"""What engines' results and losses mean for their breakers, and what follows when one opens or closes."""

from __future__ import annotations

from collections.abc import Sequence

from haywain import log
from haywain.clock import Clock
from haywain.engine.v1 import engine_pb2
from services.scheduler.batch import Attempt
from services.scheduler.breaker import AGAIN, GOOD, verdict
from services.scheduler.dispatch import Dispatcher
from services.scheduler.link import Link

__all__ = ["Faults"]

_WORDS_MAX = 200
_log = log.get()


class Faults:
    """Judges engines."""

    def __init__(self, clock: Clock, dispatcher: Dispatcher) -> None:
        """Calls that nobody can take are failed at `dispatcher`."""
        self._clock = clock
        self._dispatcher = dispatcher

    def failed(self, link: Link, attempt: Attempt, result: engine_pb2.SequenceResult) -> None:
        """Take note of a row's result that isn't 200, before it is placed."""
        kind = verdict(result)
        if kind == AGAIN and link.breaker.lenient:
            attempt.refusals -= 1  # it is about to be counted; it is the engine that is tried, or was found to fail meanwhile
        self.judge(link, result.sequence_id, kind, _words(result))

    def ended(self, link: Link, result: engine_pb2.SequenceResult) -> None:
        """Take note of a result: a call's, or a row's that is good."""
        if result.status_code != 200:
            self.judge(link, result.sequence_id, verdict(result), _words(result))
        elif link.probes:
            self.judge(link, result.sequence_id, GOOD)
        else:
            link.breaker.good(1)

    def judge(self, link: Link, sequence_id: int, kind: int | None, why: str = "") -> None:
        """Take note of an outcome: `GOOD` of a request's own fault only says that a probe's engine works."""
        breaker, now = link.breaker, self._clock.monotonic()
        if sequence_id in link.probes:
            link.probes.discard(sequence_id)
            if kind == GOOD:
                if breaker.proved(now, len(link.probes)):
                    self._restored(link)
            elif kind is not None:
                breaker.failed_again(kind, why, now)
                self._quarantined(link)
        elif kind and breaker.bad(kind, why, now, alone=not breaker.quarantined and not self._dispatcher.links.spare(link)):
            self._quarantined(link)

    def lost(self, link: Link, attempts: Sequence[Attempt]) -> None:
        """Take note of a stream that broke with these rows in flight, before they are placed."""
        suspects = any(attempt.losses for attempt in attempts) and not self._dispatcher.links.spare(link)
        if link.breaker.lost(self._clock.monotonic(), len(link.probes), suspects=suspects):
            self._quarantined(link)

    def look(self, link: Link) -> None:
        """Have an engine whose pause is over ask for probes, and trust one again that only others' rows could have judged."""
        if not link.breaker.quarantined:
            return
        now = self._clock.monotonic()
        if now < link.breaker.until:  # another engine may be away for a moment only
            return
        if not self._dispatcher.links.spare(link) and link.breaker.alone(now):
            self._restored(link)
        else:
            link.wake.set()

    def _quarantined(self, link: Link) -> None:
        link.probes.clear()
        breaker = link.breaker
        seconds = breaker.until - self._clock.monotonic()
        breaker.until_time = self._clock.now() + seconds
        _log.warning("engine.quarantined", engine_id=link.engine.engine_id, reason=breaker.why, seconds=round(seconds, 3))
        self._dispatcher.quarantined()

    def _restored(self, link: Link) -> None:
        link.probes.clear()
        _log.info("engine.restored", engine_id=link.engine.engine_id)
        link.wake.set()


def _words(result: engine_pb2.SequenceResult) -> str:
    """Name an error by status and code: the message may hold a part of the request."""
    return f"{result.status_code} {result.error.code}".strip()[:_WORDS_MAX]

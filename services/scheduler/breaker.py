"""When an engine gets no rows for a while because it fails them: a circuit breaker an engine. Numbers and instants only.

    CLOSED ──failures──▶ OPEN ──the pause is over──▶ HALF-OPEN ──probes end well──▶ CLOSED
                          ▲                              │
                          └──────────a probe fails───────┘   the next pause is twice as long

What counts is the engine's own doing: refusals that it calls retryable, server errors, answers that are none, rows that time out,
streams that break with rows in flight. A request's own fault (4xx), an engine that is full or away, and a loss while suspects
(see `suspects`) were tried don't. Nor does the only engine of a model open for what its engine calls final: the row may be
at fault, nobody else could say, and its line is written anyway; it opens only when nothing succeeds and rows would come back.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable

from haywain.engine.v1 import engine_pb2

__all__ = ["AGAIN", "FINAL", "GOOD", "PROBES", "Breaker", "Breakers", "verdict"]

GOOD, AGAIN, FINAL = 0, 1, 2
"""What an outcome says of the engine: it works; it failed and the row is tried again; it failed and so did the row."""
_LOSS = 3
PROBES = 3
"""Sequences at a half-open engine at a time."""
_RECENT = 20
_FAILURES = 5
_LOSSES = 3
"""Streams that broke with hardly a good answer between them."""
_LOSSES_REMEMBERED_SECONDS = 600.0
_DEATHS = 4
"""Losses without a single good answer between them: then it is hardly the rows' doing."""
_PAUSE_SECONDS = 1.0
_PAUSE_SECONDS_MAX = 30.0
_DOUBLINGS = 5
_CALM_SECONDS = 300.0
"""After so long without a quarantine the next one is short again."""
_UNBOUNDED = 1 << 30
_KNOWN_MAX = 1_024
_BUSY = ("engine_unavailable", "overloaded", "capacity_exceeded")


def verdict(result: engine_pb2.SequenceResult) -> int | None:
    """Tell what a result that isn't 200 says of the engine; None for nothing: it is full, or what it wraps is away."""
    status, code = result.status_code, result.error.code
    if code in _BUSY or status == 429:
        return None
    if result.retryable or code == "cancelled":
        return AGAIN
    return GOOD if 400 <= status < 500 else FINAL


class Breaker:
    """One engine's, over all its streams."""

    def __init__(self, jitter: Callable[[float, float], float] = random.uniform) -> None:
        """It is closed."""
        self._jitter = jitter
        self.why = ""
        """Empty while it is closed."""
        self.until = self.until_time = 0.0
        """When probes may be sent: monotonic; and Unix time, for people."""
        self.times = 0
        """How often it opened."""
        self.strays = 0
        """Results and chunks that came for sequences which were not there, or not any more."""
        self.incarnation = ""
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._level = 0
        self._closed_at = 0.0
        self._proved = 0
        self._losses = self._good_since = self._deaths = 0
        self._lost_at = 0.0
        self._by = GOOD
        """What it was opened by the last time: AGAIN, FINAL or _LOSS."""

    @property
    def quarantined(self) -> bool:
        """Tell whether it is open or half-open."""
        return bool(self.why)

    @property
    def shaky(self) -> bool:
        """Tell whether others should rather try a row that may have killed an engine."""
        return bool(self.why) or self._losses > 0

    @property
    def dying(self) -> bool:
        """Tell whether it is lost whatever it runs."""
        return self._deaths >= _DEATHS

    @property
    def lenient(self) -> bool:
        """Tell whether what a probe suffers isn't held against its row: so it is until pauses are at their longest."""
        return bool(self.why) and self._level <= _DOUBLINGS

    def room(self, now: float, out: int) -> int:
        """Count the sequences that may be sent while `out` probes are there."""
        if not self.why:
            return _UNBOUNDED
        return max(0, PROBES - out) if now >= self.until else 0

    def good(self, count: int) -> None:
        """Take note of good answers."""
        self._deaths = 0
        self._recent.extend((GOOD,) * min(count, _RECENT))
        if self._losses:
            self._good_since += count
            if self._good_since >= _RECENT:
                self._losses = self._good_since = 0

    def bad(self, kind: int, why: str, now: float, *, alone: bool) -> bool:
        """Take note of a failure; True when it opens. `alone`: no other engine could have its rows."""
        if self.why:
            return False
        self._recent.append(kind)
        again, finals = self._recent.count(AGAIN), self._recent.count(FINAL)
        if alone:
            opens = again >= _FAILURES and again + finals == len(self._recent)
        else:
            opens = again + finals >= _FAILURES and 2 * (again + finals) >= len(self._recent)
        if opens:
            self._by = FINAL if finals > again else AGAIN
            self._open(f"{again + finals} of its last {len(self._recent)} rows failed, the last one: {why}", now)
        return opens

    def lost(self, now: float, probes: int, *, suspects: bool = False) -> bool:
        """Take note of a stream that broke with rows in flight, `probes` of them probes; True when it opens.

        When there were `suspects` among them that nobody else could have tried, it may be their doing.
        """
        self._deaths += 1
        if suspects:
            return False
        if self.why:
            if probes:
                self._by = _LOSS
                self._open("its stream broke when it was tried again", now)
            return bool(probes)
        if now - self._lost_at > _LOSSES_REMEMBERED_SECONDS:
            self._losses = 0
        self._losses, self._good_since, self._lost_at = self._losses + 1, 0, now
        opens = self._losses >= _LOSSES
        if opens:
            self._by = _LOSS
            self._open(f"its stream broke {self._losses} times with rows in flight", now)
        return opens

    def proved(self, now: float, out: int) -> bool:
        """Take note of a probe that ended well, `out` others being there; True when it closes."""
        self._deaths = 0
        self._proved += 1
        closes = bool(self.why) and (self._proved >= PROBES or not out)
        if closes:
            self.close(now)
        return closes

    def failed_again(self, kind: int, why: str, now: float) -> None:
        """Take note of a probe that failed: it opens for longer."""
        if self.why:
            self._by = kind
            self._open(f"it was tried again and failed: {why}", now)

    def alone(self, now: float) -> bool:
        """Take note that no other engine could have its rows any more; True when it closes, having failed final ones only."""
        closes = self.quarantined and self._by == FINAL
        if closes:
            self.close(now)
        return closes

    def renew(self, incarnation: str, now: float) -> None:
        """Take note of the engine's process: a new one is believed, or tried at once if the one before was lost again and again."""
        if incarnation != self.incarnation and self.why:
            if self._by == _LOSS:
                self.until = now
                self._proved = 0
            else:
                self.close(now)
        self.incarnation = incarnation

    def close(self, now: float) -> None:
        """Believe the engine again."""
        self.why = ""
        self._closed_at = now
        self._recent.clear()
        self._losses = self._good_since = 0

    def _open(self, why: str, now: float) -> None:
        if not self.why and now - self._closed_at > _CALM_SECONDS:
            self._level = 0
        pause = min(_PAUSE_SECONDS_MAX, _PAUSE_SECONDS * 2.0 ** min(self._level, _DOUBLINGS))
        self._level += 1
        self.times += 1
        self._proved = 0
        self.why = why
        self.until = now + pause * self._jitter(0.75, 1.25)


class Breakers:
    """The breakers of all engines by id, also of those that are away."""

    def __init__(self) -> None:
        """No engine is known."""
        self._known: OrderedDict[str, Breaker] = OrderedDict()

    def of(self, engine: engine_pb2.Engine, now: float) -> Breaker:
        """Give the breaker of an engine that a stream is opened to."""
        breaker = self._known.setdefault(engine.engine_id, Breaker())
        self._known.move_to_end(engine.engine_id)
        while len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        breaker.renew(engine.incarnation, now)
        return breaker

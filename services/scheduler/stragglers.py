"""Engines that are slower than their peers, and rows that take far longer than others: when a second try pays, and of which row.

A row in flight for much longer than its model's rows take at another engine that has nothing else to do is sent there, too.

    one in flight ──copy──▶ copy on its way ──sent──▶ two in flight ──an answer──▶ recorded, the other is cancelled and dropped
         ▲                     │                        │
         └──the first one left─┘                        └──one failed or was lost──▶ the other goes on alone

A copy is an `Attempt` of its own, so every sequence at an engine has one. Until it is sent, only the first one counts: when that
has ended or left its engine meanwhile, the copy is not sent. From then on they are twins, and nothing tells one from the other:
a failure of one is nobody's, since the other may yet answer.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from haywain.engine.v1 import engine_pb2
from services.scheduler import figures
from services.scheduler.batch import Attempt, Batch

if TYPE_CHECKING:
    from services.scheduler.link import Link

__all__ = ["Pace", "Stragglers", "compare"]

_SAMPLES = 64
_ENOUGH, _SOME = 20, 8
"""Samples that make a comparison; that tell what is late."""
_SLOW, _NOT_SLOW = 3.0, 2.0
"""Times the others' median: from here on an engine is slow, and below this no more."""
_LONG_SECONDS = 0.25
"""Below that nobody is slow."""
_TAIL = 0.95
_COPIES = 4
"""One slot of so many may have a copy."""


class Pace:
    """How long an engine's last rows of one model took."""

    __slots__ = ("_seconds", "_units")

    def __init__(self) -> None:
        """Nothing is known."""
        self._seconds: deque[float] = deque(maxlen=_SAMPLES)
        self._units: deque[float] = deque(maxlen=_SAMPLES)

    def add(self, seconds: float, tokens: int) -> None:
        """Count a row that took so long, without waiting at the engine, for so many output tokens."""
        self._seconds.append(seconds)
        self._units.append(seconds / max(1, tokens))

    def __len__(self) -> int:
        """Count the rows to go by."""
        return len(self._seconds)

    def typical(self) -> float:
        """Tell the median of seconds an output token."""
        return statistics.median(self._units)

    def usual(self) -> float:
        """Tell the median of seconds a row."""
        return statistics.median(self._seconds)

    def long(self) -> float:
        """Tell how many seconds all but a twentieth of the rows took at most."""
        ordered = sorted(self._seconds)
        return ordered[min(len(ordered) - 1, int(_TAIL * len(ordered)))]


def compare(links: Sequence[Link]) -> list[Link]:
    """Mark the links whose engines are slow; gives those whose mark changed."""
    known: dict[str, dict[Link, float]] = {}
    for link in links:
        for model, pace in link.paces.items():
            if len(pace) >= _ENOUGH:
                known.setdefault(model, {})[link] = pace.typical()
    changed = []
    for link in links:
        times = 0.0
        for model, typical in known.items():
            others = [one for other, one in typical.items() if other is not link]
            if link in typical and others and link.paces[model].usual() >= _LONG_SECONDS:
                times = max(times, typical[link] / max(statistics.median(others), 1e-9))
        slow = times >= (_NOT_SLOW if link.slow else _SLOW)
        if slow != link.slow:
            link.slow = slow
            changed.append(link)
    return changed


class Stragglers:
    """Which rows run twice."""

    def __init__(self, factor: float, seconds: float) -> None:
        """Rows are sent again after `factor` times what rows take long, and `seconds`; a factor of 0 for never."""
        self._factor = factor
        self._seconds = seconds
        self._twins: dict[Attempt, Attempt] = {}
        self._coming: dict[Attempt, tuple[Attempt, float]] = {}
        """Copies that are not sent yet: of what, and when that was sent."""
        self.lets: Callable[[Attempt], bool] = lambda attempt: True
        """Tells whether rows like this one may be sent just now."""

    def __bool__(self) -> bool:
        """Tell whether any row runs twice."""
        return bool(self._twins)

    def pick(self, link: Link, others: Iterable[Link], room: int, size: int, now: float) -> list[Attempt]:
        """Copy rows in flight at other links for this one, which has slots free: at most `room`, of `size` bytes in all."""
        link.copies &= link.attempts.keys()
        slots = link.engine.slots
        room = min(room, slots - link.active, max(1, slots // _COPIES) - len(link.copies))
        if room <= 0:
            return []
        link.looks = False
        if self._factor <= 0:
            return []
        late = {model: max(self._seconds, self._factor * pace.long()) for model, pace in link.paces.items() if len(pace) >= _SOME}
        picked: list[Attempt] = []
        for other in others:
            if other is link or not late:
                continue
            other.copied &= other.attempts.keys()
            for sequence_id, attempt in other.attempts.items():  # the longest there first
                age, key = now - attempt.sent_at, attempt.held.key
                if age < self._seconds or len(picked) >= room or size <= 0:
                    break
                fits = key in link.keys and age >= late.get(key[0], age + 1) and attempt not in self._twins
                if fits and not (attempt.losses or attempt.held.over or sequence_id in other.copied) and self.lets(attempt):
                    other.copied.add(sequence_id)
                    size -= attempt.length
                    picked.append(self._copy(attempt))
        link.looks = len(picked) >= room  # there may be more of them
        return picked

    def _copy(self, attempt: Attempt) -> Attempt:
        copy = Attempt(attempt.held, attempt.row, attempt.offset, attempt.length, attempt.line)
        copy.attempt, copy.refusals, copy.pauses = attempt.attempt + 1, attempt.refusals, attempt.pauses
        self._coming[copy] = (attempt, attempt.sent_at)
        return copy

    def among(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Give those that are copies."""
        return [attempt for attempt in attempts if attempt in self._coming] if self._coming else []

    def sent(self, link: Link, request: engine_pb2.RunRequest, copies: list[Attempt], unsent: list[Attempt]) -> None:
        """Make twins of the copies in a message that is about to be sent, but those of rows that have ended or left their engine.

        Copies that are neither in it nor among the `unsent` are forgotten.
        """
        late = set()
        for sequence in request.sequences:
            number = sequence.sequence_id
            attempt = link.attempts.get(number)
            if attempt is None or attempt not in copies:
                continue
            if self._pair(attempt):
                link.copies.add(number)
            else:
                late.add(number)
                link.forget_row(number)
                attempt.held.batch.running -= 1
        if late:
            kept = [sequence for sequence in request.sequences if sequence.sequence_id not in late]
            del request.sequences[:]
            request.sequences.extend(kept)
        figures.copied(len([copy for copy in copies if copy in self._twins]))
        for copy in copies:
            if copy not in unsent:
                self._coming.pop(copy, None)

    def _pair(self, copy: Attempt) -> bool:
        first, sent_at = self._coming.pop(copy)
        held = copy.held
        if held.over or held.batch.recorded[copy.row] or first.sent_at != sent_at:
            return False
        self._twins[first], self._twins[copy] = copy, first
        return True

    def unsent(self, attempt: Attempt) -> bool:
        """Forget a copy that can't be sent; False when it is none."""
        return self._coming.pop(attempt, None) is not None

    def part(self, attempt: Attempt) -> Attempt | None:
        """Take one that left its engine from its twin; gives the other, which is the row's only one now."""
        other = self._twins.pop(attempt, None)
        if other is not None:
            del self._twins[other]
        return other

    def forget(self, batch: Batch) -> None:
        """Forget the twins of a batch that is stopped."""
        for attempt in [attempt for attempt in self._twins if attempt.held.batch is batch]:
            del self._twins[attempt]

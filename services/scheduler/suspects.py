"""Rows that were in an engine when it was lost, and how to find the one that killed it without failing its neighbours.

    in flight ──engine lost──▶ suspect ──tried beside other rows, a few at a time──▶ ended well: cleared
                                  ▲                  │
                                  └──engine lost─────┘   after `max_losses` losses: tried alone
                                                         lost alone, `max_losses` losses or more: the row fails

The few are the square root of what was in flight, so an engine that takes over goes on at full speed, and a second loss points
at few. What was in flight beside them is a suspect of one loss, again. Only who was in two losses is tried alone, on an engine
that is emptied for it; a row fails only when it was alone. A suspect that may not be sent, because its model is leased, stays one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import isqrt

from services.scheduler.batch import Attempt, Key
from services.scheduler.link import Link
from services.scheduler.links import Links

__all__ = ["Suspected", "Suspects"]

_EMPTY_AFTER_SECONDS = 5.0
"""Those that must be alone wait so long for an engine without rows; then a busy one is emptied for them."""
_ANOTHER_AFTER_SECONDS = 60.0
"""So much later another one is emptied, too: a row may never end at the first."""
_ANYWHERE_AFTER_SECONDS = 10.0
"""When no stable engine took any for so long, any may."""
Lets = Callable[[Attempt], bool]


class Suspects:
    """The suspects of one key that wait for their turn."""

    def __init__(self, max_losses: int, lets: Lets = lambda attempt: True) -> None:
        """`max_losses` is how often an engine may be lost with a row before the row is tried alone, `lets` who may be sent."""
        self._max_losses = max_losses
        self._lets = lets
        self._groups: deque[tuple[int, deque[Attempt]]] = deque()
        self._grave: deque[Attempt] = deque()
        self.since = 0.0
        """When the first of those that are to be alone came, or the last one left, monotonic."""
        self.moved = 0.0
        """When any came or left."""
        self._barred = False

    def __bool__(self) -> bool:
        """Tell whether there are any, that may be sent or not."""
        return any(not attempt.held.over for _, group in self._groups for attempt in group) or any(
            not attempt.held.over for attempt in self._grave
        )

    @property
    def few(self) -> int:
        """Tell how many may be tried beside other rows on one engine at a time; 0 when none waits for that."""
        return next((limit for limit, group in self._groups if self._first(group) is not None), 0)

    @property
    def grave(self) -> bool:
        """Tell whether any waits to be tried alone."""
        return self._first(self._grave) is not None

    def add(self, attempts: list[Attempt], now: float) -> None:
        """Take in what one lost engine had in flight; its rows are tried before those of earlier losses."""
        self.moved = now
        grave = [attempt for attempt in attempts if attempt.losses >= self._max_losses]
        if grave and not self.grave:
            self.since = now
        self._grave.extend(grave)
        others = deque(attempt for attempt in attempts if attempt.losses < self._max_losses)
        if others:
            self._groups.appendleft((max(1, isqrt(len(attempts))), others))
        self._barred = not (self.few or self.grave)

    def give_back(self, attempt: Attempt, now: float) -> None:
        """Take one in again that was not lost this time: it is tried next, among others as before."""
        if attempt.losses >= self._max_losses or not self._groups:
            self.add([attempt], now)
            return
        few, group = self._groups[0]
        group.appendleft(attempt)
        self._groups[0] = max(few, isqrt(len(group))), group
        self.moved, self._barred = now, not (self.few or self.grave)

    def look(self, now: float) -> None:
        """Take note that others may be sent than before: if none could, their waiting begins now."""
        barred, self._barred = self._barred, not (self.few or self.grave)
        if barred and not self._barred:
            self.since = self.moved = now

    def some(self, most: int, now: float) -> list[Attempt]:
        """Take at most `most` of those that may be tried beside other rows."""
        taken: list[Attempt] = []
        for _, group in self._groups:
            while len(taken) < most and (attempt := self._first(group)) is not None:
                group.remove(attempt)
                taken.append(attempt)
                self.moved = now
        self._groups = deque((limit, group) for limit, group in self._groups if group)
        return taken

    def alone(self, now: float) -> list[Attempt]:
        """Take the next one to try alone, if any waits."""
        attempt = self._first(self._grave)
        if attempt is None:
            return []
        self._grave.remove(attempt)
        self.since = self.moved = now
        return [attempt]

    def _first(self, attempts: deque[Attempt]) -> Attempt | None:
        """Find the first one that may be sent; forgets what is over."""
        while attempts and attempts[0].held.over:
            attempts.popleft()
        return next((attempt for attempt in attempts if not attempt.held.over and self._lets(attempt)), None)


class Suspected:
    """The suspects of all keys, and which engine tries them."""

    def __init__(self, max_losses: int, lets: Lets) -> None:
        """There are none."""
        self._max_losses = max_losses
        self._lets = lets
        self._suspects: dict[Key, Suspects] = {}

    def add(self, attempts: Iterable[Attempt], now: float) -> list[Key]:
        """Take in what one lost engine had in flight; gives the keys of engines that may try it."""
        by_key: dict[Key, list[Attempt]] = {}
        for attempt in attempts:
            by_key.setdefault(attempt.held.key, []).append(attempt)
        for key, group in by_key.items():
            self._suspects.setdefault(key, Suspects(self._max_losses, self._lets)).add(group, now)
        return list(by_key)

    def give_back(self, attempt: Attempt, now: float) -> Key:
        """Take one in again that was not lost this time; gives the key of engines that may try it."""
        key = attempt.held.key
        self._suspects.setdefault(key, Suspects(self._max_losses, self._lets)).give_back(attempt, now)
        return key

    def look(self, now: float) -> list[Key]:
        """Take note that others may be sent than before; gives the keys of engines that may try them."""
        for suspects in self._suspects.values():
            suspects.look(now)
        return list(self._suspects)

    def alone(self, link: Link, links: Links, now: float) -> list[Attempt] | None:
        """Take one to try alone at a link; none while the link is being emptied for it; None when there is nothing to wait for."""
        grave = [(key, suspects) for key, suspects in self._of(link, links, now) if suspects.grave]
        if grave and not link.attempts:
            return grave[0][1].alone(now)
        return [] if any(self._empties(link, links, key, suspects, now) for key, suspects in grave) else None

    def _empties(self, link: Link, links: Links, key: Key, suspects: Suspects, now: float) -> bool:
        """Tell whether a link is the one to be emptied: the one that will be first, one more as time goes by."""
        waited = now - suspects.since - _EMPTY_AFTER_SECONDS
        if waited <= 0:
            return False
        others = [other for other in links.of(key) if other.room(now) and _may_try(other, links, key, suspects, now)]
        others.sort(key=lambda other: (other.busy(), other.engine.engine_id))
        return link in others[: 1 + int(waited / _ANOTHER_AFTER_SECONDS)]

    def some(self, link: Link, links: Links, room: int, now: float) -> list[Attempt]:
        """Take some to try beside other rows, so that few are at this link at a time."""
        for _, suspects in self._of(link, links, now):
            if few := suspects.few:
                return suspects.some(min(room, few - sum(1 for attempt in link.attempts.values() if attempt.losses)), now)
        return []

    def _of(self, link: Link, links: Links, now: float) -> list[tuple[Key, Suspects]]:
        for key in [key for key, suspects in self._suspects.items() if not suspects]:
            del self._suspects[key]
        if not self._suspects:
            return []
        waiting = [(key, suspects) for key in link.keys if (suspects := self._suspects.get(key)) is not None]
        return [(key, suspects) for key, suspects in waiting if _may_try(link, links, key, suspects, now)]


def _may_try(link: Link, links: Links, key: Key, suspects: Suspects, now: float) -> bool:
    return links.may_try(link, key) or now - suspects.moved > _ANYWHERE_AFTER_SECONDS

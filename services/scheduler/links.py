"""All open links, by what they can serve."""

from __future__ import annotations

from collections.abc import Iterator

from haywain.clock import Clock
from services.scheduler.batch import Attempt, Batch, Key
from services.scheduler.breaker import Breakers
from services.scheduler.calls import Call
from services.scheduler.link import Link

__all__ = ["Links"]


class Links:
    """The links and what is out at them."""

    def __init__(self, clock: Clock) -> None:
        """No link is open."""
        self._clock = clock
        self._breakers = Breakers()
        self._all: set[Link] = set()
        self._by_key: dict[Key, set[Link]] = {}
        self.active = 0
        """Sequences sent to all of them and not ended."""

    def __iter__(self) -> Iterator[Link]:
        """Go through the links; they may change meanwhile."""
        return iter(list(self._all))

    @property
    def in_slots(self) -> int:
        """Count those of them that run."""
        return sum(link.in_slots for link in self._all)

    def connect(self, link: Link) -> None:
        """Take a link in."""
        link.breaker = self._breakers.of(link.engine, self._clock.monotonic())
        self._all.add(link)
        for key in link.keys:
            self._by_key.setdefault(key, set()).add(link)

    def disconnect(self, link: Link) -> None:
        """Take a link out; what it had in flight is the caller's to place."""
        self._all.discard(link)
        for key in link.keys:
            self._by_key[key].discard(link)
            if not self._by_key[key]:
                del self._by_key[key]
        self.active -= link.active

    def serves(self, key: Key) -> bool:
        """Tell whether an engine for a key is there, with or without credit."""
        return any(self.of(key))

    def waits(self, key: Key) -> float | None:
        """Tell in how many seconds the first engine for a key is tried again; None unless there are some, all quarantined."""
        now = self._clock.monotonic()
        waits = [link.breaker.until - now if link.breaker.quarantined else 0.0 for link in self.of(key)]
        return min(waits) if waits and min(waits) > 0 else None

    def spare(self, link: Link) -> bool:
        """Tell whether all that an engine serves is served by others that are not quarantined."""
        return all(any(other is not link and not other.breaker.quarantined for other in self.of(key)) for key in link.keys)

    def may_try(self, link: Link, key: Key) -> bool:
        """Tell whether a link is the right one for a row that may kill it: no other has been more stable."""
        return not link.breaker.shaky or all(other.breaker.shaky for other in self.of(key))

    def shares(self, key: Key) -> bool:
        """Tell whether an engine for a key reuses what rows that begin alike have in common."""
        return any(link.place(key) for link in self.of(key))

    def credits(self, key: Key) -> int:
        """Count what engines for a key would still take."""
        return sum(link.credits for link in self.of(key) if not link.breaker.quarantined)

    def of(self, key: Key) -> Iterator[Link]:
        """Go through those for a key that may be sent something."""
        return (link for link in self._by_key.get(key, ()) if link.ready and not link.draining)

    def wake(self, key: Key) -> None:
        """Have the links that could serve a key ask for work, those with most credit first."""
        for link in sorted(self._by_key.get(key, ()), key=lambda link: -link.credits):
            link.wake.set()

    def wake_all(self) -> None:
        """Have every link ask for work."""
        for link in self._all:
            link.wake.set()

    def give_up_batch(self, batch: Batch) -> None:
        """Cancel a batch's rows in flight; what their engines still say of them is dropped."""
        for link in self._all:
            for sequence_id in [number for number, attempt in link.attempts.items() if attempt.held.batch is batch]:
                link.give_up_row(sequence_id)

    def find(self, attempt: Attempt) -> tuple[Link, int] | None:
        """Tell where a row is in flight, and under which number."""
        for link in self._all:
            for sequence_id, running in link.attempts.items():
                if running is attempt:
                    return link, sequence_id
        return None

    def give_up_call(self, call: Call) -> None:
        """Cancel a call in flight."""
        for link in self._by_key.get(call.key, ()):
            for sequence_id in [number for number, running in link.calls.items() if running is call]:
                del link.calls[sequence_id]
                link.give_up(sequence_id)

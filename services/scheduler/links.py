"""All open links, by what they can serve."""

from __future__ import annotations

from collections.abc import Iterator

from services.scheduler.batch import Batch, Key
from services.scheduler.calls import Call
from services.scheduler.link import Link

__all__ = ["Links"]


class Links:
    """The links and what is out at them."""

    def __init__(self) -> None:
        """No link is open."""
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
        return any(link.ready and not link.draining for link in self._by_key.get(key, ()))

    def credits(self, key: Key) -> int:
        """Count what engines for a key would still take."""
        return sum(link.credits for link in self._by_key.get(key, ()) if not link.draining)

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

    def give_up_call(self, call: Call) -> None:
        """Cancel a call in flight."""
        for link in self._by_key.get(call.key, ()):
            for sequence_id in [number for number, running in link.calls.items() if running is call]:
                del link.calls[sequence_id]
                link.give_up(sequence_id)

"""Whose rows go next: lanes first, then a fair share between tenants, then new batches, then the earliest deadline. Integers only.

Inside a lane every tenant has a clock that advances by `rows / weight` as its rows are sent; the tenant whose clock is furthest
behind is next. One that comes back after a pause starts at the lane's present time: idle time is not saved up.

Of a tenant's batches those go first of which few rows were sent so far: a small batch doesn't wait for a large one to end. They
leave the others a quarter of the rows, so that no stream of small batches stops a large one.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping

__all__ = ["NEW_ROWS", "Turns"]

NEW_ROWS = 1_000
"""So many rows of a batch go before those of batches that had theirs."""
_NEW_SHARE = 3
"""Rows of new batches to one of the others, while there are both."""
_UNIT = 1_000_000
"""What one row costs a tenant of weight 1."""
_Key = tuple[int, int]
"""Deadline and number of a batch."""


class Turns:
    """The batches of one model that have rows to send."""

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        """`weights` by tenant, 1 where absent: a tenant of weight 2 gets twice the rows."""
        self._weights = weights or {}
        self._lanes: dict[int, _Lane] = {}
        self._where: dict[int, _Place] = {}

    def __len__(self) -> int:
        """Count the batches."""
        return len(self._where)

    def put(self, order: int, *, lane: int, tenant: str, deadline: int, sent: int = 0) -> None:
        """Add a batch of which `sent` rows were sent; `order` is its unique number, lower ones came first.

        Adding it again changes nothing.
        """
        if order in self._where:
            return
        place = self._where[order] = _Place(lane, tenant, (deadline, order), sent)
        self._lanes.setdefault(lane, _Lane()).put(place)

    def drop(self, order: int) -> None:
        """Take a batch out, if it is in."""
        place = self._where.pop(order, None)
        if place is not None:
            self._lanes[place.lane].drop(place)

    def lane(self) -> int | None:
        """Tell the first lane that has a batch."""
        return min((number for number, lane in self._lanes.items() if lane.queues), default=None)

    def next(self) -> int | None:
        """Tell whose turn it is, None when there is no batch."""
        number = self.lane()
        return None if number is None else self._lanes[number].next()

    def charge(self, order: int, rows: int) -> None:
        """Count rows that were sent for a batch."""
        place = self._where[order]
        self._lanes[place.lane].charge(place, rows, rows * _UNIT // self._weights.get(place.tenant, 1))


class _Place:
    """Where a batch is."""

    __slots__ = ("key", "lane", "sent", "tenant")

    def __init__(self, lane: int, tenant: str, key: _Key, sent: int) -> None:
        self.lane, self.tenant, self.key, self.sent = lane, tenant, key, sent

    @property
    def old(self) -> bool:
        """Tell whether it had the rows that go first."""
        return self.sent >= NEW_ROWS


class _Queue:
    """A tenant's batches of one lane: the new ones and the old ones, each by deadline."""

    def __init__(self) -> None:
        self._parts: tuple[list[_Key], list[_Key]] = ([], [])
        self._ahead = 0
        """Rows that the new ones had more than their share."""

    def __bool__(self) -> bool:
        return any(self._parts)

    def put(self, place: _Place) -> None:
        bisect.insort(self._parts[place.old], place.key)

    def drop(self, place: _Place) -> None:
        part = self._parts[place.old]
        del part[bisect.bisect_left(part, place.key)]

    def first(self) -> _Key:
        new, old = self._parts
        return old[0] if old and (not new or self._ahead > 0) else new[0]

    def charge(self, place: _Place, rows: int) -> None:
        if not all(self._parts):
            self._ahead = 0
        else:
            self._ahead += -rows * _NEW_SHARE if place.old else rows
        if not place.old and place.sent + rows >= NEW_ROWS:
            self.drop(place)
            place.sent += rows
            self.put(place)
        else:
            place.sent += rows


class _Lane:
    def __init__(self) -> None:
        self.queues: dict[str, _Queue] = {}
        self._clocks: dict[str, int] = {}
        self._now = 0

    def put(self, place: _Place) -> None:
        queue = self.queues.get(place.tenant)
        if queue is None:
            self._clocks[place.tenant] = max(self._clocks.get(place.tenant, 0), self._now)
            queue = self.queues[place.tenant] = _Queue()
        queue.put(place)

    def drop(self, place: _Place) -> None:
        queue = self.queues[place.tenant]
        queue.drop(place)
        if not queue:
            del self.queues[place.tenant]
            # A clock at or behind the lane's would be set to it at the tenant's return: nothing to remember.
            self._clocks = {name: at for name, at in self._clocks.items() if at > self._now or name in self.queues}

    def next(self) -> int:
        tenant = min(self.queues, key=lambda name: (self._clocks[name], self.queues[name].first()))
        return self.queues[tenant].first()[1]

    def charge(self, place: _Place, rows: int, cost: int) -> None:
        self._now = max(self._now, self._clocks[place.tenant])
        self._clocks[place.tenant] += cost
        self.queues[place.tenant].charge(place, rows)

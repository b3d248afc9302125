"""Whose rows go next: lanes first, then a fair share between tenants, then the earliest deadline. Integers only, no IO.

Inside a lane every tenant has a clock that advances by `rows / weight` as its rows are sent; the tenant whose clock is furthest
behind is next. One that comes back after a pause starts at the lane's present time: idle time is not saved up.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping

__all__ = ["Turns"]

_UNIT = 1_000_000
"""What one row costs a tenant of weight 1."""


class Turns:
    """The batches of one model that have rows to send."""

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        """`weights` by tenant, 1 where absent: a tenant of weight 2 gets twice the rows."""
        self._weights = weights or {}
        self._lanes: dict[int, _Lane] = {}
        self._where: dict[int, tuple[int, str, tuple[int, int]]] = {}

    def __len__(self) -> int:
        """Count the batches."""
        return len(self._where)

    def put(self, order: int, *, lane: int, tenant: str, deadline: int) -> None:
        """Add a batch; `order` is its unique number, lower ones came first. Adding it again changes nothing."""
        if order in self._where:
            return
        key = (deadline, order)
        self._where[order] = (lane, tenant, key)
        self._lanes.setdefault(lane, _Lane()).put(tenant, key)

    def drop(self, order: int) -> None:
        """Take a batch out, if it is in."""
        found = self._where.pop(order, None)
        if found is not None:
            lane, tenant, key = found
            self._lanes[lane].drop(tenant, key)

    def lane(self) -> int | None:
        """Tell the first lane that has a batch."""
        return min((number for number, lane in self._lanes.items() if lane.queues), default=None)

    def next(self) -> int | None:
        """Tell whose turn it is, None when there is no batch."""
        number = self.lane()
        return None if number is None else self._lanes[number].next()

    def charge(self, order: int, rows: int) -> None:
        """Count rows that were sent for a batch."""
        lane, tenant, _ = self._where[order]
        self._lanes[lane].charge(tenant, rows * _UNIT // self._weights.get(tenant, 1))


class _Lane:
    def __init__(self) -> None:
        self.queues: dict[str, list[tuple[int, int]]] = {}
        self._clocks: dict[str, int] = {}
        self._now = 0

    def put(self, tenant: str, key: tuple[int, int]) -> None:
        queue = self.queues.get(tenant)
        if queue is None:
            self._clocks[tenant] = max(self._clocks.get(tenant, 0), self._now)
            queue = self.queues[tenant] = []
        bisect.insort(queue, key)

    def drop(self, tenant: str, key: tuple[int, int]) -> None:
        queue = self.queues[tenant]
        del queue[bisect.bisect_left(queue, key)]
        if not queue:
            del self.queues[tenant]
            # A clock at or behind the lane's would be set to it at the tenant's return: nothing to remember.
            self._clocks = {name: at for name, at in self._clocks.items() if at > self._now or name in self.queues}

    def next(self) -> int:
        tenant = min(self.queues, key=lambda name: (self._clocks[name], self.queues[name][0]))
        return self.queues[tenant][0][1]

    def charge(self, tenant: str, cost: int) -> None:
        self._now = max(self._now, self._clocks[tenant])
        self._clocks[tenant] += cost

"""Which sequences are too late, found without a timer each."""

from __future__ import annotations

import heapq
from collections.abc import Container

__all__ = ["Deadlines"]


class Deadlines:
    """A heap of instants. Ended sequences stay in it until they are due or the heap is mostly theirs."""

    def __init__(self, alive: Container[int]) -> None:
        """`alive` holds the ids that haven't ended; ids never come again."""
        self._alive = alive
        self._heap: list[tuple[float, int]] = []
        self._compact_at = 1_024

    def __len__(self) -> int:
        """Count what is kept, ended sequences too."""
        return len(self._heap)

    def add(self, when: float, sequence_id: int) -> None:
        """Watch a sequence."""
        heapq.heappush(self._heap, (when, sequence_id))
        if len(self._heap) >= self._compact_at:
            self._heap = [entry for entry in self._heap if entry[1] in self._alive]
            heapq.heapify(self._heap)
            self._compact_at = max(1_024, 2 * len(self._heap))

    def due(self, now: float) -> list[int]:
        """Take out what is alive and due, earliest first."""
        late = []
        while self._heap and self._heap[0][0] <= now:
            _, sequence_id = heapq.heappop(self._heap)
            if sequence_id in self._alive:
                late.append(sequence_id)
        return late

    def next(self) -> float | None:
        """Tell the next instant to look at, None for never."""
        while self._heap and self._heap[0][1] not in self._alive:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

"""Who holds which cells of a KV cache that all slots share: counted here as the library does, so that it is asked for room before.

A cell that several slots hold, a prefix they share, counts once and is free when the last of them lets go.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["Cells"]


class Cells:
    """The cells of one cache. The numbers are ours; where the library puts a token doesn't matter."""

    def __init__(self, total: int, slots: int) -> None:
        """Start with all of them free."""
        self.total = total
        self._held = [np.empty(0, np.int32) for _ in range(slots)]
        self._holders = np.zeros(total, np.int32)
        self._free: npt.NDArray[np.int32] = np.arange(total, dtype=np.int32)

    @property
    def free(self) -> int:
        """How many nobody holds."""
        return len(self._free)

    def used_by(self, slots: Iterable[int]) -> int:
        """Count the cells that any of these slots holds."""
        held = [self._held[slot] for slot in slots]
        return len(np.unique(np.concatenate(held))) if held else 0

    def grow(self, slot: int, count: int) -> None:
        """Give a slot more cells. Raises ValueError when there are too few."""
        if count > len(self._free):
            raise ValueError(f"{count} cells are wanted, but {len(self._free)} are free")
        taken, self._free = self._free[:count], self._free[count:]
        self._holders[taken] = 1
        self._held[slot] = np.concatenate([self._held[slot], taken])

    def cut(self, slot: int, keep: int) -> None:
        """Take a slot's cells away from `keep` on."""
        dropped, self._held[slot] = self._held[slot][keep:], self._held[slot][:keep]
        self._holders[dropped] -= 1
        self._free = np.concatenate([self._free, dropped[self._holders[dropped] == 0]])

    def share(self, source: int, target: int, keep: int) -> None:
        """Let a slot hold the first `keep` cells of another one, in place of its own."""
        self.cut(target, 0)
        self._held[target] = self._held[source][:keep].copy()
        self._holders[self._held[target]] += 1

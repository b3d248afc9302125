"""How many requests a server gets at a time: found by trying (AIMD), never above a maximum.

    an answer comes while all places are taken → one place more, once as many answers came as there are places
    the server says that it has too much to do → a share of the places, once for all requests that were out together

Times are none here: only counts.
"""

from __future__ import annotations

__all__ = ["Width"]


class Width:
    """A number of places. An epoch ends each time that it gets smaller."""

    def __init__(self, most: int, first: int) -> None:
        """At most `most`, at least one; `first` to begin with."""
        self._most = most
        self.limit = first
        self.epoch = 0
        self._answers = 0  # since the last place was added

    def answered(self, *, full: bool) -> bool:
        """Note a good answer, `full`: while all places were taken; whether there is a place more now."""
        if self.limit >= self._most or not full:
            return False
        self._answers += 1
        if self._answers < self.limit:
            return False
        self._answers = 0
        self.limit += 1
        return True

    def busy(self, epoch: int, left: float) -> bool:
        """Note that a request which was sent in `epoch` was one too many: `left` places stay; whether it counts."""
        if epoch != self.epoch:
            return False
        self.epoch += 1
        self._answers = 0
        self.limit = max(1, int(left))
        return True

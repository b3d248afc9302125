"""What is counted, claimed and committed: rows and tokens, a shard with its epoch, a piece of results."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

__all__ = ["Claimed", "Lease", "Segment", "Tally"]

Lease = tuple[str, int, int]
"""Batch, shard and epoch: what everything that its holder writes is fenced by."""


@dataclass(slots=True)
class Tally:
    """Rows by outcome, and tokens."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def add(self, other: Tally) -> None:
        """Add another's figures."""
        self.completed += other.completed
        self.failed += other.failed
        self.input_tokens += other.input_tokens
        self.cached_tokens += other.cached_tokens
        self.output_tokens += other.output_tokens
        self.reasoning_tokens += other.reasoning_tokens

    @property
    def rows(self) -> int:
        """Count the rows."""
        return self.completed + self.failed


class Claimed(msgspec.Struct, frozen=True):
    """A shard that was claimed."""

    shard: int
    rows: range
    epoch: int
    start_time: float | None = None
    """When the batch started; None where who claimed it knew."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A synced piece of a shard's results: lines of `object` from `start_byte` to `end_byte`, where others' may be as well."""

    batch_id: str
    shard: int
    epoch: int
    seq: int
    object: str
    start_byte: int
    end_byte: int
    tally: Tally
    done: bool
    """The shard has no row left."""

    @property
    def lease(self) -> Lease:
        """What it is fenced by."""
        return self.batch_id, self.shard, self.epoch

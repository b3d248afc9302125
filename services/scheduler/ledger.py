"""Where results are recorded, and from when on a row counts as recorded. There are two ledgers:

    JournalLedger   one scheduler: a file a batch; a row is recorded when its line is synced; segments in SQL are checkpoints
    SegmentLedger   several: a file a lease; a row is recorded when the segment with its line is committed, by who has the lease

A submission says which one has it. A ledger knows of files and SQL; which rows run, and when, is others' business.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from services.scheduler.batch import Batch, Held
from services.scheduler.journal import Journal
from services.scheduler.pieces import Piece
from services.scheduler.segment import Claimed, Lease, Segment, Tally
from services.scheduler.store import Stored

__all__ = ["Ledger", "Opened"]


class Opened(msgspec.Struct, kw_only=True):
    """What is recorded of a batch."""

    recorded: bytearray
    """By row: 0 not recorded, or not known to be before its shard is held; 1 completed; 2 failed."""
    tally: Tally
    open_shards: dict[str, int]
    """By model, how many have rows left."""
    journal: Journal | None = None
    """The batch's, where it has one."""


class Ledger(Protocol):
    """Records results."""

    @property
    def name(self) -> str:
        """What a submission calls it."""

    async def open(self, stored: Stored) -> Opened:
        """Find out what is recorded of a batch."""

    async def hold(self, batch: Batch, claimed: Claimed) -> Journal:
        """Give the file for the results of a shard that was claimed, once it is known which of its rows are recorded."""

    def synced(self, held: Held, tally: Tally) -> None:
        """Take note of lines of a shard that are on the disk."""

    def segments(self, batch: Batch) -> list[tuple[Held, Segment]]:
        """Cut what is on the disk and not committed into segments; each is made once."""

    async def commit(self, segments: Sequence[Segment]) -> list[Lease]:
        """Commit segments; answers the leases that are lost. Repeating it changes nothing."""

    async def committed(self) -> None:
        """Do what is due after segments were committed."""

    def journals(self, batch: Batch) -> list[Journal]:
        """List the files that are written for a batch now."""

    async def results(self, batch_id: str, batch: Batch | None) -> list[Piece]:
        """Tell where the lines recorded so far are, in an order that only grows at its end.

        `batch` is None when it is forgotten. Raises BatchMissing.
        """

    async def start_over(self, batch: Batch) -> bool:
        """Forget what was recorded of a batch and is on the disk no more; False when all of it is there.

        Its rows have all ended, and no stop has ended them.
        """

    async def seal_turn(self, batch: Batch) -> int:
        """Wait until this scheduler may seal a batch, alone; gives the number of its turn, 0 when the batch is sealed by now.

        Raises BatchMissing when it was forgotten meanwhile.
        """

    async def keep_turn(self, batch: Batch, turn: int) -> None:
        """Keep the turn, until cancelled."""

    async def sealed(self, batch: Batch, turn: int, sealed: str) -> str:
        """Remember what was sealed, JSON; gives what is remembered, which is another's when the turn was lost."""

    async def forget(self, batch: Batch) -> None:
        """Prepare for a batch's rows in SQL to go; its results can be read for a while yet."""

    async def sweep(self, known: Collection[str], older_than: float) -> None:
        """Remove results of batches that are not known, last changed before a Unix time."""

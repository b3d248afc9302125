"""The ledger of a scheduler that is alone: a journal a batch, in which a row is recorded when its line is synced.

Segments are checkpoints: all of one span the same bytes of the journal, so the sums over a batch's segments are its totals up to
the last of these bytes, and a restart reads tokens from the journal behind it only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import msgspec

from haywain import crash, log
from haywain.gather import gathered_on
from services.scheduler import forgotten
from services.scheduler.batch import Batch, Held
from services.scheduler.journal import Journal
from services.scheduler.leases import Leases
from services.scheduler.ledger import Opened
from services.scheduler.pieces import Piece
from services.scheduler.replay import Replay, replay, row_prefix
from services.scheduler.segment import Claimed, Lease, Segment, Tally
from services.scheduler.store import ShardRow, Store, Stored

__all__ = ["JournalLedger"]

_log = log.get()


class JournalLedger:
    """A `Ledger`."""

    name = "journal"

    def __init__(self, leases: Leases, store: Store, folder: Path) -> None:
        """Journals are in `folder`."""
        self._leases = leases
        self._store = store
        self._folder = folder
        self._thread = gathered_on(None, at_once=2)

    async def open(self, stored: Stored) -> Opened:
        """Read the journal."""
        terms = stored.submission
        path, prefix = self._path(terms.batch_id), row_prefix(terms.batch_id)
        firsts = [shard.first_row for shard in stored.shards]
        found: Replay = await self._thread(partial(replay, path, prefix, terms.row_count, stored.end_byte, firsts))
        if found.end < stored.end_byte or any(shard.state == 2 and not _done(shard, found) for shard in stored.shards):
            _log.error("journal.lost", batch_id=terms.batch_id, committed=stored.end_byte, found=found.end)
            await self._leases.start_over(terms.batch_id)
            shards = [msgspec.structs.replace(shard, state=0) for shard in stored.shards]
            stored = msgspec.structs.replace(stored, shards=shards, tally=Tally(), end_byte=0)
            found = await self._thread(partial(replay, path, prefix, terms.row_count, 0, firsts))
        tally = stored.tally
        for news in found.tail.values():
            tally.add(news)
        tally.completed, tally.failed = found.recorded.count(1), found.recorded.count(2)
        journal = Journal(path, found.end)
        if _size(path) > stored.end_byte:  # else all of it is committed, and so synced
            await self._thread(journal.make_sure)
        await self._recover(stored, found)
        journal.committed = found.end
        open_shards: dict[str, int] = {}
        for shard in stored.shards:
            if not _done(shard, found):
                open_shards[shard.model] = open_shards.get(shard.model, 0) + 1
        return Opened(recorded=found.recorded, tally=tally, open_shards=open_shards, journal=journal)

    async def hold(self, batch: Batch, claimed: Claimed) -> Journal:
        """Give the batch's."""
        if batch.journal is None:
            raise ValueError("a batch of another ledger")
        return batch.journal

    def synced(self, held: Held, tally: Tally) -> None:
        """Count it: it is recorded."""
        held.batch.count(tally)

    def segments(self, batch: Batch) -> list[tuple[Held, Segment]]:
        """Make a checkpoint."""
        journal = batch.journal
        news = [held for held in batch.held.values() if held.has_news]
        if journal is None or not news:
            return []
        start, journal.committed = journal.committed, journal.end
        return [(held, held.segment(start)) for held in news]

    async def commit(self, segments: Sequence[Segment]) -> list[Lease]:
        """Commit them."""
        return await self._leases.commit(segments)

    async def committed(self) -> None:
        """Do nothing more."""

    def journals(self, batch: Batch) -> list[Journal]:
        """List the one."""
        return [batch.journal] if batch.journal is not None else []

    async def results(self, batch_id: str, batch: Batch | None) -> list[Piece]:
        """Point at the journal, which outlives the batch for a while."""
        if batch is not None and batch.journal is not None:
            return [Piece(str(batch.journal.path), 0, batch.journal.end, whole=False)]
        return await asyncio.to_thread(forgotten.results, self._folder, batch_id)

    async def start_over(self, batch: Batch) -> bool:
        """Have the journal read back: `open` finds out what is left."""
        if batch.journal is None or _size(batch.journal.path) >= batch.journal.end:
            return False
        await self._leases.start_over(batch.batch_id)
        return True

    async def seal_turn(self, batch: Batch) -> int:
        """Nobody else could."""
        return 1

    async def keep_turn(self, batch: Batch, turn: int) -> None:
        """Nobody takes it."""

    async def sealed(self, batch: Batch, turn: int, sealed: str) -> str:
        """Remember it."""
        await self._store.seal(batch.batch_id, sealed)
        return sealed

    async def forget(self, batch: Batch) -> None:
        """Have the journal stay for a while from now on."""
        if batch.journal is not None:
            batch.journal.close()
            await self._thread(partial(_touch, batch.journal.path))

    async def sweep(self, known: Collection[str], older_than: float) -> None:
        """Remove journals."""
        for path in await asyncio.to_thread(forgotten.left_over, self._folder, known, older_than):
            await asyncio.to_thread(forgotten.remove, path)

    def _path(self, batch_id: str) -> Path:
        return self._folder / f"{batch_id}.jsonl"

    async def _recover(self, stored: Stored, found: Replay) -> None:
        """Commit what an earlier life recorded without a segment."""
        batch_id, segments = stored.submission.batch_id, []
        for at, shard in enumerate(stored.shards):
            done = _done(shard, found)
            if shard.state != 2 and (done or at in found.tail):
                segments.append(
                    Segment(
                        batch_id=batch_id, shard=shard.shard, epoch=0, seq=0, object=f"{batch_id}.jsonl",
                        start_byte=stored.end_byte, end_byte=found.end, tally=found.tail.get(at, Tally()), done=done,
                    )
                )  # fmt: skip
        if segments:
            await self._leases.recover(segments)
            crash.point("scheduler:recovered")


def _done(shard: ShardRow, found: Replay) -> bool:
    return not found.recorded.count(0, shard.first_row, shard.first_row + shard.row_count)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _touch(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)

"""The ledger of several schedulers: a file a lease, in which a row is recorded when the segment that holds its line is committed.

    {data}/incremental/{batch_id}/{shard}-{epoch}.jsonl

Nobody reads what isn't committed. An owner that was paused past its lease can write on, to a file of its own, and commit nothing;
the next owner learns from the committed segments which rows are recorded, and runs the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

from haywain import errors, log
from services.scheduler import forgotten
from services.scheduler.batch import Batch, Held
from services.scheduler.journal import Journal
from services.scheduler.ledger import Opened
from services.scheduler.pieces import Piece, Pieces, intact
from services.scheduler.replay import outcomes
from services.scheduler.segment import Claimed, Lease, Segment, Tally
from services.scheduler.shared import Shared, Span
from services.scheduler.store import Stored

__all__ = ["SegmentLedger"]

_TURN_SECONDS = 0.2
_log = log.get()


class SegmentLedger:
    """A `Ledger`."""

    name = "segments"

    def __init__(self, shared: Shared, folder: Path, lease_seconds: float) -> None:
        """Files are in `folder`, a folder a batch."""
        self._shared = shared
        self._folder = folder
        self._lease_seconds = lease_seconds
        self.look: Callable[[], Awaitable[None]] | None = None
        """Called when there is something new in SQL."""

    async def open(self, stored: Stored) -> Opened:
        """Take what SQL says. Which rows are recorded nobody needs to know before a shard is held."""
        open_shards: dict[str, int] = {}
        for shard in stored.shards:
            if shard.state != 2:
                open_shards[shard.model] = open_shards.get(shard.model, 0) + 1
        return Opened(recorded=bytearray(stored.submission.row_count), tally=stored.tally, open_shards=open_shards)

    async def hold(self, batch: Batch, claimed: Claimed) -> Journal:
        """Read what earlier owners committed: from now on they can commit nothing."""
        rows = claimed.rows
        spans = await self._shared.spans(batch.batch_id, claimed.shard) if claimed.epoch > 1 else []
        if spans and (lost := await asyncio.to_thread(self._lost, batch.batch_id, spans)):
            await self._shared.lose(batch.batch_id, lost, claimed.epoch)
            spans = [span for span in spans if span.object not in lost]
        lines = Pieces(self._pieces(batch.batch_id, spans)).lines()
        batch.recorded[rows.start : rows.stop] = await asyncio.to_thread(outcomes, lines, batch.prefix, rows)
        return Journal(self._folder / batch.batch_id / f"{claimed.shard}-{claimed.epoch}.jsonl", 0)

    def synced(self, held: Held, tally: Tally) -> None:
        """Wait for the commit."""

    def segments(self, batch: Batch) -> list[tuple[Held, Segment]]:
        """Make one for each shard with news."""
        pieces: list[tuple[Held, Segment]] = []
        if batch.stop_reason:
            return pieces
        for held in batch.held.values():
            if held.has_news:
                pieces.append((held, held.segment(held.journal.committed)))
                held.journal.committed = held.journal.end
        return pieces

    async def commit(self, segments: Sequence[Segment]) -> list[Lease]:
        """Commit them."""
        return await self._shared.commit(segments)

    async def committed(self) -> None:
        """Count what SQL counts."""
        if self.look is not None:
            await self.look()

    def journals(self, batch: Batch) -> list[Journal]:
        """List those of the shards that are held."""
        return [held.journal for held in batch.held.values()]

    async def results(self, batch_id: str, batch: Batch | None) -> list[Piece]:
        """Point at what is committed, in the order of the commits."""
        if spans := await self._shared.spans(batch_id):
            return self._pieces(batch_id, spans)
        try:
            return await asyncio.to_thread(forgotten.results, self._folder, batch_id)
        except errors.BatchMissing:
            if batch is None:
                raise
            return []  # nothing is recorded yet

    async def start_over(self, batch: Batch) -> bool:
        """Open the shards again whose files are lost, for whoever claims them."""
        spans = await self._shared.spans(batch.batch_id)
        lost = await asyncio.to_thread(self._lost, batch.batch_id, spans)
        if lost:
            await self._shared.lose(batch.batch_id, lost)
            await self.committed()
        return bool(lost)

    async def seal_turn(self, batch: Batch) -> int:
        """Take the turn when nobody has it any more."""
        while True:
            turn, sealed = await self._shared.take_turn(batch.batch_id, batch.submission.sealed)
            if turn or sealed != batch.submission.sealed:
                return turn
            await asyncio.sleep(_TURN_SECONDS)

    async def keep_turn(self, batch: Batch, turn: int) -> None:
        """Keep it at a third of a lease's length."""
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            try:
                await self._shared.keep_turn(batch.batch_id, turn)
            except errors.HaywainError as error:
                _log.error("turn.not_kept", batch_id=batch.batch_id, error=str(error))

    async def sealed(self, batch: Batch, turn: int, sealed: str) -> str:
        """Remember it, if the turn is not lost."""
        return await self._shared.seal(batch.batch_id, turn, sealed)

    async def forget(self, batch: Batch) -> None:
        """Write down the order of the results."""
        pieces = self._pieces(batch.batch_id, await self._shared.spans(batch.batch_id))
        await asyncio.to_thread(forgotten.keep, self._folder, batch.batch_id, pieces)

    async def sweep(self, known: Collection[str], older_than: float) -> None:
        """Remove results."""
        for path in await asyncio.to_thread(forgotten.left_over, self._folder, known, older_than):
            if not await self._shared.exists(path.name.removesuffix(".jsonl")):
                await asyncio.to_thread(forgotten.remove, path)

    def _lost(self, batch_id: str, spans: Sequence[Span]) -> set[str]:
        """Name the files of which something committed isn't there. Raises Unavailable where the folder isn't: that is no loss."""
        if spans and not self._folder.is_dir():
            raise errors.Unavailable(f"{self._folder} isn't there", retry_after=1)
        pieces = [Piece(str(self._folder / batch_id / span.object), span.start_byte, span.end_byte) for span in spans]
        whole = set(intact(pieces))
        return {span.object for span, piece in zip(spans, pieces, strict=True) if piece.end > piece.start and piece not in whole}

    def _pieces(self, batch_id: str, spans: Sequence[Span]) -> list[Piece]:
        folder, pieces = self._folder / batch_id, list[Piece]()
        for span in spans:
            piece = Piece(str(folder / span.object), span.start_byte, span.end_byte)
            if pieces and (pieces[-1].path, pieces[-1].end) == (piece.path, piece.start):
                piece = Piece(piece.path, pieces.pop().start, piece.end)
            pieces.append(piece)
        return pieces

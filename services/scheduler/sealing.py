"""Making a sealed batch's files blobs, and remembering them. Sealing twice gives the same; two callers share one run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import msgspec

from haywain import crash, errors
from haywain.blobs import BlobStore, mapped
from haywain.scheduler.v1 import scheduler_pb2 as pb
from services.scheduler import figures
from services.scheduler.batch import Batch
from services.scheduler.ledger import Ledger
from services.scheduler.pieces import Piece, intact
from services.scheduler.progress import counts, usage
from services.scheduler.seal import Plan, Sealed
from services.scheduler.sealer import Sealer

__all__ = ["Sealing", "keys_of_lost_turns"]

_FEW = 8
"""Files that are looked at without a thread."""
_UNRUN: dict[int, tuple[str, str]] = {
    pb.StopBatchRequest.REASON_CANCELLED: ("batch_cancelled", "This request was not executed: the batch was cancelled."),
    pb.StopBatchRequest.REASON_EXPIRED: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    pb.StopBatchRequest.REASON_FAILED: ("batch_failed", "This request was not executed: the batch failed."),
}


class _Both(msgspec.Struct, frozen=True):
    output: Sealed
    error: Sealed
    turn: int = 1
    """In which turn it was written: each has keys of its own, so that whoever lost its turn replaces nothing."""

    def key(self, kind: str, batch: Batch) -> str:
        return _key(kind, batch.batch_id, self.turn)


class Sealing:
    """Seals batches."""

    def __init__(self, ledger: Ledger, blobs: BlobStore) -> None:
        """The sealing process starts when it is first needed."""
        self._ledger = ledger
        self._blobs = blobs
        self._sealer = Sealer()
        self._running: dict[str, asyncio.Task[_Both]] = {}
        self.run_again: Callable[[Batch], Awaitable[bool]] | None = None
        """Called with a batch before it is sealed: has rows run again whose results are lost, and tells whether there are any."""

    async def seal(self, batch: Batch) -> pb.SealBatchResponse:
        """Seal a batch that ended. Raises StorageFull, Unavailable."""
        both = await self._known(batch) or await self._joined(batch)
        tally = batch.tally
        tally.completed, tally.failed = both.output.lines, both.error.lines - batch.submission.rejected_count
        return pb.SealBatchResponse(
            output=_message(both.key("output", batch), both.output),
            error=_message(both.key("error", batch), both.error),
            counts=counts(batch.submission, tally),
            usage=usage(tally),
        )

    def warm(self) -> None:
        """Start the process in advance."""
        self._sealer.warm()

    def close(self) -> None:
        """End the process."""
        for running in self._running.values():
            running.cancel()
        self._sealer.close()

    async def _known(self, batch: Batch) -> _Both | None:
        if not batch.submission.sealed:
            return None
        both = msgspec.json.decode(batch.submission.sealed, type=_Both)
        for kind, sealed in (("output", both.output), ("error", both.error)):
            if sealed.lines and await self._blobs.size(both.key(kind, batch)) != sealed.size:
                return None
        return both

    async def _joined(self, batch: Batch) -> _Both:
        running = self._running.get(batch.batch_id)
        if running is None:
            running = self._running[batch.batch_id] = asyncio.create_task(self._seal(batch))
            running.add_done_callback(lambda _: self._running.pop(batch.batch_id, None))
        return await asyncio.shield(running)  # a caller that leaves does not stop it

    async def _seal(self, batch: Batch) -> _Both:
        if not batch.stop_reason and self.run_again is not None and await self.run_again(batch):
            raise errors.Conflict(f"Results of batch '{batch.batch_id}' were lost from the disk: their rows run again.")
        turn = await self._ledger.seal_turn(batch)
        if not turn:
            await self._ledger.committed()
            if (known := await self._known(batch)) is None:
                raise errors.Unavailable(f"Batch '{batch.batch_id}' is being sealed elsewhere.", retry_after=1)
            return known
        keeping = asyncio.create_task(self._ledger.keep_turn(batch, turn))
        try:
            return await self._seal_in_turn(batch, turn)
        finally:
            keeping.cancel()

    async def _seal_in_turn(self, batch: Batch, turn: int) -> _Both:
        terms = batch.submission
        output, error = self._blobs.scratch(), self._blobs.scratch()
        results, lost = await self._results(batch)
        rejected = str(await self._blobs.local(terms.rejected_key)) if terms.rejected_key else ""
        plan = Plan(
            input=str(batch.input.path), index=batch.index, results=results,
            prefix=batch.prefix, row_count=terms.row_count, models=batch.models,
            unrun=_unrun(batch, lost),
            rejected=rejected, output=str(output), error=str(error),
        )  # fmt: skip
        try:
            with mapped(f"sealing {batch.batch_id}"), figures.SEAL_SECONDS.time():
                both = _Both(*await self._sealer.seal(plan), turn)
            crash.point("scheduler:sealed")
            for path, kind, sealed in ((output, "output", both.output), (error, "error", both.error)):
                if sealed.lines:
                    await self._blobs.publish(path, both.key(kind, batch))
                    crash.point("scheduler:sealed-blob-stored")
        except BaseException as failure:
            await asyncio.to_thread(_remove, output, error)
            if isinstance(failure, BrokenProcessPool):
                raise errors.Unavailable("the sealing process died", retry_after=1) from failure
            raise
        sealed_json = msgspec.json.encode(both).decode()
        try:
            remembered = await self._ledger.sealed(batch, turn, sealed_json)
        except errors.BatchMissing:  # the turn was lost so long ago that nobody will look for what is left of it
            await self._drop_turn(batch, turn)
            raise
        crash.point("scheduler:seal-recorded")
        batch.submission = msgspec.structs.replace(batch.submission, sealed=remembered)
        return msgspec.json.decode(remembered, type=_Both)

    async def _results(self, batch: Batch) -> tuple[tuple[Piece, ...], bool]:
        """Find what is recorded and still there, and whether some is lost. Raises Unavailable when its rows are to run again."""
        recorded = await self._ledger.results(batch.batch_id, batch)
        there = await asyncio.to_thread(intact, recorded) if len(recorded) > _FEW else intact(recorded)
        lost = sum(piece.end - piece.start for piece in there) < sum(piece.end - piece.start for piece in recorded)
        if lost and not batch.stop_reason:
            raise errors.Unavailable(f"Results of batch '{batch.batch_id}' were lost just now.", retry_after=1)
        return tuple(there), lost

    async def _drop_turn(self, batch: Batch, turn: int) -> None:
        for kind in ("output", "error"):
            await self._blobs.delete(_key(kind, batch.batch_id, turn))


def keys_of_lost_turns(batch_id: str, sealed: str) -> list[str]:
    """Name the blobs that may be left of turns before the one in which a batch was `sealed`."""
    turn = msgspec.json.decode(sealed, type=_Both).turn if sealed else 1
    return [_key(kind, batch_id, lost) for lost in range(1, turn) for kind in ("output", "error")]


def _key(kind: str, batch_id: str, turn: int) -> str:
    return f"{kind}-{batch_id}" + (f"-{turn}" if turn > 1 else "")


def _unrun(batch: Batch, lost: bool) -> tuple[str, str]:
    """Say what became of rows without a result; of a batch that was stopped some may have had one, which is lost."""
    code, message = _UNRUN.get(batch.stop_reason, _UNRUN[pb.StopBatchRequest.REASON_FAILED])
    return code, f"{message} Or it was, and its result was lost from the disk." if lost else message


def _message(key: str, sealed: Sealed) -> pb.SealedBlob | None:
    if not sealed.lines:
        return None
    return pb.SealedBlob(blob_key=key, size_bytes=sealed.size, line_count=sealed.lines, sha256=sealed.sha256)


def _remove(*paths: Path) -> None:
    for path in paths:
        if os.path.lexists(path):
            path.unlink()

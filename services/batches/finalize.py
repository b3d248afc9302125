"""From a batch whose rows have ended to its terminal status, and to nothing left of it elsewhere.

    StopBatch ──▶ SealBatch ──▶ AdoptBlob, twice ──▶ one SQL statement ──▶ ForgetBatch, ReleaseBlob
    (unless all rows ended by themselves)

Each step can be repeated after a kill: sealing writes the same blobs, adopting answers the same files by its request id. Status,
file ids, counts and usage become visible together, by the one statement.
"""

from __future__ import annotations

from haywain import crash, log
from haywain.files.v1 import files_pb2
from haywain.scheduler.v1 import scheduler_pb2
from services.batches.lifecycle import Status
from services.batches.own_files import OwnFiles
from services.batches.peers import Files, Scheduler
from services.batches.progress import ProgressBook, counts_of, tokens_of
from services.batches.record import Record
from services.batches.store import BatchStore

__all__ = ["Finalizer"]

_log = log.get()
_REASONS = {
    Status.CANCELLED: scheduler_pb2.StopBatchRequest.REASON_CANCELLED,
    Status.EXPIRED: scheduler_pb2.StopBatchRequest.REASON_EXPIRED,
}


class Finalizer:
    """Ends batches."""

    def __init__(self, store: BatchStore, files: Files, scheduler: Scheduler, own_files: OwnFiles, book: ProgressBook) -> None:
        """Holds nothing of its own."""
        self._store = store
        self._files = files
        self._scheduler = scheduler
        self._own_files = own_files
        self._book = book

    async def stop(self, record: Record, outcome: Status) -> bool:
        """Stop a batch's rows; False when some are still on their way out. Raises BatchMissing."""
        if not self._book.has_ended(record.batch_id):
            self._book.note([await self._scheduler.stop(record.batch_id, _REASONS[outcome])])
            crash.point("batches:stopped")
        return self._book.has_ended(record.batch_id)

    async def finish(self, record: Record, outcome: Status) -> Record | None:
        """Make the files and the terminal status; the batch with it, None when somebody changed its status meanwhile.

        Raises BatchMissing, Unavailable, to be tried again.
        """
        sealed = await self._scheduler.seal(record.batch_id, record.counts.total)
        crash.point("batches:sealed")
        counts = counts_of(sealed.counts)
        if counts.completed + counts.failed != counts.total:
            _log.error("batch.counts_differ", batch_id=record.batch_id, counts=str(counts))
        output_file_id = await self._adopt(record, sealed.output, "output")
        crash.point("batches:output-adopted")
        error_file_id = await self._adopt(record, sealed.error, "error")
        crash.point("batches:both-adopted")
        moved = await self._store.move(
            record.batch_id,
            outcome,
            counts=counts,
            usage=tokens_of(sealed),
            output_file_id=output_file_id,
            error_file_id=error_file_id,
            in_progress_at=self._book.started_at(record.batch_id),
        )
        crash.point("batches:ended")
        if moved is not None:
            _log.info(
                "batch.ended", batch_id=record.batch_id, status=outcome.value, completed=counts.completed, failed=counts.failed
            )
        return moved

    async def adopt_own(self, record: Record) -> None:
        """Make files of what the batch brought with it, when its creation didn't come to that."""
        await self._own_files.adopt(record)

    async def settle(self, record: Record) -> None:
        """Let the scheduler and files forget a terminal batch."""
        await self._scheduler.forget(record.batch_id)  # one without a plan, too: it may have been handed a lease
        crash.point("batches:forgotten")
        await self._own_files.forget(record)
        crash.point("batches:released")
        await self._store.settle(record.batch_id)

    async def _adopt(self, record: Record, blob: scheduler_pb2.SealedBlob, kind: str) -> str:
        if not blob.line_count:
            return ""
        request = files_pb2.AdoptBlobRequest(
            request_id=f"{record.batch_id}-{kind}",
            tenant=record.tenant,
            blob_key=blob.blob_key,
            filename=f"batch_{kind}_{record.batch_id}.jsonl",
            purpose="batch_output",
            size_bytes=blob.size_bytes,
            line_count=blob.line_count,
            sha256=blob.sha256,
            expires_after_seconds=record.output_expires_after_seconds,
        )
        return await self._files.adopt(request)

"""Files that a batch brings with it: input lines that came with the creation, and error lines of records that it rejected.

Their ids are chosen, and their blobs written, before the batch is recorded; files hears of them only afterwards. So a creation that
dies leaves no file, and a batch whose service dies right after its creation gets its files from the driver. What does stay of a
creation that came to nothing (blobs under the batch's id, a hold on its input) is found by its intent and cleared.
"""

from __future__ import annotations

import contextlib
import hashlib

from haywain import crash, errors, ids
from haywain.blobs import BlobStore
from haywain.files.v1 import files_pb2
from services.batches.faults import Rejects
from services.batches.peers import Files
from services.batches.record import OwnFile, Record
from services.batches.store import BatchStore

__all__ = ["OwnFiles", "index_key", "rejected_key"]


def index_key(batch_id: str) -> str:
    """Name the blob of a batch's index."""
    return f"index-{batch_id}"


def rejected_key(batch_id: str) -> str:
    """Name the blob of error lines of a batch's rejected lines."""
    return f"rejected-{batch_id}"


def _inline_key(batch_id: str) -> str:
    return f"inline-{batch_id}"


class OwnFiles:
    """Makes them, and clears what a creation left."""

    def __init__(self, store: BatchStore, files: Files, blobs: BlobStore, input_expires_after_seconds: int) -> None:
        """Inline inputs live as long as other inputs do."""
        self._store = store
        self._files = files
        self._blobs = blobs
        self._input_seconds = input_expires_after_seconds

    async def check_room(self) -> None:
        """Refuse a creation when the storage is all but full. Raises StorageFull."""
        await self._blobs.check_room()

    async def write_input(self, batch_id: str, lines: bytes) -> OwnFile:
        """Write inline input lines. Raises StorageFull, Unavailable."""
        key = _inline_key(batch_id)
        async with self._blobs.writer(key) as writer:
            await writer.write(lines)
            await writer.commit()
        crash.point("batches:inline-stored")
        return OwnFile(
            kind="input",
            file_id=ids.new("file-"),
            blob_key=key,
            purpose="batch",
            size_bytes=len(lines),
            line_count=sum(1 for line in lines.split(b"\n") if line and not line.isspace()),
            sha256=hashlib.sha256(lines).hexdigest(),
            expires_after_seconds=self._input_seconds,
        )

    def rejections(self, record: Record, rejects: Rejects) -> OwnFile:
        """Describe the file of rejected lines, whose blob is there."""
        return OwnFile(
            kind="rejections",
            file_id=ids.new("file-"),
            blob_key=rejected_key(record.batch_id),
            purpose="batch_rejections",
            size_bytes=rejects.size_bytes,
            line_count=rejects.count,
            sha256=rejects.sha256,
            expires_after_seconds=record.output_expires_after_seconds,
        )

    async def adopt(self, record: Record) -> None:
        """Make a batch's own files known to files, held for the batch. Idempotent."""
        for file in record.own_files or ():
            request = files_pb2.AdoptBlobRequest(
                request_id=f"{record.batch_id}-{file.kind}",
                tenant=record.tenant,
                blob_key=file.blob_key,
                filename=f"batch_{file.kind}_{record.batch_id}.jsonl",
                purpose=file.purpose,
                size_bytes=file.size_bytes,
                line_count=file.line_count,
                sha256=file.sha256,
                expires_after_seconds=file.expires_after_seconds,
                file_id=file.file_id,
                holder=record.batch_id,
            )
            await self._files.adopt(request)
            crash.point("batches:own-file-adopted")
        await self._store.set_adopted(record.batch_id)

    async def forget(self, record: Record) -> None:
        """Remove what a batch that has ended needs no more, and that no file is made of."""
        if record.plan is None or not record.plan.index:
            await self._blobs.delete(index_key(record.batch_id))
        if record.own("rejections") is None and record.plan is not None and record.plan.rejected:
            await self._blobs.delete(rejected_key(record.batch_id))
        crash.point("batches:index-removed")
        if record.input_blob_key or record.own_files:
            await self._files.release(record.batch_id)

    async def clear(self, batch_id: str) -> None:
        """Remove what a creation left that came to nothing, unless it came to something. Idempotent; the intent goes last."""
        doomed = await self._store.doom_intent(batch_id)
        if doomed is None:
            return
        crash.point("batches:creation-doomed")
        tenant, file_ids = doomed
        await self._files.release(batch_id)  # first: from then on its creation, if that is still at it, makes no more files
        for file_id in file_ids:
            with contextlib.suppress(errors.FileMissing):
                await self._files.delete(tenant, file_id)
        for key in (_inline_key(batch_id), index_key(batch_id), rejected_key(batch_id)):
            await self._blobs.delete(key)
        crash.point("batches:creation-cleared")
        await self._store.drop_intent(batch_id)

"""Parts become blobs, and the parts of an upload one file: measured on the way, in constant memory, whole or not at all.

Completing writes a new blob of all bytes, publishes it, and then records the file and the end of the upload in one transaction. A
kill before that leaves a pending upload with all its parts, and at most a blob without a record, which the sweep removes; a kill
after it leaves parts that no upload needs, which the sweep removes as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from weakref import WeakValueDictionary

from haywain import crash, errors, ids
from haywain.blobs import BlobStore, BlobWriter
from haywain.clock import Clock
from haywain.files.v1 import uploads_pb2
from haywain.settings import Settings
from services.files.checks import check_expiry, check_name, check_purpose, check_request_id, lifetime
from services.files.figures import UPLOADED
from services.files.measure import Measure
from services.files.store import NewFile
from services.files.upload_store import NewUpload, PartRecord, UploadRecord, UploadStore
from services.files.uploads import IDLE_SECONDS, heard

__all__ = ["Parts"]

MAX_MIME_BYTES = 255
_MD5 = re.compile(r"[0-9a-f]{32}")
_Message = uploads_pb2.AddUploadPartRequest


class Parts:
    """Announces, receives and joins."""

    def __init__(
        self, store: UploadStore, blobs: BlobStore, settings: Settings, clock: Clock, *, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        """Hold nothing between calls but whose turn it is."""
        self._store = store
        self._blobs = blobs
        self._settings = settings
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, request: uploads_pb2.CreateUploadRequest) -> UploadRecord:
        """Announce an upload. Raises InvalidRequest, TooLarge; Conflict when a `request_id` comes again with another file."""
        check_purpose(request.purpose)
        check_name(request.filename, request.purpose, "filename")
        check_expiry(request.expires_after_seconds)
        check_request_id(request.request_id)
        if (size := len(request.mime_type.encode())) > MAX_MIME_BYTES:
            raise errors.InvalidRequest(f"mime_type must be at most {MAX_MIME_BYTES} bytes, but got {size}.", param="mime_type")
        self._check_size(request.size_bytes, request.purpose)
        new = NewUpload(
            id=ids.new("upload_"),
            tenant=request.tenant or "default",
            request_id=request.request_id,
            filename=request.filename,
            purpose=request.purpose,
            mime_type=request.mime_type,
            size_bytes=request.size_bytes,
            expires_after=lifetime(request.expires_after_seconds, request.purpose, self._settings.files),
        )
        await self._blobs.check_room()
        record = await self._store.create(new, self._settings.files.upload_seconds)
        if (record.filename, record.purpose, record.size_bytes) != (new.filename, new.purpose, new.size_bytes):
            raise errors.Conflict("This request_id was used for another upload.", code="idempotency_conflict")
        return record

    def _check_size(self, size: int, purpose: str) -> None:
        if size < 0:
            message = f"bytes must be at least 0, but got {size}."
            raise errors.InvalidRequest(message, code="integer_below_min_value", param="bytes")
        files = self._settings.files
        limit = files.max_file_bytes if purpose == "batch" else files.max_upload_bytes
        if size > limit:
            message = f"The upload is too large: {size} bytes were announced, the limit is {limit} bytes."
            raise errors.TooLarge(message, param="bytes")

    async def add(self, messages: AsyncIterator[_Message]) -> PartRecord:
        """Store a part: `header`, `data`…, `end`. Durable when this returns.

        Raises UploadMissing; Conflict when the upload takes no more parts; InvalidRequest, TooLarge, StorageFull.
        """
        first = await heard(messages, self._idle_seconds)
        if first is None or first.WhichOneof("part") != "header":
            raise errors.InvalidRequest("A part must begin with its header.")
        tenant = first.header.tenant or "default"
        upload = await self._store.pending(tenant, first.header.upload_id)
        await self._blobs.check_room()
        part_id = ids.new("part_")
        async with self._blobs.writer(part_id) as writer:
            size = await self._take(messages, writer)
            crash.point("files:part-received")
            published_at = self._clock.now()
            await writer.commit()
        UPLOADED.inc(size)
        part = PartRecord(id=part_id, upload_id=upload.id, size_bytes=size, created_at=published_at)
        crash.point("files:part-stored")
        try:
            await self._store.add_part(tenant, part, self._settings.files.max_upload_bytes, published_at)
            crash.point("files:part-recorded")
        except (errors.Conflict, errors.TooLarge):
            await self._blobs.delete(part_id)
            raise
        return part

    async def _take(self, messages: AsyncIterator[_Message], writer: BlobWriter) -> int:
        limit, size = self._settings.files.max_part_bytes, 0
        while (message := await heard(messages, self._idle_seconds)) is not None:
            match message.WhichOneof("part"):
                case "data":
                    size += len(message.data)
                    if size > limit:
                        text = f"The part is too large: at least {size} bytes were sent, the limit is {limit} bytes."
                        raise errors.TooLarge(text, param="data")
                    await writer.write(message.data)
                case "end" if message.end.size_bytes == size:
                    return size
                case "end":
                    raise errors.InvalidRequest(f"{message.end.size_bytes} bytes were announced, {size} arrived.", param="data")
                case part:
                    raise errors.InvalidRequest(f"A part is a header, data, and an end; got {part or 'nothing'} instead.")
        raise errors.InvalidRequest(f"The part stopped after {size} bytes, before its end; nothing was stored.")

    async def complete(self, tenant: str, upload_id: str, part_ids: Sequence[str], md5: str) -> UploadRecord:
        """Join parts to a file; idempotent. Durable when this returns.

        Raises UploadMissing; InvalidRequest for parts that aren't the upload's, bytes that aren't what was announced, and what
        can't be a batch file, all of which leave the upload pending; Conflict for an upload that has ended otherwise.
        """
        md5 = md5.lower()
        if md5 and not _MD5.fullmatch(md5):
            raise errors.InvalidRequest(f"md5 must be 32 hexadecimal digits, but got {md5[:64]!r}.", param="md5")
        async with self._turns.setdefault(upload_id, asyncio.Lock()):  # a repeat waits for the first instead of copying as well
            upload = await self._store.chosen(tenant, upload_id, part_ids)
            if upload.status == "completed":
                return upload
            try:
                return await self._join(upload, part_ids, md5)
            except errors.FileGone:  # a part went while it was read
                await self._store.chosen(tenant, upload_id, part_ids)
                raise errors.HaywainError(f"upload {upload_id}: the blob of a part is not there, its record is") from None

    async def _join(self, upload: UploadRecord, part_ids: Sequence[str], md5: str) -> UploadRecord:
        file_id = ids.new("file-")
        seen = _Seen(self._settings.batches.max_line_bytes, upload.purpose, md5)
        async with self._blobs.writer(f"input-{file_id}") as writer:
            for part_id in part_ids:
                await self._copy(part_id, writer, seen)
            await asyncio.to_thread(seen.finish)
            if seen.measure.size_bytes != upload.size_bytes:
                raise errors.HaywainError(f"upload {upload.id}: its parts have {seen.measure.size_bytes} bytes on disk")
            published_at = self._clock.now()
            await writer.commit()
        file = self._file(upload, file_id, seen.measure)
        crash.point("files:joined")
        try:  # whatever else fails here, the sweep finds the blob
            completed = await self._store.complete(upload, part_ids, file, published_at)
            crash.point("files:upload-completed")
        except errors.Conflict:  # cancelled meanwhile
            await self._blobs.delete(file.blob_key)
            raise
        if completed.file_id != file_id:  # completed by another process meanwhile
            await self._blobs.delete(file.blob_key)
        return completed

    async def _copy(self, part_id: str, writer: BlobWriter, seen: _Seen) -> None:
        async with contextlib.aclosing(self._blobs.read(part_id)) as chunks:
            async for data in chunks:
                await asyncio.to_thread(seen.feed, data)
                await writer.write(data)

    def _file(self, upload: UploadRecord, file_id: str, measure: Measure) -> NewFile:
        return NewFile(
            id=file_id,
            tenant=upload.tenant,
            origin="parts",
            request_id=upload.id,
            filename=upload.filename,
            purpose=upload.purpose,
            status=self._settings.files.uploaded_status,
            size_bytes=measure.size_bytes,
            line_count=measure.line_count,
            sha256=measure.sha256,
            expires_after=upload.expires_after,
            blob_key=f"input-{file_id}",
        )


class _Seen:
    """What must be known of the whole: its measure, its MD5 where one is expected."""

    def __init__(self, max_line_bytes: int, purpose: str, md5: str) -> None:
        self.measure = Measure(max_line_bytes)
        self._batch = purpose == "batch"
        self._expected = md5
        self._md5 = hashlib.md5(usedforsecurity=False)

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raises InvalidRequest as soon as they can't be what they must be."""
        self.measure.feed(data)
        if self._expected:
            self._md5.update(data)
        self._check()

    def finish(self) -> None:
        """Take the end. Raises InvalidRequest."""
        self.measure.finish()
        self._check()
        if self._expected and self._md5.hexdigest() != self._expected:
            found = self._md5.hexdigest()
            raise errors.InvalidRequest(f"The MD5 {self._expected} was announced, but the parts' is {found}.", param="md5")

    def _check(self) -> None:
        if self._batch and self.measure.refusal is not None:
            raise self.measure.refusal

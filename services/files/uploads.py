"""A stream of bytes becomes a blob: measured on the way, in constant memory, whole or not at all.

An upload is only stored when its `end` message arrives: a client that hung up looks like one that has no more to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from haywain import crash, errors, ids
from haywain.blobs import BlobStore, BlobWriter
from haywain.clock import Clock
from haywain.db import Transaction
from haywain.files.v1 import files_pb2
from haywain.settings import Settings
from services.files.answers import Answers, Name, meant
from services.files.checks import check_expiry, check_name, check_purpose, check_request_id, lifetime
from services.files.figures import UPLOADED
from services.files.measure import Measure
from services.files.messages import file_message, tenant_of
from services.files.store import Also, FileRecord, FileStore, NewFile

__all__ = ["IDLE_SECONDS", "Uploads", "heard"]

IDLE_SECONDS = 300.0
"""How long a client may be silent; less than the age at which scratch files are swept."""
_Message = files_pb2.UploadFileRequest
_Header = files_pb2.UploadFileRequest.Header
_End = files_pb2.UploadFileRequest.End
_T = TypeVar("_T")


async def heard(messages: AsyncIterator[_T], idle_seconds: float) -> _T | None:
    """Wait for the next message of a client, None when it has no more. Raises DeadlineExceeded when it falls silent."""
    try:
        async with asyncio.timeout(idle_seconds):
            return await anext(messages, None)
    except TimeoutError:
        raise errors.DeadlineExceeded(f"Nothing was sent for {idle_seconds:g} seconds; nothing was stored.") from None


def _check(header: _Header) -> None:
    check_purpose(header.purpose)
    check_name(header.filename, header.purpose, "file")
    check_expiry(header.expires_after_seconds)
    check_request_id(header.request_id)


def _completed(header: _Header, end: _End) -> _Header:
    """Put what only the end told into the header."""
    whole = _Header()
    whole.CopyFrom(header)
    whole.purpose = header.purpose or end.purpose
    whole.expires_after_seconds = header.expires_after_seconds or end.expires_after_seconds
    return whole


class Uploads:
    """Receives uploads."""

    def __init__(
        self,
        stores: tuple[FileStore, Answers],
        blobs: BlobStore,
        settings: Settings,
        clock: Clock,
        *,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Hold nothing between uploads."""
        self._store, self.answers = stores
        self._blobs = blobs
        self._settings = settings
        self._clock = clock
        self._idle_seconds = idle_seconds

    async def receive(self, messages: AsyncIterator[_Message]) -> files_pb2.UploadFileResponse:
        """Store a stream: `header`, `data`…, `end`. Durable when this returns.

        A `request_id` seen before answers the first record, an idempotency key the first answer. Raises InvalidRequest, TooLarge,
        StorageFull, KeyInUse, KeyReused; Conflict when a `request_id` comes again with another file.
        """
        first = await heard(messages, self._idle_seconds)
        if first is None or first.WhichOneof("part") != "header":
            raise errors.InvalidRequest("An upload must begin with its header.")
        header = first.header
        if header.purpose:
            _check(header)
        name = Name(tenant_of(header), "file", header.idempotency_key)
        with self.answers.alone(name):
            return await self._received(header, messages, name)

    async def _received(self, header: _Header, messages: AsyncIterator[_Message], name: Name) -> files_pb2.UploadFileResponse:
        await self._blobs.check_room()
        file_id = ids.new("file-")
        measure = Measure(self._settings.batches.max_line_bytes)
        async with self._blobs.writer(f"input-{file_id}") as writer:
            end = await self._take(messages, writer, measure, batch=header.purpose == "batch")
            header = _completed(header, end)
            _check(header)
            await asyncio.to_thread(measure.finish)
            if header.purpose == "batch" and measure.refusal is not None:
                raise measure.refusal
            _compare(end, measure)
            new = self._new(file_id, header, measure)
            earlier = await self._store.of_request(new.tenant, "upload", new.request_id)
            if earlier is not None:
                return _answer(_same(earlier, new))
            fingerprint = meant(new.filename, new.purpose, header.expires_after_seconds, new.sha256)
            kept = await self.answers.find(name, fingerprint, files_pb2.UploadFileResponse())
            if kept is not None:
                return kept
            published_at = self._clock.now()
            crash.point("files:upload-received")
            await writer.commit()

        def keep(tx: Transaction, record: FileRecord) -> None:
            self.answers.keep(tx, name, fingerprint, _answer(record))

        return _answer(await self._record(new, published_at, keep))

    async def _record(self, new: NewFile, published_at: float, also: Also) -> FileRecord:
        crash.point("files:upload-stored")
        UPLOADED.inc(new.size_bytes)
        record = await self._store.add(new, published_at, also=also)  # when this fails, the sweep finds the blob
        crash.point("files:upload-recorded")
        if record.id != new.id:  # the same request_id came twice at the same time
            await self._blobs.delete(new.blob_key)
        return _same(record, new)

    async def _take(self, messages: AsyncIterator[_Message], writer: BlobWriter, measure: Measure, *, batch: bool) -> _End:
        limit = self._settings.files.max_file_bytes
        while (message := await heard(messages, self._idle_seconds)) is not None:
            match message.WhichOneof("part"):
                case "data":
                    size = measure.size_bytes + len(message.data)
                    if size > limit:
                        text = f"The file is too large: at least {size} bytes were sent, the limit is {limit} bytes."
                        raise errors.TooLarge(text, param="file")
                    await asyncio.to_thread(measure.feed, message.data)
                    if batch and measure.refusal is not None:
                        raise measure.refusal
                    await writer.write(message.data)
                case "end":
                    return message.end
                case part:
                    raise errors.InvalidRequest(f"An upload is a header, data, and an end; got {part or 'nothing'} instead.")
        raise errors.InvalidRequest(f"The upload stopped after {measure.size_bytes} bytes, before its end; nothing was stored.")

    def _new(self, file_id: str, header: _Header, measure: Measure) -> NewFile:
        return NewFile(
            id=file_id,
            tenant=header.tenant or "default",
            origin="upload",
            request_id=header.request_id,
            filename=header.filename,
            purpose=header.purpose,
            status=self._settings.files.uploaded_status,
            size_bytes=measure.size_bytes,
            line_count=measure.line_count,
            sha256=measure.sha256,
            expires_after=lifetime(header.expires_after_seconds, header.purpose, self._settings.files),
            blob_key=f"input-{file_id}",
        )


def _compare(end: _End, measure: Measure) -> None:
    if end.size_bytes and end.size_bytes != measure.size_bytes:
        raise errors.InvalidRequest(f"{end.size_bytes} bytes were announced, {measure.size_bytes} arrived.", param="file")
    if end.sha256 and end.sha256 != measure.sha256:
        raise errors.InvalidRequest(f"SHA-256 {end.sha256[:64]} was announced, {measure.sha256} arrived.", param="file")


def _answer(record: FileRecord) -> files_pb2.UploadFileResponse:
    return files_pb2.UploadFileResponse(file=file_message(record))


def _same(record: FileRecord, new: NewFile) -> FileRecord:
    if (record.sha256, record.filename, record.purpose) != (new.sha256, new.filename, new.purpose):
        raise errors.Conflict("This request_id was used for another upload.", code="idempotency_conflict")
    return record

"""A stream of bytes becomes a blob: measured on the way, in constant memory, whole or not at all.

An upload is only stored when its `end` message arrives: a client that hung up looks like one that has no more to say.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import PurePosixPath

from haywain import errors, ids
from haywain.blobs import BlobStore, BlobWriter
from haywain.clock import Clock
from haywain.files.v1 import files_pb2
from haywain.settings import Settings
from services.files.measure import Measure, not_jsonl
from services.files.store import FileRecord, FileStore, NewFile

__all__ = ["Uploads", "checked_name", "checked_purpose"]

MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS = 3_600, 2_592_000
MAX_NAME_BYTES = 512
_PURPOSE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_Message = files_pb2.UploadFileRequest
_Header = files_pb2.UploadFileRequest.Header
_End = files_pb2.UploadFileRequest.End


def checked_name(filename: str) -> None:
    """Refuse what can't be a file's name. Raises InvalidRequest."""
    size = len(filename.encode())
    if not 1 <= size <= MAX_NAME_BYTES:
        raise errors.InvalidRequest(f"The file's name must be 1 to {MAX_NAME_BYTES} bytes, but got {size}.", param="file")
    if _CONTROL.search(filename):
        raise errors.InvalidRequest("The file's name must not hold control characters.", param="file")


def checked_purpose(purpose: str) -> None:
    """Refuse what can't be a purpose. Raises InvalidRequest."""
    if not purpose:
        raise errors.InvalidRequest("Missing required parameter: 'purpose'.", code="missing_required_parameter", param="purpose")
    if not _PURPOSE.fullmatch(purpose):
        message = f"purpose must be a word of 1 to 64 letters, digits, '_' or '-', but got {purpose[:64]!r}."
        raise errors.InvalidRequest(message, param="purpose")


def _checked(header: _Header) -> None:
    checked_name(header.filename)
    checked_purpose(header.purpose)
    suffix = PurePosixPath(header.filename).suffix
    if header.purpose == "batch" and suffix.lower() not in ("", ".jsonl"):
        raise not_jsonl(f"the file's name ends in {suffix[:32]!r}")
    expiry, param = header.expires_after_seconds, "expires_after.seconds"
    if expiry and expiry < MIN_EXPIRY_SECONDS:
        message = f"{param} must be at least {MIN_EXPIRY_SECONDS}, but got {expiry}."
        raise errors.InvalidRequest(message, code="integer_below_min_value", param=param)
    if expiry > MAX_EXPIRY_SECONDS:
        message = f"{param} must be at most {MAX_EXPIRY_SECONDS}, but got {expiry}."
        raise errors.InvalidRequest(message, code="integer_above_max_value", param=param)
    if (size := len(header.request_id.encode())) > 512:
        raise errors.InvalidRequest(f"request_id must be at most 512 bytes, but got {size}.", param="request_id")


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
        self, store: FileStore, blobs: BlobStore, settings: Settings, clock: Clock, *, idle_seconds: float = 300.0
    ) -> None:
        """`idle_seconds` is how long a client may be silent; less than the age at which scratch files are swept."""
        self._store = store
        self._blobs = blobs
        self._settings = settings
        self._clock = clock
        self._idle_seconds = idle_seconds

    async def receive(self, messages: AsyncIterator[_Message]) -> FileRecord:
        """Store a stream: `header`, `data`…, `end`. Durable when this returns.

        A `request_id` seen before answers the first record. Raises InvalidRequest, TooLarge, StorageFull; Conflict when a
        `request_id` comes again with another file.
        """
        first = await self._next(messages)
        if first is None or first.WhichOneof("part") != "header":
            raise errors.InvalidRequest("An upload must begin with its header.")
        header = first.header
        if header.purpose:
            _checked(header)
        file_id = ids.new("file-")
        measure = Measure(self._settings.batches.max_line_bytes)
        async with self._blobs.writer(f"input-{file_id}") as writer:
            end = await self._take(messages, writer, measure, batch=header.purpose == "batch")
            header = _completed(header, end)
            _checked(header)
            await asyncio.to_thread(measure.finish)
            if header.purpose == "batch" and measure.refusal is not None:
                raise measure.refusal
            _compare(end, measure)
            new = self._new(file_id, header, measure)
            earlier = await self._store.of_request(new.tenant, "upload", new.request_id)
            if earlier is not None:
                return _same(earlier, new)
            published_at = self._clock.now()
            await writer.commit()
        return await self._record(new, published_at)

    async def _record(self, new: NewFile, published_at: float) -> FileRecord:
        record = await self._store.add(new, published_at)  # when this fails, the sweep finds the blob
        if record.id != new.id:  # the same request_id came twice at the same time
            await self._blobs.delete(new.blob_key)
        return _same(record, new)

    async def _take(self, messages: AsyncIterator[_Message], writer: BlobWriter, measure: Measure, *, batch: bool) -> _End:
        limit = self._settings.files.max_file_bytes
        while (message := await self._next(messages)) is not None:
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

    async def _next(self, messages: AsyncIterator[_Message]) -> _Message | None:
        try:
            async with asyncio.timeout(self._idle_seconds):
                return await anext(messages, None)
        except TimeoutError:
            raise errors.DeadlineExceeded(f"Nothing was sent for {self._idle_seconds:g} seconds; nothing was stored.") from None

    def _new(self, file_id: str, header: _Header, measure: Measure) -> NewFile:
        expiry = header.expires_after_seconds
        if not expiry and header.purpose == "batch":
            expiry = self._settings.files.batch_expires_after_seconds
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
            expires_after=expiry,
            blob_key=f"input-{file_id}",
        )


def _compare(end: _End, measure: Measure) -> None:
    if end.size_bytes and end.size_bytes != measure.size_bytes:
        raise errors.InvalidRequest(f"{end.size_bytes} bytes were announced, {measure.size_bytes} arrived.", param="file")
    if end.sha256 and end.sha256 != measure.sha256:
        raise errors.InvalidRequest(f"SHA-256 {end.sha256[:64]} was announced, {measure.sha256} arrived.", param="file")


def _same(record: FileRecord, new: NewFile) -> FileRecord:
    if (record.sha256, record.filename, record.purpose) != (new.sha256, new.filename, new.purpose):
        raise errors.Conflict("This request_id was used for another upload.", code="idempotency_conflict")
    return record

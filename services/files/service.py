"""The Files service: file records and the life of their bytes, behind `haywain.files.v1.FilesService`.

The servicer translates; uploads.py receives bytes, store.py keeps records, sweep.py removes what is over. Files that come in
parts have a service of their own, uploads_service.py, in the same process.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haywain import crash, errors, ids, log
from haywain.blobs import BlobStore, DirectoryBlobStore
from haywain.clock import Clock, SystemClock
from haywain.db import open_database
from haywain.files.v1 import files_pb2, files_pb2_grpc, uploads_pb2_grpc
from haywain.gather import all_of
from haywain.rpc import serving
from haywain.settings import Settings
from services.files.answers import Answers
from services.files.checks import check_name, check_purpose
from services.files.figures import DOWNLOADED
from services.files.messages import file_message, tenant_of
from services.files.parts import Parts
from services.files.store import FileRecord, FileStore, NewFile, gone
from services.files.sweep import Sweep
from services.files.upload_store import UploadStore
from services.files.uploads import Uploads
from services.files.uploads_service import UploadsServiceServicer

__all__ = ["FilesServiceServicer", "Services", "opened", "serve"]

NAME, UPLOADS_NAME = "haywain.files.v1.FilesService", "haywain.files.v1.UploadsService"
MAX_PAGE = 10_000
_FILE_ID = re.compile(r"file-[A-Za-z0-9]{1,64}")
_log = log.get()


class FilesServiceServicer(files_pb2_grpc.FilesServiceServicer):
    """Translates between protos and records. The methods' contracts are in the proto."""

    def __init__(self, store: FileStore, blobs: BlobStore, uploads: Uploads, sweep: Sweep) -> None:
        """Take the parts; `opened` makes them."""
        self.store = store
        self.blobs = blobs
        self.uploads = uploads
        self.sweep = sweep

    async def UploadFile(self, messages: AsyncIterator[files_pb2.UploadFileRequest], context: Any) -> files_pb2.UploadFileResponse:
        """Receive a stream and store it."""
        answer = await self.uploads.receive(messages)
        file = answer.file
        _log.info("file.stored", file_id=file.file_id, size_bytes=file.size_bytes, lines=file.line_count, replayed=answer.replayed)
        return answer

    async def DownloadFile(
        self, request: files_pb2.DownloadFileRequest, context: Any
    ) -> AsyncIterator[files_pb2.DownloadFileResponse]:
        """Stream the record, then the bytes. Whatever can be refused is refused before the first message."""
        record = await self.store.get(tenant_of(request), request.file_id)
        _raise(gone(record))
        size = _range(request, record)
        sent = 0
        async with contextlib.aclosing(_read(self.blobs, record, request.offset, size)) as chunks:
            data = await self._first(chunks, record)
            yield files_pb2.DownloadFileResponse(file=file_message(record))
            while data:
                sent += len(data)
                DOWNLOADED.inc(len(data))
                yield files_pb2.DownloadFileResponse(data=data)
                data = await anext(chunks, b"")
        if sent != size:
            raise errors.HaywainError(f"blob {record.blob_key}: {sent} bytes read, {size} expected")

    async def _first(self, chunks: AsyncIterator[bytes], record: FileRecord) -> bytes:
        try:
            return await anext(chunks, b"")
        except errors.FileGone:
            _raise(gone(await self.store.get(record.tenant, record.id)))
            raise errors.HaywainError(f"blob {record.blob_key} is not there, its record is") from None

    async def GetFile(self, request: files_pb2.GetFileRequest, context: Any) -> files_pb2.GetFileResponse:
        """Describe one file, also one that is deleted or expired."""
        return files_pb2.GetFileResponse(file=file_message(await self.store.get(tenant_of(request), request.file_id)))

    async def ListFiles(self, request: files_pb2.ListFilesRequest, context: Any) -> files_pb2.ListFilesResponse:
        """List a page; `page_size` 0 asks for the most."""
        size = request.page_size or MAX_PAGE
        if size < 0:
            message = f"limit must be at least 0, but got {size}."
            raise errors.InvalidRequest(message, code="integer_below_min_value", param="limit")
        if size > MAX_PAGE:
            message = f"limit must be at most {MAX_PAGE}, but got {size}."
            raise errors.InvalidRequest(message, code="integer_above_max_value", param="limit")
        records = await self.store.page(
            tenant_of(request), request.purpose, after=request.page_token, limit=size + 1, ascending=request.ascending
        )
        more = len(records) > size
        return files_pb2.ListFilesResponse(
            files=[file_message(record) for record in records[:size]], next_page_token=records[size - 1].id if more else ""
        )

    async def DeleteFile(self, request: files_pb2.DeleteFileRequest, context: Any) -> files_pb2.DeleteFileResponse:
        """Mark the file deleted, then remove its bytes unless held."""
        record = await self.store.delete(tenant_of(request), request.file_id)
        crash.point("files:deleted")
        _log.info("file.deleted", file_id=record.id)
        await self.sweep.purge_now()
        return files_pb2.DeleteFileResponse(file=file_message(record))

    async def AdoptBlob(self, request: files_pb2.AdoptBlobRequest, context: Any) -> files_pb2.AdoptBlobResponse:
        """Record a blob that is already there."""
        if not request.request_id:
            raise errors.InvalidRequest("request_id is required", code="missing_required_parameter", param="request_id")
        record = await self.store.of_request(tenant_of(request), "adopt", request.request_id)
        if record is None:
            record = await self._adopt(request)
            _log.info("file.adopted", file_id=record.id, blob_key=record.blob_key)
        if record.blob_key != request.blob_key:
            raise errors.Conflict(f"request_id {request.request_id!r} was used for another blob.")
        return files_pb2.AdoptBlobResponse(file=file_message(record))

    async def _adopt(self, request: files_pb2.AdoptBlobRequest) -> FileRecord:
        check_purpose(request.purpose)
        check_name(request.filename, request.purpose, "filename")
        if request.file_id and not _FILE_ID.fullmatch(request.file_id):
            raise errors.InvalidRequest("file_id is not an id", param="file_id")
        if request.blob_key.startswith("input-"):
            raise errors.InvalidRequest("an upload's blob has its file already", param="blob_key")
        try:
            size = await self.blobs.size(request.blob_key)
        except ValueError as error:
            raise errors.InvalidRequest(str(error), param="blob_key") from None
        if size != request.size_bytes:
            raise errors.InvalidRequest(
                f"blob {request.blob_key!r}: {request.size_bytes} bytes announced, {size or 'none'} there", param="blob_key"
            )
        new = NewFile(
            id=request.file_id or ids.new("file-"),
            tenant=tenant_of(request),
            origin="adopt",
            request_id=request.request_id,
            filename=request.filename,
            purpose=request.purpose,
            status="processed",
            size_bytes=request.size_bytes,
            line_count=request.line_count,
            sha256=request.sha256,
            expires_after=max(request.expires_after_seconds, 0),
            blob_key=request.blob_key,
        )
        record = await self.store.add(new, published_at=None, holder=request.holder)
        crash.point("files:adopted")
        return record

    async def HoldBlob(self, request: files_pb2.HoldBlobRequest, context: Any) -> files_pb2.HoldBlobResponse:
        """Keep a file's bytes for a holder."""
        if not request.holder:
            raise errors.InvalidRequest("holder is required", code="missing_required_parameter", param="holder")
        record = await self.store.hold(tenant_of(request), request.file_id, request.holder)
        crash.point("files:held")
        return files_pb2.HoldBlobResponse(blob_key=record.blob_key, file=file_message(record))

    async def ReleaseBlob(self, request: files_pb2.ReleaseBlobRequest, context: Any) -> files_pb2.ReleaseBlobResponse:
        """End a holder's holds; bytes nobody needs any more go."""
        await self._release([request.holder])
        return files_pb2.ReleaseBlobResponse()

    async def _release(self, holders: list[str]) -> None:
        if await self.store.release(holders):
            crash.point("files:released")
            await self.sweep.purge_now()

    async def AdoptBlobs(self, request: files_pb2.AdoptBlobsRequest, context: Any) -> files_pb2.AdoptBlobsResponse:
        """Record many blobs."""
        return files_pb2.AdoptBlobsResponse(adopted=await all_of(self.AdoptBlob(blob, context) for blob in request.blobs))

    async def HoldBlobs(self, request: files_pb2.HoldBlobsRequest, context: Any) -> files_pb2.HoldBlobsResponse:
        """Keep many files' bytes."""
        return files_pb2.HoldBlobsResponse(held=await all_of(self.HoldBlob(hold, context) for hold in request.holds))

    async def ReleaseBlobs(self, request: files_pb2.ReleaseBlobsRequest, context: Any) -> files_pb2.ReleaseBlobsResponse:
        """End the holds of many holders."""
        await self._release(list(request.holders))
        return files_pb2.ReleaseBlobsResponse()


def _raise(error: errors.HaywainError | None) -> None:
    if error is not None:
        raise error


def _range(request: files_pb2.DownloadFileRequest, record: FileRecord) -> int:
    """Tell how many bytes the request is about."""
    if request.offset < 0 or request.length < 0:
        raise errors.InvalidRequest("offset and length must not be negative", param="offset" if request.offset < 0 else "length")
    if request.offset > record.size_bytes:
        raise errors.InvalidRequest(f"offset {request.offset} is behind the end at {record.size_bytes}", param="offset")
    rest = record.size_bytes - request.offset
    return min(rest, request.length or rest)


async def _read(blobs: BlobStore, record: FileRecord, offset: int, size: int) -> AsyncGenerator[bytes, None]:
    if size:
        async with contextlib.aclosing(blobs.read(record.blob_key, offset, size)) as chunks:
            async for data in chunks:
                yield data


@dataclass(frozen=True)
class Services:
    """What the process serves, and what it does by itself."""

    files: FilesServiceServicer
    uploads: UploadsServiceServicer
    sweep: Sweep


@contextlib.asynccontextmanager
async def opened(settings: Settings, clock: Clock) -> AsyncIterator[Services]:
    """Open database and blob store and put the services together; closes them at the end of the block.

    Raises SettingsError when the data folder can't be used or the settings name no status.
    """
    if settings.files.uploaded_status not in ("processed", "uploaded"):
        raise errors.SettingsError(f"files.uploaded_status {settings.files.uploaded_status!r}: expected processed or uploaded")
    blobs = DirectoryBlobStore(settings.data / "blobs")
    database = await open_database(settings.db.url, Path(__file__).parent / "sql", settings.data / "files.db")
    try:
        store, upload_store = FileStore(database, clock), UploadStore(database, clock)
        answers = Answers(database, clock)
        sweep = Sweep(store, upload_store, answers, blobs, clock)
        files = FilesServiceServicer(store, blobs, Uploads((store, answers), blobs, settings, clock), sweep)
        parts = Parts(upload_store, blobs, settings, clock)
        yield Services(files, UploadsServiceServicer(upload_store, store, answers, parts, sweep), sweep)
    finally:
        await database.close()


async def serve(settings: Settings, stopping: asyncio.Event, clock: Clock | None = None) -> None:
    """Serve until `stopping` is set; by the machine's clock unless given another."""
    async with opened(settings, clock or SystemClock()) as services:
        served = [
            (services.files, files_pb2_grpc.add_FilesServiceServicer_to_server, NAME),
            (services.uploads, uploads_pb2_grpc.add_UploadsServiceServicer_to_server, UPLOADS_NAME),
        ]
        async with serving(settings.address("files"), served):
            _log.info("files.ready", address=settings.address("files"))
            async with asyncio.TaskGroup() as group:
                group.create_task(services.sweep.run(stopping))
                await stopping.wait()

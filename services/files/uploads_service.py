"""`haywain.files.v1.UploadsService`: files that come in parts. The servicer translates; parts.py does it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from haywain import crash, log
from haywain.files.v1 import uploads_pb2, uploads_pb2_grpc
from services.files.answers import Answers, Name, meant
from services.files.keyed_part import KeyedPart, Replayed
from services.files.messages import part_message, tenant_of, upload_message
from services.files.parts import Parts
from services.files.store import FileStore
from services.files.sweep import Sweep
from services.files.upload_store import UploadRecord, UploadStore

__all__ = ["UploadsServiceServicer"]

_log = log.get()


class UploadsServiceServicer(uploads_pb2_grpc.UploadsServiceServicer):
    """Translates between protos and records. The methods' contracts are in the proto."""

    def __init__(self, store: UploadStore, files: FileStore, answers: Answers, parts: Parts, sweep: Sweep) -> None:
        """Take the parts; `service.opened` makes them."""
        self.store = store
        self.files = files
        self._answers = answers
        self.parts = parts
        self.sweep = sweep

    async def CreateUpload(self, request: uploads_pb2.CreateUploadRequest, context: Any) -> uploads_pb2.CreateUploadResponse:
        """Announce a file."""
        terms = (request.filename, request.purpose, request.mime_type, request.size_bytes, request.expires_after_seconds)
        name = Name(tenant_of(request), "create_upload", request.idempotency_key)
        return await self._answers.once(name, meant(*terms), lambda: self._create(request), uploads_pb2.CreateUploadResponse())

    async def _create(self, request: uploads_pb2.CreateUploadRequest) -> uploads_pb2.CreateUploadResponse:
        record = await self.parts.create(request)
        _log.info("upload.created", upload_id=record.id, size_bytes=record.size_bytes)
        return uploads_pb2.CreateUploadResponse(upload=await self._message(record))

    async def AddUploadPart(
        self, messages: AsyncIterator[uploads_pb2.AddUploadPartRequest], context: Any
    ) -> uploads_pb2.AddUploadPartResponse:
        """Receive a part and store it."""
        with KeyedPart(self._answers) as keyed:
            try:
                part = await self.parts.add(keyed.passing(messages))
            except Replayed as replayed:
                return replayed.answer
            _log.info("part.stored", upload_id=part.upload_id, part_id=part.id, size_bytes=part.size_bytes)
            answer = uploads_pb2.AddUploadPartResponse(part=part_message(part))
            await self._answers.keep_now(keyed.name, keyed.fingerprint, answer)
            return answer

    async def CompleteUpload(self, request: uploads_pb2.CompleteUploadRequest, context: Any) -> uploads_pb2.CompleteUploadResponse:
        """Make a file of parts, then remove those."""
        terms = (request.upload_id, list(request.part_ids), request.md5.lower())
        name = Name(tenant_of(request), "complete_upload", request.idempotency_key)
        return await self._answers.once(name, meant(*terms), lambda: self._complete(request), uploads_pb2.CompleteUploadResponse())

    async def _complete(self, request: uploads_pb2.CompleteUploadRequest) -> uploads_pb2.CompleteUploadResponse:
        record = await self.parts.complete(tenant_of(request), request.upload_id, request.part_ids, request.md5)
        _log.info("upload.completed", upload_id=record.id, file_id=record.file_id, parts=len(request.part_ids))
        await self.sweep.purge_now()
        return uploads_pb2.CompleteUploadResponse(upload=await self._message(record))

    async def CancelUpload(self, request: uploads_pb2.CancelUploadRequest, context: Any) -> uploads_pb2.CancelUploadResponse:
        """Drop an upload, then remove its parts."""
        name = Name(tenant_of(request), "cancel_upload", request.idempotency_key)
        fingerprint = meant(request.upload_id)
        return await self._answers.once(name, fingerprint, lambda: self._cancel(request), uploads_pb2.CancelUploadResponse())

    async def _cancel(self, request: uploads_pb2.CancelUploadRequest) -> uploads_pb2.CancelUploadResponse:
        record = await self.store.cancel(tenant_of(request), request.upload_id)
        crash.point("files:upload-cancelled")
        _log.info("upload.cancelled", upload_id=record.id)
        await self.sweep.purge_now()
        return uploads_pb2.CancelUploadResponse(upload=await self._message(record))

    async def GetUpload(self, request: uploads_pb2.GetUploadRequest, context: Any) -> uploads_pb2.GetUploadResponse:
        """Describe one upload, whatever became of it."""
        record = await self.store.get(tenant_of(request), request.upload_id)
        return uploads_pb2.GetUploadResponse(upload=await self._message(record))

    async def _message(self, record: UploadRecord) -> uploads_pb2.Upload:
        file = await self.files.get(record.tenant, record.file_id) if record.file_id is not None else None
        return upload_message(record, file)

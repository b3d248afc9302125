"""Records as the messages that tell them."""

from __future__ import annotations

from typing import Any

from haywain.clock import timestamp
from haywain.files.v1 import files_pb2, uploads_pb2
from services.files.store import FileRecord
from services.files.upload_store import PartRecord, UploadRecord

__all__ = ["file_message", "part_message", "tenant_of", "upload_message"]

_FILE = {
    "uploaded": files_pb2.File.STATUS_UPLOADED,
    "processed": files_pb2.File.STATUS_PROCESSED,
    "error": files_pb2.File.STATUS_ERROR,
    "expired": files_pb2.File.STATUS_EXPIRED,
    "deleted": files_pb2.File.STATUS_DELETED,
}
_UPLOAD = {
    "pending": uploads_pb2.Upload.STATUS_PENDING,
    "completed": uploads_pb2.Upload.STATUS_COMPLETED,
    "cancelled": uploads_pb2.Upload.STATUS_CANCELLED,
    "expired": uploads_pb2.Upload.STATUS_EXPIRED,
}


def tenant_of(request: Any) -> str:
    """Read whose call it is."""
    return request.tenant or "default"


def file_message(record: FileRecord) -> files_pb2.File:
    """Tell a file."""
    return files_pb2.File(
        file_id=record.id,
        tenant=record.tenant,
        filename=record.filename,
        purpose=record.purpose,
        status=_FILE[record.status],
        status_details=record.status_details,
        size_bytes=record.size_bytes,
        line_count=record.line_count,
        sha256=record.sha256,
        create_time=timestamp(record.created_at),
        expire_time=timestamp(record.expires_at),
    )


def upload_message(record: UploadRecord, file: FileRecord | None) -> uploads_pb2.Upload:
    """Tell an upload, with the file it became."""
    return uploads_pb2.Upload(
        upload_id=record.id,
        tenant=record.tenant,
        filename=record.filename,
        purpose=record.purpose,
        mime_type=record.mime_type,
        size_bytes=record.size_bytes,
        status=_UPLOAD[record.status],
        create_time=timestamp(record.created_at),
        expire_time=timestamp(record.expires_at),
        file=file_message(file) if file is not None else None,
    )


def part_message(record: PartRecord) -> uploads_pb2.UploadPart:
    """Tell a part."""
    return uploads_pb2.UploadPart(
        part_id=record.id, upload_id=record.upload_id, size_bytes=record.size_bytes, create_time=timestamp(record.created_at)
    )

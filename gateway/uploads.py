"""/v1/uploads: files that come in parts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal

import msgspec
from google.api import httpbody_pb2

from gateway.answer import TENANT, Context, json_body
from gateway.body import Body, decoded
from gateway.files import FileObject
from gateway.idempotency import idempotency_key, tell_replayed
from gateway.multipart import Form, plain_name
from gateway.peers import Peer
from gateway.query import parameters
from gateway.relay import gathered, store
from haywain import errors, ids
from haywain.files.v1 import uploads_pb2, uploads_pb2_grpc
from haywain.gateway.v1 import gateway_pb2

__all__ = ["UploadObject", "Uploads"]

COMPLETE_SECONDS = 600.0
"""all bytes are read and written once"""
_MOST_BYTES = 2**63 - 1
_Part = uploads_pb2.AddUploadPartRequest


class UploadObject(msgspec.Struct, kw_only=True):
    """An upload as clients see it."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: str
    file: FileObject | None

    @classmethod
    def of(cls, upload: uploads_pb2.Upload) -> UploadObject:
        """Make from a record."""
        return cls(
            id=upload.upload_id,
            bytes=upload.size_bytes,
            created_at=upload.create_time.seconds,
            expires_at=upload.expire_time.seconds,
            filename=upload.filename,
            purpose=upload.purpose,
            status=uploads_pb2.Upload.Status.Name(upload.status).removeprefix("STATUS_").lower(),
            file=FileObject.of(upload.file) if upload.HasField("file") else None,
        )


class PartObject(msgspec.Struct, kw_only=True):
    """A part as clients see it."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


class Uploads:
    """The upload routes."""

    def __init__(self, files: Peer) -> None:
        """Take the service that owns files, and uploads with them."""
        self._files = files
        self._stub = uploads_pb2_grpc.UploadsServiceStub(files.channel)

    async def create(self, body: httpbody_pb2.HttpBody, context: Context) -> httpbody_pb2.HttpBody:
        """Announce one."""
        parameters(context)
        request = announcement(await decoded(body.data))
        # With an id of its own the call can be repeated when the service restarts during it, and still makes one upload.
        request.request_id = ids.new("create_")
        request.idempotency_key = idempotency_key(context)
        answer = await self._files.ask(self._stub.CreateUpload, request)
        await tell_replayed(context, answer)
        return json_body(UploadObject.of(answer.upload))

    async def add_part(self, messages: AsyncIterator[gateway_pb2.AddUploadPartRequest], context: Context) -> httpbody_pb2.HttpBody:
        """Hand a part on to the files service as it comes, in constant memory."""
        parameters(context)
        answer = await store(self._files, self._stub.AddUploadPart, _requests(messages, idempotency_key(context)))
        await tell_replayed(context, answer)
        part = PartObject(id=answer.part.part_id, created_at=answer.part.create_time.seconds, upload_id=answer.part.upload_id)
        return json_body(part)

    async def complete(self, upload_id: str, body: httpbody_pb2.HttpBody, context: Context) -> httpbody_pb2.HttpBody:
        """Make a file of parts."""
        parameters(context)
        fields = Body(await decoded(body.data))
        request = uploads_pb2.CompleteUploadRequest(
            upload_id=upload_id, tenant=TENANT, part_ids=fields.texts("part_ids"), md5=fields.string("md5")
        )
        fields.finish()
        request.idempotency_key = idempotency_key(context)
        answer = await self._files.ask(self._stub.CompleteUpload, request, timeout=COMPLETE_SECONDS)
        await tell_replayed(context, answer)
        return json_body(UploadObject.of(answer.upload))

    async def cancel(self, upload_id: str, context: Context) -> httpbody_pb2.HttpBody:
        """Drop one; the request's body, if any, means nothing."""
        parameters(context)
        request = uploads_pb2.CancelUploadRequest(upload_id=upload_id, tenant=TENANT, idempotency_key=idempotency_key(context))
        answer = await self._files.ask(self._stub.CancelUpload, request)
        await tell_replayed(context, answer)
        return json_body(UploadObject.of(answer.upload))


def announcement(members: dict[str, object]) -> uploads_pb2.CreateUploadRequest:
    """Translate the body of an announcement. Raises InvalidRequest for a missing, unknown or mistyped field.

    Words and limits that native callers meet as well are checked by the files service.
    """
    body = Body(members)
    size = body.integer("bytes", 0, _MOST_BYTES)
    if size is None:
        raise _missing("bytes")
    request = uploads_pb2.CreateUploadRequest(
        tenant=TENANT,
        filename=plain_name(body.required("filename"), "filename"),
        purpose=body.required("purpose"),
        mime_type=body.required("mime_type"),
        size_bytes=size,
    )
    expiry = body.member("expires_after")
    if expiry is not None:
        expiry.word("anchor", "created_at", ("created_at",))
        seconds = expiry.integer("seconds", 1)
        if seconds is None:
            raise _missing("expires_after.seconds")
        request.expires_after_seconds = seconds
        expiry.finish()
    body.finish()
    return request


def _missing(param: str) -> errors.InvalidRequest:
    return errors.InvalidRequest(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)


async def _requests(messages: AsyncIterator[gateway_pb2.AddUploadPartRequest], key: str) -> AsyncGenerator[_Part, None]:
    first = await anext(messages, gateway_pb2.AddUploadPartRequest())
    form = Form(frozenset(), "data", named=False)
    yield _Part(header=_Part.Header(upload_id=first.upload_id, tenant=TENANT, idempotency_key=key))
    size = 0
    async with contextlib.aclosing(form.read(_bodies(first, messages))) as chunks:
        async for data in gathered(chunks):
            size += len(data)
            yield _Part(data=data)
    yield _Part(end=_Part.End(size_bytes=size))


async def _bodies(
    first: gateway_pb2.AddUploadPartRequest, rest: AsyncIterator[gateway_pb2.AddUploadPartRequest]
) -> AsyncGenerator[tuple[str, bytes], None]:
    yield first.http_body.content_type, first.http_body.data
    async for message in rest:
        yield message.http_body.content_type, message.http_body.data

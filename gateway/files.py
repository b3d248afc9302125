"""/v1/files: uploads as they stream in, records, and downloads with ranges."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal

import msgspec
from google.api import httpbody_pb2

from gateway import download
from gateway.answer import TENANT, Context, header, json_body
from gateway.idempotency import idempotency_key, tell_replayed
from gateway.multipart import Form
from gateway.peers import Peer
from gateway.query import Page, integer, one_of, parameters
from gateway.relay import gathered, store
from haywain import errors, ids, rpc
from haywain.files.v1 import files_pb2
from haywain.gateway.v1 import gateway_pb2

__all__ = ["FileObject", "Files"]

MAX_PAGE = 10_000
MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS = 3_600, 2_592_000
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = frozenset({"purpose", _ANCHOR, _SECONDS})
_Header = files_pb2.UploadFileRequest.Header
_End = files_pb2.UploadFileRequest.End


class FileObject(msgspec.Struct, kw_only=True):
    """A file as clients see it."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: str
    status_details: str | None
    checksum: str | None

    @classmethod
    def of(cls, file: files_pb2.File) -> FileObject:
        """Make from a record."""
        return cls(
            id=file.file_id,
            bytes=file.size_bytes,
            created_at=file.create_time.seconds,
            expires_at=file.expire_time.seconds if file.HasField("expire_time") else None,
            filename=file.filename,
            purpose=file.purpose,
            status=files_pb2.File.Status.Name(file.status).removeprefix("STATUS_").lower(),
            status_details=file.status_details or None,
            checksum=f"sha256:{file.sha256}" if file.sha256 else None,
        )


class DeletedFile(msgspec.Struct, kw_only=True):
    """The answer of a deletion."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class Files:
    """The file routes."""

    def __init__(self, files: Peer) -> None:
        """Take the service that owns the files."""
        self._files = files

    async def upload(self, messages: AsyncIterator[gateway_pb2.UploadFileRequest], context: Context) -> httpbody_pb2.HttpBody:
        """Hand a multipart body on to the files service as it comes, in constant memory."""
        parameters(context)
        # With an id of its own the call can be repeated when the service restarts during it, and still stores one file.
        named = _Header(request_id=ids.new("create_"), tenant=TENANT, idempotency_key=idempotency_key(context))
        answer = await store(self._files, self._files.stub.UploadFile, _requests(messages, named))
        await tell_replayed(context, answer)
        return json_body(FileObject.of(answer.file))

    async def page(self, context: Context) -> httpbody_pb2.HttpBody:
        """Answer a page."""
        query = parameters(context, ("purpose", "limit", "order", "after"))
        limit = integer("limit", query.get("limit", str(MAX_PAGE)), 0, MAX_PAGE)
        request = files_pb2.ListFilesRequest(
            tenant=TENANT,
            purpose=query.get("purpose", ""),
            page_size=limit,
            page_token=query.get("after", ""),
            ascending=one_of("order", query.get("order", "desc"), ("asc", "desc")) == "asc",
        )
        if not limit:
            return json_body(Page(data=[]))
        try:
            page = await self._files.ask(self._files.stub.ListFiles, request)
        except errors.NoSuchCursor:
            raise errors.InvalidRequest(f"No such File object: '{query.get('after', '')}'.", param="after") from None
        return json_body(Page.of([FileObject.of(file) for file in page.files], has_more=bool(page.next_page_token)))

    async def get(self, file_id: str, context: Context) -> httpbody_pb2.HttpBody:
        """Describe one."""
        parameters(context)
        return json_body(FileObject.of(await self._record(file_id)))

    async def delete(self, file_id: str, context: Context) -> httpbody_pb2.HttpBody:
        """Delete one."""
        parameters(context)
        request = files_pb2.DeleteFileRequest(file_id=file_id, tenant=TENANT)
        answer = await self._files.ask(self._files.stub.DeleteFile, request)
        return json_body(DeletedFile(id=answer.file.file_id))

    async def content(self, file_id: str, context: Context) -> AsyncGenerator[httpbody_pb2.HttpBody, None]:
        """Stream the bytes, or the range that was asked for; HEAD, and who has them already, gets headers only."""
        parameters(context)
        head = header(context, "x-envoy-original-method") == "HEAD"
        wanted = None
        if head or any(header(context, name) for name in ("range", "if-match", "if-none-match")):
            record = await self._record(file_id)
            download.check_alive(record)
            if download.is_known(header(context, "if-match"), header(context, "if-none-match"), record):
                await context.send_initial_metadata(download.unchanged(record))
                yield httpbody_pb2.HttpBody()
                return
            wanted = download.wanted(header(context, "range"), header(context, "if-range"), record)
            if head:
                await context.send_initial_metadata(download.headers(record, wanted))
                yield httpbody_pb2.HttpBody(content_type=download.CONTENT_TYPE)
                return
        request = files_pb2.DownloadFileRequest(file_id=file_id, tenant=TENANT)
        if wanted:
            request.offset, request.length = wanted.start, len(wanted)
        await self._files.connected()
        async with contextlib.aclosing(rpc.stream(self._files.stub.DownloadFile, request, tenant=TENANT)) as messages:
            async for body in _body(messages, wanted, context):
                yield body

    async def _record(self, file_id: str) -> files_pb2.File:
        request = files_pb2.GetFileRequest(file_id=file_id, tenant=TENANT)
        answer: files_pb2.GetFileResponse = await self._files.ask(self._files.stub.GetFile, request)
        return answer.file


async def _body(
    messages: AsyncIterator[files_pb2.DownloadFileResponse], wanted: range | None, context: Context
) -> AsyncGenerator[httpbody_pb2.HttpBody, None]:
    record = (await anext(messages)).file
    # The first bytes before the headers: what fails until then still gets its status.
    data = (await anext(messages, files_pb2.DownloadFileResponse())).data
    await context.send_initial_metadata(download.headers(record, wanted))
    left = len(wanted) if wanted else record.size_bytes
    left -= len(data)
    yield httpbody_pb2.HttpBody(content_type=download.CONTENT_TYPE, data=data)
    async for message in messages:
        left -= len(message.data)
        yield httpbody_pb2.HttpBody(data=message.data)
    if left:
        raise errors.Unavailable(f"the content ended {left} bytes too early")


async def _bodies(messages: AsyncIterator[gateway_pb2.UploadFileRequest]) -> AsyncGenerator[tuple[str, bytes], None]:
    async for message in messages:
        yield message.http_body.content_type, message.http_body.data


async def _requests(
    messages: AsyncIterator[gateway_pb2.UploadFileRequest], named: _Header
) -> AsyncGenerator[files_pb2.UploadFileRequest, None]:
    """Make header, bytes and end of a form. Raises InvalidRequest."""
    form = Form(_FIELDS)
    size = 0
    async with contextlib.aclosing(form.read(_bodies(messages))) as chunks:
        async for data in gathered(chunks):
            if not size:
                yield files_pb2.UploadFileRequest(header=_header(form, named))
            size += len(data)
            yield files_pb2.UploadFileRequest(data=data)
    final = _header(form, named)
    missing = "purpose" if not final.purpose else _SECONDS if _ANCHOR in form.fields and not final.expires_after_seconds else ""
    if missing:
        raise errors.InvalidRequest(f"Missing required parameter: '{missing}'.", code="missing_required_parameter", param=missing)
    if not size:
        yield files_pb2.UploadFileRequest(header=final)
    end = _End(size_bytes=size, purpose=final.purpose, expires_after_seconds=final.expires_after_seconds)
    yield files_pb2.UploadFileRequest(end=end)


def _header(form: Form, named: _Header) -> _Header:
    """Complete the header by what is known so far. Raises InvalidRequest for what is wrong already."""
    anchor, seconds = form.fields.get(_ANCHOR), form.fields.get(_SECONDS)
    if anchor is not None:
        one_of(_ANCHOR, anchor, ("created_at",))
    expiry = integer(_SECONDS, seconds, MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS) if seconds is not None else 0
    if form.fields.get("purpose") == "":
        raise errors.InvalidRequest("Invalid 'purpose': it must not be empty.", param="purpose")
    purpose = form.fields.get("purpose", "")
    header = _Header(filename=form.filename, purpose=purpose, expires_after_seconds=expiry)
    header.MergeFrom(named)
    return header

"""The Files service under test: fixtures to assign to pytest-grpc's names, and its RPCs as short functions."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest

from haywain import rpc
from haywain.clock import FakeClock
from haywain.files.v1 import files_pb2, files_pb2_grpc, uploads_pb2, uploads_pb2_grpc
from haywain.settings import Settings
from services.files.service import FilesServiceServicer, Services, opened

Message = files_pb2.UploadFileRequest
PartMessage = uploads_pb2.AddUploadPartRequest
LINE = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{}}\n'


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def servicer(settings: Settings, clock: FakeClock) -> AsyncIterator[FilesServiceServicer]:
    async with opened(settings, clock) as services:
        yield services.files


@pytest.fixture
def add_to_server() -> Callable[[Any, Any], None]:
    return files_pb2_grpc.add_FilesServiceServicer_to_server


@pytest.fixture
async def services(settings: Settings, clock: FakeClock) -> AsyncIterator[Services]:
    async with opened(settings, clock) as services:
        yield services


@pytest.fixture
def add_both_to_server() -> Callable[[Services, Any], None]:
    def add(services: Services, server: Any) -> None:
        files_pb2_grpc.add_FilesServiceServicer_to_server(services.files, server)
        uploads_pb2_grpc.add_UploadsServiceServicer_to_server(services.uploads, server)

    return add


@pytest.fixture
def parts_seam(grpc_channel: grpc.aio.Channel) -> Parts:
    return Parts(uploads_pb2_grpc.UploadsServiceStub(grpc_channel))


@pytest.fixture
def stub_cls() -> type[files_pb2_grpc.FilesServiceStub]:
    return files_pb2_grpc.FilesServiceStub


async def sent(*parts: Message.Header | bytes | Message.End) -> AsyncIterator[Message]:
    for part in parts:
        if isinstance(part, bytes):
            yield Message(data=part)
        elif isinstance(part, Message.Header):
            yield Message(header=part)
        else:
            yield Message(end=part)


async def upload(stub: Any, *data: bytes, end: Message.End | None = None, **header: Any) -> files_pb2.File:
    start = Message.Header(**({"tenant": "t", "filename": "in.jsonl", "purpose": "batch"} | header))
    answer = await rpc.call(stub.UploadFile, sent(start, *data, end or Message.End()))
    return answer.file


async def download(stub: Any, file_id: str, **request: Any) -> bytes:
    request = {"tenant": "t"} | request
    messages = [m async for m in rpc.stream(stub.DownloadFile, files_pb2.DownloadFileRequest(file_id=file_id, **request))]
    assert messages[0].file.file_id == file_id
    assert all(0 < len(m.data) <= 512 * 1024 for m in messages[1:])
    return b"".join(m.data for m in messages[1:])


async def get(stub: Any, file_id: str, tenant: str = "t") -> files_pb2.File:
    answer = await rpc.call(stub.GetFile, files_pb2.GetFileRequest(file_id=file_id, tenant=tenant))
    return answer.file


async def delete(stub: Any, file_id: str, tenant: str = "t") -> files_pb2.File:
    answer = await rpc.call(stub.DeleteFile, files_pb2.DeleteFileRequest(file_id=file_id, tenant=tenant))
    return answer.file


async def listed(stub: Any, **request: Any) -> files_pb2.ListFilesResponse:
    return await rpc.call(stub.ListFiles, files_pb2.ListFilesRequest(**({"tenant": "t"} | request)))


async def hold(stub: Any, file_id: str, holder: str = "batch_1", tenant: str = "t") -> files_pb2.HoldBlobResponse:
    return await rpc.call(stub.HoldBlob, files_pb2.HoldBlobRequest(file_id=file_id, tenant=tenant, holder=holder))


async def release(stub: Any, holder: str = "batch_1") -> None:
    await rpc.call(stub.ReleaseBlob, files_pb2.ReleaseBlobRequest(holder=holder))


def blobs_of(data_dir: Path) -> list[str]:
    return sorted(path.name for path in (data_dir / "blobs").glob("*/*"))


async def adopt(stub: Any, data: bytes = b"{}\n", **fields: Any) -> files_pb2.File:
    request = {
        "request_id": "batch_1-output",
        "tenant": "t",
        "blob_key": "output-batch_1",
        "filename": "batch_output_batch_1.jsonl",
        "purpose": "batch_output",
        "size_bytes": len(data),
        "line_count": data.count(b"\n"),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return (await rpc.call(stub.AdoptBlob, files_pb2.AdoptBlobRequest(**(request | fields)))).file


async def put(servicer: FilesServiceServicer, key: str = "output-batch_1", data: bytes = b"{}\n") -> None:
    async with servicer.blobs.writer(key) as writer:
        await writer.write(data)
        await writer.commit()


class Parts:
    """The RPCs of uploads in parts; the tenant is the upload's."""

    def __init__(self, stub: Any) -> None:
        """Take a stub."""
        self.stub = stub

    async def create(self, size_bytes: int = 0, **fields: Any) -> uploads_pb2.Upload:
        request = {"tenant": "t", "filename": "in.jsonl", "purpose": "batch", "mime_type": "text/plain", "size_bytes": size_bytes}
        return (await rpc.call(self.stub.CreateUpload, uploads_pb2.CreateUploadRequest(**(request | fields)))).upload

    def header(self, upload: uploads_pb2.Upload) -> PartMessage.Header:
        return PartMessage.Header(upload_id=upload.upload_id, tenant=upload.tenant)

    async def add(self, upload: uploads_pb2.Upload, *data: bytes) -> uploads_pb2.UploadPart:
        return await self.send(self.header(upload), *data, PartMessage.End(size_bytes=sum(map(len, data))))

    async def send(self, *parts: PartMessage.Header | bytes | PartMessage.End) -> uploads_pb2.UploadPart:
        async def messages() -> AsyncIterator[PartMessage]:
            for part in parts:
                if isinstance(part, bytes):
                    yield PartMessage(data=part)
                elif isinstance(part, PartMessage.Header):
                    yield PartMessage(header=part)
                else:
                    yield PartMessage(end=part)

        return (await rpc.call(self.stub.AddUploadPart, messages())).part

    async def complete(
        self, upload: uploads_pb2.Upload, parts: Iterable[uploads_pb2.UploadPart], md5: str = ""
    ) -> uploads_pb2.Upload:
        request = uploads_pb2.CompleteUploadRequest(
            upload_id=upload.upload_id, tenant=upload.tenant, part_ids=[part.part_id for part in parts], md5=md5
        )
        return (await rpc.call(self.stub.CompleteUpload, request, timeout=60)).upload

    async def cancel(self, upload: uploads_pb2.Upload) -> uploads_pb2.Upload:
        request = uploads_pb2.CancelUploadRequest(upload_id=upload.upload_id, tenant=upload.tenant)
        return (await rpc.call(self.stub.CancelUpload, request)).upload

    async def get(self, upload: uploads_pb2.Upload) -> uploads_pb2.Upload:
        request = uploads_pb2.GetUploadRequest(upload_id=upload.upload_id, tenant=upload.tenant)
        return (await rpc.call(self.stub.GetUpload, request)).upload


async def sweep(services: Services) -> None:
    await services.sweep.expire()
    await services.sweep.purge()
    await services.sweep.scan()

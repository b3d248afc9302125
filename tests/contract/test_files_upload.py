"""Uploads over a real socket: what is stored, and what is refused with nothing stored."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import files_seam
import grpc
import msgspec
import pytest
from files_seam import LINE, Message, blobs_of, download, get, listed, sent, upload

from haywain import errors, rpc
from haywain.clock import FakeClock, seconds
from haywain.files.v1 import files_pb2, files_pb2_grpc
from haywain.settings import DatabaseSettings, FilesSettings, Settings
from services.files.service import opened

REFUSAL = "Invalid file format for Batch API. Must be .jsonl"
clock, grpc_servicer = files_seam.clock, files_seam.servicer
grpc_add_to_server, grpc_stub_cls = files_seam.add_to_server, files_seam.stub_cls


@pytest.fixture
def settings(data_dir: Path, database_url: str) -> Settings:
    files = FilesSettings(max_file_bytes=1_000_000)
    return Settings(data_dir=str(data_dir), db=DatabaseSettings(url=database_url), files=files)


async def test_upload_measures_and_stores(grpc_stub: Any, clock: FakeClock, data_dir: Path) -> None:
    """An upload is answered with its size, its lines, its SHA-256 and its times, and its bytes come back."""
    text = LINE * 10_000
    file = await upload(grpc_stub, *(text[at : at + 100_000] for at in range(0, len(text), 100_000)))
    assert file.file_id.startswith("file-")
    assert (file.tenant, file.filename, file.purpose) == ("t", "in.jsonl", "batch")
    assert (file.size_bytes, file.line_count, file.sha256) == (len(text), 10_000, hashlib.sha256(text).hexdigest())
    assert file.status == files_pb2.File.STATUS_PROCESSED
    assert seconds(file.create_time) == clock.now()
    assert seconds(file.expire_time) == clock.now() + 2_592_000
    assert await get(grpc_stub, file.file_id) == file
    assert await download(grpc_stub, file.file_id) == text
    assert blobs_of(data_dir) == [f"input-{file.file_id}"]


async def test_other_purposes_take_any_bytes_and_never_expire(grpc_stub: Any) -> None:
    """A file of another purpose may hold anything, nothing included, under any name, and has no expiry."""
    for data in (b"", b"\x1f\x8b\x00", b"plain"):
        file = await upload(grpc_stub, data, filename="notes.bin", purpose="user_data")
        assert not file.HasField("expire_time")
        assert await download(grpc_stub, file.file_id) == data


async def test_names_are_not_unique(grpc_stub: Any) -> None:
    """The same name and bytes can be uploaded twice, and any name of up to 1,200 bytes is kept as it is."""
    first = await upload(grpc_stub, LINE, filename="Anfragen für Ü😀.jsonl")
    second = await upload(grpc_stub, LINE, filename="Anfragen für Ü😀.jsonl")
    assert first.file_id < second.file_id
    assert second.filename == "Anfragen für Ü😀.jsonl"


async def test_purpose_may_come_last(grpc_stub: Any, clock: FakeClock, data_dir: Path) -> None:
    """Purpose and expiry may be told by the end; a batch file is then refused there, with nothing stored."""
    file = await upload(grpc_stub, LINE, purpose="", end=Message.End(purpose="batch", expires_after_seconds=3_600))
    assert file.purpose == "batch"
    assert seconds(file.expire_time) == clock.now() + 3_600
    with pytest.raises(errors.InvalidRequest, match=REFUSAL):
        await upload(grpc_stub, b"no", purpose="", end=Message.End(purpose="batch"))
    with pytest.raises(errors.InvalidRequest) as raised:
        await upload(grpc_stub, LINE, purpose="")
    assert (raised.value.code, raised.value.param) == ("missing_required_parameter", "purpose")
    assert blobs_of(data_dir) == [f"input-{file.file_id}"]


@pytest.mark.parametrize(
    ("header", "param", "code"),
    [
        ({"purpose": ""}, "purpose", "missing_required_parameter"),
        ({"purpose": "two words"}, "purpose", "invalid_value"),
        ({"purpose": "bacth"}, "purpose", "invalid_value"),
        ({"filename": ""}, "file", "invalid_value"),
        ({"filename": "x" * 1_195 + ".jsonl"}, "file", "invalid_value"),
        ({"filename": "a\r\nb.jsonl"}, "file", "invalid_value"),
        ({"filename": "in.csv"}, "file", "invalid_value"),
        ({"filename": "in.jsonl.gz"}, "file", "invalid_value"),
        ({"expires_after_seconds": 3_599}, "expires_after.seconds", "integer_below_min_value"),
        ({"expires_after_seconds": -1}, "expires_after.seconds", "integer_below_min_value"),
        ({"expires_after_seconds": 2_592_001}, "expires_after.seconds", "integer_above_max_value"),
        ({"request_id": "x" * 513}, "request_id", "invalid_value"),
    ],
)
async def test_header_is_checked(grpc_stub: Any, data_dir: Path, header: dict[str, Any], param: str, code: str) -> None:
    """A header that can't become a file is refused by name, and nothing is stored."""
    with pytest.raises(errors.InvalidRequest) as raised:
        await upload(grpc_stub, LINE, **header)
    assert (raised.value.param, raised.value.code) == (param, code)
    assert blobs_of(data_dir) == []


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "empty"),
        (b" \r\n\n\t\n", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (gzip.compress(LINE), "gzip"),
        (b"custom_id,method\n", "first line is not a JSON object"),
        (b"[1,2]\n", "first line is not a JSON object"),
        (b"\n\n{'single': 1}\n" + LINE, "first line is not a JSON object"),
        (b'{"open":\n1}\n', "first line is not a JSON object"),
        (b'{"a":1,"a":2}\n', "duplicate key"),
        (b'{"a":NaN}\n', "first line is not a JSON object"),
        (b'{"a":"\xff"}\n', "first line is not a JSON object"),
    ],
)
async def test_batch_files_are_looked_into(grpc_stub: Any, data_dir: Path, data: bytes, found: str) -> None:
    """What can't be a batch file is refused with OpenAI's words and what was found, however it is cut into messages."""
    for pieces in ([data], [bytes([byte]) for byte in data]):
        with pytest.raises(errors.InvalidRequest, match=found) as raised:
            await upload(grpc_stub, *pieces)
        assert raised.value.message.startswith(REFUSAL)
        assert raised.value.param == "file"
    assert blobs_of(data_dir) == []


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (LINE, 1),
        (LINE.rstrip(b"\n"), 1),
        (b"\xef\xbb\xbf" + LINE, 1),
        (b"\xef\xbb\xbf\r\n\r\n" + LINE + b"\n  \n" + LINE.replace(b"\n", b"\r\n"), 2),
        (b" " * 5_000 + b"\n" + LINE + b"not json\n" + '{"a":"x\u2028y\u0085z"}'.encode(), 3),
    ],
)
async def test_tolerated_batch_files(grpc_stub: Any, data: bytes, lines: int) -> None:
    """A BOM, blank lines, CRLF and a missing last line feed are tolerated and not counted; the bytes stay as they are."""
    for pieces in ([data], [bytes([byte]) for byte in data]):
        file = await upload(grpc_stub, *pieces)
        assert file.line_count == lines
        assert await download(grpc_stub, file.file_id) == data


async def test_names_without_an_extension_pass(grpc_stub: Any) -> None:
    """A batch file may have no extension, or .jsonl in any case."""
    for name in ("upload", "IN.JSONL", ".jsonl"):
        assert (await upload(grpc_stub, LINE, filename=name)).filename == name


async def test_too_large_is_refused_on_the_way(grpc_stub: Any, data_dir: Path) -> None:
    """Over the limit by one byte the upload ends, naming limit and measured size, and nothing stays; at the limit it is stored."""
    full = LINE + b" " * (1_000_000 - len(LINE))
    with pytest.raises(errors.TooLarge, match=r"1000001 bytes.*1000000 bytes"):
        await upload(grpc_stub, full, b"\n", *([b"x" * 100_000] * 20))
    assert blobs_of(data_dir) == []
    assert (await upload(grpc_stub, full)).size_bytes == 1_000_000


async def test_stream_without_end_stores_nothing(grpc_stub: Any, data_dir: Path) -> None:
    """A stream that stops before its end leaves no record and no bytes."""
    header = Message.Header(tenant="t", filename="in.jsonl", purpose="batch")
    with pytest.raises(errors.InvalidRequest, match="before its end"):
        await rpc.call(grpc_stub.UploadFile, sent(header, LINE))
    assert blobs_of(data_dir) == []
    assert not (await listed(grpc_stub)).files


@pytest.mark.parametrize("parts", [(), (LINE,), (Message.End(),)])
async def test_upload_begins_with_a_header(grpc_stub: Any, parts: tuple[Any, ...]) -> None:
    """A stream without a header first is refused."""
    with pytest.raises(errors.InvalidRequest, match="must begin with its header"):
        await rpc.call(grpc_stub.UploadFile, sent(*parts))


async def test_two_headers_are_refused(grpc_stub: Any, data_dir: Path) -> None:
    """A second header, or a message with nothing in it, is refused."""
    header = Message.Header(tenant="t", filename="in.jsonl", purpose="batch")

    async def hollow() -> AsyncIterator[Message]:
        yield Message(header=header)
        yield Message()

    for messages in (sent(header, LINE, header), hollow()):
        with pytest.raises(errors.InvalidRequest, match="a header, data, and an end"):
            await rpc.call(grpc_stub.UploadFile, messages)
    assert blobs_of(data_dir) == []


async def test_end_is_compared(grpc_stub: Any, data_dir: Path) -> None:
    """A size or SHA-256 in the end that isn't what arrived refuses the upload."""
    sha256 = hashlib.sha256(LINE).hexdigest()
    for end in (Message.End(size_bytes=1), Message.End(sha256="0" * 64)):
        with pytest.raises(errors.InvalidRequest, match="announced"):
            await upload(grpc_stub, LINE, end=end)
    assert blobs_of(data_dir) == []
    assert await upload(grpc_stub, LINE, end=Message.End(size_bytes=len(LINE), sha256=sha256))


async def test_request_id_makes_a_retry_the_same_upload(grpc_stub: Any, data_dir: Path) -> None:
    """A repeated request_id answers the first file and stores nothing; another tenant's is another's; other bytes conflict."""
    first = await upload(grpc_stub, LINE, request_id="r")
    assert await upload(grpc_stub, LINE, request_id="r") == first
    assert await upload(grpc_stub, LINE, request_id="r", tenant="other") != first
    with pytest.raises(errors.Conflict):
        await upload(grpc_stub, LINE * 2, request_id="r")
    assert len(blobs_of(data_dir)) == 2


async def test_uploaded_status_is_a_setting(settings: Settings, clock: FakeClock, data_dir: Path) -> None:
    """`files.uploaded_status = "uploaded"` is what a stored file then says; any other word is refused at start."""
    other = msgspec.structs.replace(settings, files=FilesSettings(uploaded_status="uploaded"))
    add = files_pb2_grpc.add_FilesServiceServicer_to_server
    async with (
        opened(other, clock) as services,
        rpc.serving(other.address("files"), [(services.files, add, "x")], grace_seconds=0.1),
        rpc.channel(other.address("files")) as channel,
    ):
        file = await upload(files_pb2_grpc.FilesServiceStub(channel), LINE)
    assert file.status == files_pb2.File.STATUS_UPLOADED
    with pytest.raises(errors.SettingsError, match=r"files\.uploaded_status 'ready'"):
        async with opened(msgspec.structs.replace(settings, files=FilesSettings(uploaded_status="ready")), clock):
            pass


async def test_interop_with_bare_grpc(grpc_channel: grpc.aio.Channel) -> None:
    """A caller with nothing but the stub and no tenant is served as the default tenant."""
    stub = files_pb2_grpc.FilesServiceStub(grpc_channel)
    header = Message.Header(filename="in.jsonl", purpose="batch")
    answer = await stub.UploadFile(sent(header, json.dumps({"a": 1}).encode(), Message.End()))
    assert answer.file.tenant == "default"
    assert (await stub.GetFile(files_pb2.GetFileRequest(file_id=answer.file.file_id))).file == answer.file

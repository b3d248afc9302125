"""Uploads in parts over a real socket: what becomes of parts."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import time
from pathlib import Path
from typing import Any

import files_seam
import pytest
from files_seam import LINE, blobs_of, download, get, listed, sweep
from files_seam import Parts as Seam

from haywain import errors, rpc
from haywain.clock import FakeClock, seconds
from haywain.files.v1 import files_pb2, uploads_pb2
from haywain.settings import DatabaseSettings, FilesSettings, Settings
from services.files.service import Services
from services.files.sweep import GRACE_SECONDS
from services.files.upload_store import COMPLETING_SECONDS

Upload = uploads_pb2.Upload


@pytest.fixture
def settings(data_dir: Path, database_url: str) -> Settings:
    limits = FilesSettings(max_file_bytes=1_000_000, max_upload_bytes=3_000_000, max_part_bytes=500_000)
    return Settings(data_dir=str(data_dir), db=DatabaseSettings(url=database_url), files=limits)


@pytest.fixture
def clock() -> FakeClock:
    """Begin now: the sweep compares the clock with the storage's own times."""
    return FakeClock(time.time())


seam = files_seam.parts_seam
grpc_servicer, grpc_add_to_server, grpc_stub_cls = files_seam.services, files_seam.add_both_to_server, files_seam.stub_cls


async def test_parts_at_the_same_time_become_one_file(seam: Seam, grpc_stub: Any, clock: FakeClock, data_dir: Path) -> None:
    """Parts may come at once, in any order and size; the file is theirs in the order of part_ids, measured as a whole."""
    text = b"".join(LINE.replace(b'"a"', b'"%d"' % number) for number in range(10_000))
    chance = random.Random(1)
    edges = sorted({0, len(text), *(chance.randrange(len(text)) for _ in range(30))})
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    upload = await seam.create(len(text))
    assert (upload.status, seconds(upload.expire_time)) == (Upload.STATUS_PENDING, clock.now() + 3_600)
    parts = await asyncio.gather(*(seam.add(upload, piece) for piece in pieces))
    assert [part.size_bytes for part in parts] == [len(piece) for piece in pieces]
    completed = await seam.complete(upload, parts, md5=hashlib.md5(text).hexdigest().upper())  # noqa: S324
    file = completed.file
    assert (completed.status, completed.file.status) == (Upload.STATUS_COMPLETED, files_pb2.File.STATUS_PROCESSED)
    assert (file.size_bytes, file.line_count, file.sha256) == (len(text), 10_000, hashlib.sha256(text).hexdigest())
    assert seconds(file.expire_time) == clock.now() + 2_592_000
    assert await download(grpc_stub, file.file_id) == text
    assert blobs_of(data_dir) == [f"input-{file.file_id}"]
    assert await seam.get(upload) == completed


async def test_completing_again_answers_the_same_file(seam: Seam, grpc_stub: Any, clock: FakeClock) -> None:
    """Completing again answers the same file, at the same time, later, and after the hour is over; other parts are a conflict."""
    upload = await seam.create(len(LINE))
    part = await seam.add(upload, LINE)
    first, *more = await asyncio.gather(*(seam.complete(upload, [part]) for _ in range(5)))
    clock.advance(4_000)
    assert all(again == first for again in [*more, await seam.complete(upload, [part])])
    assert len((await listed(grpc_stub)).files) == 1
    with pytest.raises(errors.Conflict, match="other parts"):
        await seam.complete(upload, [])


async def test_request_id_makes_a_retry_the_same_upload(seam: Seam) -> None:
    """An announcement repeated by its request_id is the same upload; of another file it is a conflict."""
    first = await seam.create(5, request_id="r")
    assert await seam.create(5, request_id="r") == first
    assert await seam.create(5) != first
    with pytest.raises(errors.Conflict):
        await seam.create(6, request_id="r")


async def test_other_tenants_see_nothing(seam: Seam) -> None:
    """Another tenant's upload is one that never was, whatever is asked of it."""
    upload = await seam.create(len(LINE))
    part = await seam.add(upload, LINE)
    foreign = Upload(upload_id=upload.upload_id, tenant="other")
    for work in (seam.add(foreign, LINE), seam.complete(foreign, [part]), seam.cancel(foreign), seam.get(foreign)):
        with pytest.raises(errors.UploadMissing, match=upload.upload_id):
            await work


async def test_limits_name_both_numbers(seam: Seam, data_dir: Path) -> None:
    """A whole, a part, or all parts together over their limit are refused with the limit and the size, and nothing is kept."""
    with pytest.raises(errors.TooLarge, match=r"1000001 bytes.*1000000 bytes"):
        await seam.create(1_000_001)
    with pytest.raises(errors.TooLarge, match=r"3000001 bytes.*3000000 bytes"):
        await seam.create(3_000_001, purpose="user_data")
    upload = await seam.create(3_000_000, purpose="user_data")
    with pytest.raises(errors.TooLarge, match=r"500001 bytes.*500000 bytes"):
        await seam.add(upload, b"x" * 250_000, b"x" * 250_001)
    assert blobs_of(data_dir) == []
    for _ in range(6):
        await seam.add(upload, b"x" * 500_000)
    with pytest.raises(errors.TooLarge, match=r"3000001 bytes.*3000000 bytes"):
        await seam.add(upload, b"x")
    assert len(blobs_of(data_dir)) == 6


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"filename": ""}, "filename"),
        ({"filename": "a.csv"}, "filename"),
        ({"filename": "x" * 1_201}, "filename"),
        ({"purpose": ""}, "purpose"),
        ({"size_bytes": -1}, "bytes"),
        ({"mime_type": "x" * 256}, "mime_type"),
        ({"expires_after_seconds": 3_599}, "expires_after.seconds"),
        ({"request_id": "x" * 513}, "request_id"),
    ],
)
async def test_impossible_announcements(seam: Seam, fields: dict[str, Any], param: str) -> None:
    """What can't become a file is refused by name before a byte is sent."""
    with pytest.raises(errors.InvalidRequest) as raised:
        await seam.create(**fields)
    assert raised.value.param == param


async def test_a_part_without_an_end_is_no_part(seam: Seam, data_dir: Path) -> None:
    """A part that stops before its end, has another size than announced, or no header is refused, and leaves nothing."""
    upload = await seam.create(100, purpose="user_data")
    header = seam.header(upload)
    for messages, told in (
        ((header, b"x"), "before its end"),
        ((header, b"x", uploads_pb2.AddUploadPartRequest.End(size_bytes=2)), "2 bytes were announced, 1 arrived"),
        ((header, header), "a header, data, and an end"),
        ((b"x",), "must begin with its header"),
        ((), "must begin with its header"),
    ):
        with pytest.raises(errors.InvalidRequest, match=told):
            await seam.send(*messages)
    assert blobs_of(data_dir) == []


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ([b"\x1f", b"\x8b\x08 zipped"], "gzip"),
        ([b"[1", b"]\n"], "first line is not a JSON object"),
        ([b"\xef\xbb", b"\xbf\n \n"], "empty"),
        ([b'{"a":1,', b'"a":2}\n', LINE], "duplicate key"),
    ],
)
async def test_the_whole_is_looked_into(seam: Seam, data_dir: Path, pieces: list[bytes], found: str) -> None:
    """What can't be a batch file is refused at the completion, wherever its first line is cut, and the upload stays pending."""
    upload = await seam.create(sum(map(len, pieces)))
    parts = [await seam.add(upload, piece) for piece in pieces]
    before = blobs_of(data_dir)
    with pytest.raises(errors.InvalidRequest, match=f"Must be .jsonl.*{found}"):
        await seam.complete(upload, parts)
    assert blobs_of(data_dir) == before
    assert (await seam.get(upload)).status == Upload.STATUS_PENDING


async def test_md5_is_compared(seam: Seam, data_dir: Path) -> None:
    """Another MD5 than the parts have is refused with both, and the upload can still be completed."""
    upload = await seam.create(len(LINE))
    part = await seam.add(upload, LINE)
    true = hashlib.md5(LINE).hexdigest()  # noqa: S324
    with pytest.raises(errors.InvalidRequest, match=f"{'0' * 32}.*{true}"):
        await seam.complete(upload, [part], md5="0" * 32)
    assert blobs_of(data_dir) == [part.part_id]
    assert (await seam.complete(upload, [part], md5=true)).status == Upload.STATUS_COMPLETED


async def test_cancelling_drops_the_parts(seam: Seam, data_dir: Path) -> None:
    """A cancelled upload keeps no byte and takes none; cancelling again is no error, completing it is."""
    upload = await seam.create(len(LINE))
    part = await seam.add(upload, LINE)
    assert (await seam.cancel(upload)).status == Upload.STATUS_CANCELLED
    assert (await seam.cancel(upload)).status == Upload.STATUS_CANCELLED
    assert blobs_of(data_dir) == []
    for work in (seam.add(upload, LINE), seam.complete(upload, [part])):
        with pytest.raises(errors.Conflict, match="cancelled"):
            await work
    assert blobs_of(data_dir) == []


async def test_an_hour_is_enough(seam: Seam, grpc_servicer: Services, clock: FakeClock, data_dir: Path) -> None:
    """After its hour an upload is expired and takes nothing; its parts stay for who was completing it, then they go."""
    upload = await seam.create(len(LINE))
    part = await seam.add(upload, LINE)
    clock.advance(3_599)
    assert (await seam.get(upload)).status == Upload.STATUS_PENDING
    clock.advance(1)
    for work in (seam.add(upload, LINE), seam.complete(upload, [part]), seam.cancel(upload)):
        with pytest.raises(errors.Conflict, match="expired"):
            await work
    await sweep(grpc_servicer)
    assert blobs_of(data_dir) == [part.part_id]
    clock.advance(COMPLETING_SECONDS)
    await sweep(grpc_servicer)
    assert blobs_of(data_dir) == []
    assert (await seam.get(upload)).status == Upload.STATUS_EXPIRED


async def test_parts_without_a_record_go_after_a_grace(
    seam: Seam, grpc_servicer: Services, clock: FakeClock, data_dir: Path
) -> None:
    """The blob of a part that was never recorded goes after an hour; recorded ones stay."""
    upload = await seam.create(len(LINE))
    part = await seam.add(upload, LINE)
    await files_seam.put(grpc_servicer.files, "part_orphan")
    clock.advance(GRACE_SECONDS - 60)
    await grpc_servicer.sweep.scan()
    assert len(blobs_of(data_dir)) == 2
    clock.advance(120)
    await grpc_servicer.sweep.scan()
    assert blobs_of(data_dir) == [part.part_id]


async def test_the_file_of_an_upload_is_one_like_any(seam: Seam, grpc_stub: Any, grpc_servicer: Services, clock: FakeClock) -> None:
    """It lives as long as was asked for when it was announced, counted from its completion."""
    upload = await seam.create(1, purpose="user_data", filename="a.bin", expires_after_seconds=7_200)
    part = await seam.add(upload, b"x")
    clock.advance(1_000)
    file = (await seam.complete(upload, [part])).file
    assert seconds(file.expire_time) == clock.now() + 7_200
    clock.advance(7_200)
    await sweep(grpc_servicer)
    assert (await get(grpc_stub, file.file_id)).status == files_pb2.File.STATUS_EXPIRED
    assert (await seam.get(upload)).file.status == files_pb2.File.STATUS_EXPIRED


async def test_a_bare_stub_is_the_default_tenant(seam: Seam) -> None:
    """A caller with nothing but the stub and no tenant is served as the default tenant."""
    request = uploads_pb2.CreateUploadRequest(filename="a", purpose="user_data", size_bytes=0)
    upload = (await seam.stub.CreateUpload(request)).upload
    assert upload.tenant == "default"
    completed = await rpc.call(seam.stub.CompleteUpload, uploads_pb2.CompleteUploadRequest(upload_id=upload.upload_id))
    assert completed.upload.file.size_bytes == 0

"""Records over a real socket: downloads, deletion, expiry, tenants, lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import files_seam
import pytest
from files_seam import LINE, blobs_of, delete, download, get, hold, listed, upload

from haywain import errors, rpc
from haywain.clock import FakeClock
from haywain.files.v1 import files_pb2
from services.files.service import FilesServiceServicer

clock, grpc_servicer = files_seam.clock, files_seam.servicer
grpc_add_to_server, grpc_stub_cls = files_seam.add_to_server, files_seam.stub_cls


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (0, 1), (5, 0), (5, 7), (900_000, 0), (999_999, 5), (1_000_000, 0)])
async def test_download_ranges(grpc_stub: Any, offset: int, length: int) -> None:
    """A download gives the bytes from `offset`, `length` of them or all that follow, and no more than there are."""
    data = b"".join(b"%07d\n" % number for number in range(125_000))
    file = await upload(grpc_stub, data[:600_000], data[600_000:], purpose="user_data")
    wanted = data[offset : offset + length] if length else data[offset:]
    assert await download(grpc_stub, file.file_id, offset=offset, length=length) == wanted


@pytest.mark.parametrize("wanted", [{"offset": -1}, {"length": -1}, {"offset": len(LINE) + 1}])
async def test_impossible_ranges(grpc_stub: Any, wanted: dict[str, int]) -> None:
    """A negative range or one that begins behind the end is refused before the first message."""
    file = await upload(grpc_stub, LINE)
    with pytest.raises(errors.InvalidRequest) as raised:
        await download(grpc_stub, file.file_id, **wanted)
    assert raised.value.param in wanted


async def test_deleted_while_downloading(grpc_stub: Any, data_dir: Path) -> None:
    """A download that has begun gets all its bytes, though the file is deleted meanwhile."""
    data = b"x" * 900_000
    file = await upload(grpc_stub, data, purpose="user_data")
    messages = rpc.stream(grpc_stub.DownloadFile, files_pb2.DownloadFileRequest(file_id=file.file_id, tenant="t"))
    assert (await anext(messages)).file == file
    await delete(grpc_stub, file.file_id)
    assert blobs_of(data_dir) == []
    assert b"".join([m.data async for m in messages]) == data


async def test_lost_bytes_are_told_as_an_error_of_ours(grpc_stub: Any, data_dir: Path) -> None:
    """When the blob of a living record is not there, or is cut short, the download fails and never looks complete."""
    file = await upload(grpc_stub, LINE * 10)
    blob = next((data_dir / "blobs").glob("*/input-*"))
    blob.write_bytes(LINE * 9)
    with pytest.raises(errors.HaywainError) as raised:
        await download(grpc_stub, file.file_id)
    assert type(raised.value) is errors.HaywainError
    blob.unlink()
    with pytest.raises(errors.HaywainError) as raised:
        await download(grpc_stub, file.file_id)
    assert type(raised.value) is errors.HaywainError


async def test_deletion_keeps_the_record(grpc_stub: Any, data_dir: Path) -> None:
    """A deleted file keeps its record, loses its bytes, isn't listed, and can be deleted again with the same answer."""
    file = await upload(grpc_stub, LINE)
    answer = await delete(grpc_stub, file.file_id)
    assert answer.status == files_pb2.File.STATUS_DELETED
    assert await delete(grpc_stub, file.file_id) == answer == await get(grpc_stub, file.file_id)
    assert blobs_of(data_dir) == []
    assert not (await listed(grpc_stub)).files
    with pytest.raises(errors.FileGone) as raised:
        await download(grpc_stub, file.file_id)
    assert raised.value.code == "file_deleted"


async def test_expiry_needs_no_sweep(grpc_stub: Any, clock: FakeClock, data_dir: Path, grpc_servicer: FilesServiceServicer) -> None:
    """At its expiry a file is expired for every reader at once; the sweep then takes its bytes and the record stays."""
    file = await upload(grpc_stub, LINE, expires_after_seconds=3_600)
    clock.advance(3_599)
    assert (await get(grpc_stub, file.file_id)).status == files_pb2.File.STATUS_PROCESSED
    clock.advance(1)
    assert (await get(grpc_stub, file.file_id)).status == files_pb2.File.STATUS_EXPIRED
    assert [f.status for f in (await listed(grpc_stub)).files] == [files_pb2.File.STATUS_EXPIRED]
    for refused in (download(grpc_stub, file.file_id), hold(grpc_stub, file.file_id)):
        with pytest.raises(errors.FileGone) as raised:
            await refused
        assert raised.value.code == "file_expired"
    await grpc_servicer.sweep.expire()
    await grpc_servicer.sweep.purge()
    assert blobs_of(data_dir) == []
    assert (await get(grpc_stub, file.file_id)).status == files_pb2.File.STATUS_EXPIRED
    assert (await delete(grpc_stub, file.file_id)).status == files_pb2.File.STATUS_DELETED


async def test_tenants_do_not_meet(grpc_stub: Any) -> None:
    """Another tenant's file is missing in every RPC, and an unknown id likewise."""
    file = await upload(grpc_stub, LINE)
    for file_id, tenant in ((file.file_id, "other"), ("file-nope", "t")):
        for refused in (
            get(grpc_stub, file_id, tenant),
            delete(grpc_stub, file_id, tenant),
            hold(grpc_stub, file_id, tenant=tenant),
            download(grpc_stub, file_id, tenant=tenant),
        ):
            with pytest.raises(errors.FileMissing, match=file_id):
                await refused
    assert not (await listed(grpc_stub, tenant="other")).files
    with pytest.raises(errors.NoSuchCursor):
        await listed(grpc_stub, tenant="other", page_token=file.file_id)
    assert (await get(grpc_stub, file.file_id)).status == files_pb2.File.STATUS_PROCESSED


@pytest.mark.parametrize("ascending", [False, True])
async def test_pages_never_loop_or_skip(grpc_stub: Any, clock: FakeClock, ascending: bool) -> None:
    """Pages follow (created_at, id) both ways through ties, and go on behind a file that was deleted meanwhile."""
    made = []
    for number in range(7):
        made.append((await upload(grpc_stub, LINE, purpose="batch" if number % 2 else "user_data")).file_id)
        clock.advance(number == 3)
    wanted = made if ascending else made[::-1]
    for size in (1, 2, 3, 7, 8):
        seen: list[str] = []
        token = ""
        while True:
            page = await listed(grpc_stub, page_size=size, page_token=token, ascending=ascending)
            seen += [file.file_id for file in page.files]
            token = page.next_page_token
            if not token:
                break
            assert token == seen[-1]
        assert seen == wanted
    batches = await listed(grpc_stub, purpose="batch", page_size=2, ascending=ascending)
    assert [f.file_id for f in batches.files] == [i for i in wanted if made.index(i) % 2][:2]
    await delete(grpc_stub, wanted[2])
    assert [f.file_id for f in (await listed(grpc_stub, page_token=wanted[2], ascending=ascending)).files] == wanted[3:]


async def test_page_size_and_token_are_checked(grpc_stub: Any) -> None:
    """No page_size means 10,000; more, less than nothing, and unknown tokens are refused by OpenAI's codes."""
    await upload(grpc_stub, LINE)
    assert len((await listed(grpc_stub)).files) == 1
    for fields, code in (
        ({"page_size": 10_001}, "integer_above_max_value"),
        ({"page_size": -1}, "integer_below_min_value"),
        ({"page_token": "file-nope"}, "invalid_value"),
    ):
        with pytest.raises(errors.InvalidRequest) as raised:
            await listed(grpc_stub, **fields)
        assert raised.value.code == code

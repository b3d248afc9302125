"""Bytes that other services need: holds and adopted blobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import files_seam
import pytest
from files_seam import LINE, adopt, blobs_of, delete, download, hold, listed, put, release, upload

from haywain import errors, rpc
from haywain.clock import FakeClock, seconds
from haywain.files.v1 import files_pb2
from services.files.service import FilesServiceServicer
from services.files.sweep import RELEASE_SECONDS

clock, grpc_servicer = files_seam.clock, files_seam.servicer
grpc_add_to_server, grpc_stub_cls = files_seam.add_to_server, files_seam.stub_cls


async def test_held_bytes_outlive_the_file(grpc_stub: Any, data_dir: Path) -> None:
    """Bytes stay while anyone holds them, whatever becomes of the file, and go with the last hold."""
    file = await upload(grpc_stub, LINE)
    held = await hold(grpc_stub, file.file_id, "batch_1")
    assert held.blob_key == f"input-{file.file_id}"
    assert held.file == file
    await hold(grpc_stub, file.file_id, "batch_2")
    await hold(grpc_stub, file.file_id, "batch_2")
    await delete(grpc_stub, file.file_id)
    assert blobs_of(data_dir) == [held.blob_key]
    await release(grpc_stub, "batch_1")
    await release(grpc_stub, "batch_1")
    assert (await hold(grpc_stub, file.file_id, "batch_2")).blob_key == held.blob_key
    assert blobs_of(data_dir) == [held.blob_key]
    await release(grpc_stub, "batch_2")
    assert blobs_of(data_dir) == []
    with pytest.raises(errors.FileGone):
        await hold(grpc_stub, file.file_id, "batch_3")


async def test_release_leaves_living_files_alone(grpc_stub: Any) -> None:
    """Releasing a file that is neither deleted nor expired takes nothing from it; releasing nothing is no error."""
    file = await upload(grpc_stub, LINE)
    await hold(grpc_stub, file.file_id)
    await release(grpc_stub)
    await release(grpc_stub, "batch_of_nobody")
    assert await download(grpc_stub, file.file_id) == LINE


async def test_adoption_gives_one_file(grpc_stub: Any, grpc_servicer: FilesServiceServicer, clock: FakeClock) -> None:
    """An adopted blob is an ordinary file; repeating the request answers the same one, also when it was deleted meanwhile."""
    await put(grpc_servicer)
    file = await adopt(grpc_stub, expires_after_seconds=7_200)
    assert (file.purpose, file.line_count, seconds(file.expire_time)) == ("batch_output", 1, clock.now() + 7_200)
    clock.advance(90_000)
    await grpc_servicer.sweep.scan()
    assert (await adopt(grpc_stub)).file_id == file.file_id
    await delete(grpc_stub, file.file_id)
    again = await adopt(grpc_stub)
    assert (again.file_id, again.status) == (file.file_id, files_pb2.File.STATUS_DELETED)


async def test_adopted_files_are_listed_and_downloaded(grpc_stub: Any, grpc_servicer: FilesServiceServicer) -> None:
    """Results are files like any other, and stay until deleted unless told otherwise."""
    await put(grpc_servicer)
    file = await adopt(grpc_stub)
    assert not file.HasField("expire_time")
    assert list((await listed(grpc_stub, purpose="batch_output")).files) == [file]
    assert await download(grpc_stub, file.file_id) == b"{}\n"


@pytest.mark.parametrize(
    "fields",
    [
        {"request_id": ""},
        {"blob_key": "output-nowhere"},
        {"blob_key": "../../etc/passwd"},
        {"blob_key": "input-file-1"},
        {"size_bytes": 4},
        {"filename": ""},
        {"purpose": ""},
    ],
)
async def test_impossible_adoptions(grpc_stub: Any, grpc_servicer: FilesServiceServicer, fields: dict[str, Any]) -> None:
    """What isn't there, isn't the announced size, or has no name is not adopted."""
    await put(grpc_servicer)
    with pytest.raises(errors.InvalidRequest):
        await adopt(grpc_stub, **fields)
    assert not (await listed(grpc_stub)).files


async def test_a_blob_belongs_to_one_file(grpc_stub: Any, grpc_servicer: FilesServiceServicer) -> None:
    """A blob can't be adopted by two requests, nor two blobs by one."""
    await put(grpc_servicer)
    await put(grpc_servicer, "error-batch_1")
    await adopt(grpc_stub)
    with pytest.raises(errors.Conflict):
        await adopt(grpc_stub, request_id="other")
    with pytest.raises(errors.Conflict):
        await adopt(grpc_stub, blob_key="error-batch_1")


async def test_adopted_and_held_at_once(grpc_stub: Any, grpc_servicer: FilesServiceServicer, data_dir: Path) -> None:
    """An adopted file can have an id that its adopter chose, and be held from the start, whatever becomes of the file."""
    await put(grpc_servicer)
    file = await adopt(grpc_stub, file_id="file-0123abcd", holder="batch_1")
    assert file.file_id == "file-0123abcd"
    await delete(grpc_stub, file.file_id)
    assert blobs_of(data_dir) == ["output-batch_1"]
    assert (await adopt(grpc_stub, file_id="file-0123abcd", holder="batch_1")).file_id == file.file_id
    await release(grpc_stub, "batch_1")
    assert blobs_of(data_dir) == []
    with pytest.raises(errors.InvalidRequest, match="not an id"):
        await adopt(grpc_stub, request_id="other", file_id="file-../x")


async def test_a_hold_that_its_release_overtook_is_refused(
    grpc_stub: Any, grpc_servicer: FilesServiceServicer, clock: FakeClock, data_dir: Path
) -> None:
    """A holder that has let go holds nothing again, so a hold that arrives after the release can't keep bytes for ever."""
    file = await upload(grpc_stub, LINE)
    await release(grpc_stub, "batch_late")
    with pytest.raises(errors.Conflict, match="batch_late"):
        await hold(grpc_stub, file.file_id, "batch_late")
    await delete(grpc_stub, file.file_id)
    assert blobs_of(data_dir) == []
    clock.advance(RELEASE_SECONDS - 1)
    await grpc_servicer.sweep.scan()
    other = await upload(grpc_stub, LINE)
    with pytest.raises(errors.Conflict):
        await hold(grpc_stub, other.file_id, "batch_late")
    clock.advance(2)
    await grpc_servicer.sweep.scan()
    assert await hold(grpc_stub, other.file_id, "batch_late")


async def test_many_go_in_one_call(grpc_stub: Any, grpc_servicer: FilesServiceServicer, data_dir: Path) -> None:
    """Holds, adoptions and releases of many do what each alone does, and answer in order."""
    files = [await upload(grpc_stub, LINE) for _ in range(3)]
    holds = [files_pb2.HoldBlobRequest(file_id=file.file_id, tenant="t", holder=f"batch_{at}") for at, file in enumerate(files)]
    held = await rpc.call(grpc_stub.HoldBlobs, files_pb2.HoldBlobsRequest(holds=holds))
    assert [one.file for one in held.held] == files
    for file in files:
        await delete(grpc_stub, file.file_id)
    assert blobs_of(data_dir) == sorted(one.blob_key for one in held.held)
    await rpc.call(grpc_stub.ReleaseBlobs, files_pb2.ReleaseBlobsRequest(holders=["batch_0", "batch_2"]))
    assert blobs_of(data_dir) == [held.held[1].blob_key]
    await put(grpc_servicer)
    alone = await adopt(grpc_stub)
    again = files_pb2.AdoptBlobRequest(request_id="batch_1-output", tenant="t", blob_key="output-batch_1")
    adopted = await rpc.call(grpc_stub.AdoptBlobs, files_pb2.AdoptBlobsRequest(blobs=[again, again]))
    assert [one.file for one in adopted.adopted] == [alone, alone]


async def test_one_that_is_refused_fails_the_call_for_many(grpc_stub: Any) -> None:
    """The call for many raises what one of them alone raises; the others may have happened, and can be repeated."""
    file = await upload(grpc_stub, LINE)
    holds = [files_pb2.HoldBlobRequest(file_id=name, tenant="t", holder="batch_1") for name in (file.file_id, "file-none")]
    with pytest.raises(errors.FileMissing):
        await rpc.call(grpc_stub.HoldBlobs, files_pb2.HoldBlobsRequest(holds=holds))
    assert (await hold(grpc_stub, file.file_id, "batch_1")).file == file

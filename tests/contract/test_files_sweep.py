"""What time, vanished clients and kills leave behind, and that it goes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import files_seam
import pytest
from files_seam import LINE, Message, blobs_of, delete, download, get, hold, put, release, upload

from haywain import errors, rpc
from haywain.clock import FakeClock
from haywain.files.v1 import files_pb2, files_pb2_grpc
from haywain.settings import Settings
from services.files import service
from services.files.service import FilesServiceServicer
from services.files.sweep import GRACE_SECONDS
from services.files.uploads import Uploads

grpc_servicer = files_seam.servicer
grpc_add_to_server, grpc_stub_cls = files_seam.add_to_server, files_seam.stub_cls


@pytest.fixture
def clock() -> FakeClock:
    """Begin now: the sweep compares the clock with the storage's own times."""
    return FakeClock(time.time())


async def empty(folder: Path) -> None:
    """Wait until a folder holds nothing; it has no event to wait for."""
    async with asyncio.timeout(10):
        while os.listdir(folder):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_kill_between_record_and_bytes_is_made_good(
    grpc_stub: Any, grpc_servicer: FilesServiceServicer, data_dir: Path
) -> None:
    """When a kill comes after a deletion was recorded and before its bytes went, the next sweep removes them; twice is once."""
    file, other = await upload(grpc_stub, LINE), await upload(grpc_stub, LINE)
    await grpc_servicer.store.delete("t", file.file_id)
    assert len(blobs_of(data_dir)) == 2
    await grpc_servicer.sweep.purge()
    assert blobs_of(data_dir) == [f"input-{other.file_id}"]
    doomed = await grpc_servicer.store.doomed(10)
    await grpc_servicer.sweep.purge()
    assert doomed == {}
    assert await download(grpc_stub, other.file_id) == LINE


async def test_a_kill_between_bytes_and_their_mark_is_made_good(grpc_stub: Any, grpc_servicer: FilesServiceServicer) -> None:
    """When a kill comes after the bytes went and before that was noted, the next sweep notes it."""
    file = await upload(grpc_stub, LINE)
    await grpc_servicer.store.delete("t", file.file_id)
    await grpc_servicer.blobs.delete(f"input-{file.file_id}")
    await grpc_servicer.sweep.purge()
    assert await grpc_servicer.store.doomed(10) == {}


async def test_a_kill_between_release_and_bytes_is_made_good(
    grpc_stub: Any, grpc_servicer: FilesServiceServicer, data_dir: Path
) -> None:
    """When a kill comes after the last hold ended and before the bytes went, the next sweep removes them."""
    file = await upload(grpc_stub, LINE)
    await hold(grpc_stub, file.file_id)
    await delete(grpc_stub, file.file_id)
    await grpc_servicer.sweep.purge()
    assert len(blobs_of(data_dir)) == 1
    await grpc_servicer.store.release(["batch_1"])
    await grpc_servicer.sweep.purge()
    assert blobs_of(data_dir) == []


async def test_blobs_without_a_record_go_after_a_grace(
    grpc_stub: Any, grpc_servicer: FilesServiceServicer, clock: FakeClock, data_dir: Path
) -> None:
    """An upload's blob that was never recorded goes after an hour; recorded ones, other services' and young ones stay."""
    file = await upload(grpc_stub, LINE, purpose="user_data")
    for key in ("input-file-orphan", "output-batch_1", "index-batch_1"):
        await put(grpc_servicer, key)
    clock.advance(GRACE_SECONDS - 60)
    await grpc_servicer.sweep.scan()
    assert len(blobs_of(data_dir)) == 4
    clock.advance(120)
    await grpc_servicer.sweep.scan()
    assert blobs_of(data_dir) == ["index-batch_1", f"input-{file.file_id}", "output-batch_1"]


async def test_a_record_never_comes_after_the_grace(
    grpc_stub: Any, grpc_servicer: FilesServiceServicer, clock: FakeClock, settings: Settings, data_dir: Path
) -> None:
    """An upload that was stopped for long between blob and record is refused: the sweep may have taken its bytes."""

    class Stopped(Uploads):
        async def _record(self, *arguments: Any) -> Any:
            clock.advance(GRACE_SECONDS + 60)
            await grpc_servicer.sweep.scan()
            return await super()._record(*arguments)

    stores = (grpc_servicer.store, grpc_servicer.uploads.answers)
    grpc_servicer.uploads = Stopped(stores, grpc_servicer.blobs, settings, clock)
    with pytest.raises(errors.Unavailable):
        await upload(grpc_stub, LINE)
    assert blobs_of(data_dir) == []


async def test_scratch_of_the_dead_goes(grpc_servicer: FilesServiceServicer, clock: FakeClock) -> None:
    """A scratch file that nobody has written to for an hour goes, a younger one stays."""
    left = grpc_servicer.blobs.scratch()
    left.write_bytes(b"half")
    await grpc_servicer.sweep.scan()
    assert left.exists()
    clock.advance(GRACE_SECONDS + 60)
    await grpc_servicer.sweep.scan()
    assert not left.exists()


async def test_request_ids_of_uploads_are_forgotten(grpc_stub: Any, grpc_servicer: FilesServiceServicer, clock: FakeClock) -> None:
    """After a day the same request_id makes a new file."""
    first = await upload(grpc_stub, LINE, request_id="r")
    clock.advance(86_399)
    await grpc_servicer.sweep.scan()
    assert (await upload(grpc_stub, LINE, request_id="r")).file_id == first.file_id
    clock.advance(2)
    await grpc_servicer.sweep.scan()
    assert (await upload(grpc_stub, LINE, request_id="r")).file_id != first.file_id


async def test_more_than_a_page_is_purged(
    grpc_stub: Any, grpc_servicer: FilesServiceServicer, clock: FakeClock, data_dir: Path
) -> None:
    """Held bytes don't keep the sweep from those behind them."""
    first = await upload(grpc_stub, LINE)
    await hold(grpc_stub, first.file_id)
    for _ in range(5):
        await upload(grpc_stub, LINE)
    clock.advance(2_592_000)
    await grpc_servicer.sweep.expire()
    await grpc_servicer.sweep.purge()
    assert blobs_of(data_dir) == [f"input-{first.file_id}"]
    assert (await get(grpc_stub, first.file_id)).status == files_pb2.File.STATUS_EXPIRED
    await release(grpc_stub)
    assert blobs_of(data_dir) == []


async def test_a_client_that_vanishes_leaves_nothing(grpc_stub: Any, data_dir: Path) -> None:
    """A client that breaks the call off in mid-upload leaves neither record nor blob nor scratch file."""
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[Message]:
        yield Message(header=Message.Header(tenant="t", filename="in.jsonl", purpose="batch"))
        while True:
            yield Message(data=LINE)
            if any((data_dir / "blobs" / "scratch").iterdir()):
                begun.set()

    call = grpc_stub.UploadFile(endless())
    await begun.wait()
    call.cancel()
    await empty(data_dir / "blobs" / "scratch")
    assert blobs_of(data_dir) == []


async def test_a_client_that_falls_silent_is_let_go(
    grpc_stub: Any, grpc_servicer: FilesServiceServicer, settings: Settings, clock: FakeClock, data_dir: Path
) -> None:
    """An upload without a message for the idle time ends with nothing stored."""
    stores = (grpc_servicer.store, grpc_servicer.uploads.answers)
    grpc_servicer.uploads = Uploads(stores, grpc_servicer.blobs, settings, clock, idle_seconds=0.05)
    ended = asyncio.Event()

    async def silent() -> AsyncIterator[Message]:
        yield Message(header=Message.Header(tenant="t", filename="in.jsonl", purpose="batch"))
        yield Message(data=LINE)
        await ended.wait()

    with pytest.raises(errors.DeadlineExceeded, match=r"0\.05 seconds"):
        await rpc.call(grpc_stub.UploadFile, silent())
    ended.set()
    await empty(data_dir / "blobs" / "scratch")


async def test_the_same_request_id_at_the_same_time(grpc_stub: Any, data_dir: Path) -> None:
    """Of uploads that race with one request_id one is stored, and all are answered with it."""
    files = await asyncio.gather(*(upload(grpc_stub, LINE, request_id="r") for _ in range(8)))
    assert len({file.file_id for file in files}) == 1
    assert blobs_of(data_dir) == [f"input-{files[0].file_id}"]


async def test_the_process_serves_sweeps_and_stops(settings: Settings, data_dir: Path) -> None:
    """`serve` answers at its address, sweeps at once, keeps everything over a restart, and returns when told to stop."""
    orphan = data_dir / "blobs" / "scratch" / "1-left"
    file = None
    for _ in range(2):
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(service.serve(settings, stopping))
            async with rpc.channel(settings.address("files")) as channel:
                stub = files_pb2_grpc.FilesServiceStub(channel)
                file = await upload(stub, LINE) if file is None else await get(stub, file.file_id)
                assert await download(stub, file.file_id) == LINE
            stopping.set()
        orphan.parent.mkdir(parents=True, exist_ok=True)
    assert file is not None

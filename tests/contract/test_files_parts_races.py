"""Uploads in parts when calls meet: a cancellation, the clock, another process or a vanishing client in the middle of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import files_seam
import pytest
from files_seam import LINE, blobs_of, listed
from files_seam import Parts as Seam

from haywain import errors
from haywain.clock import FakeClock
from haywain.files.v1 import uploads_pb2
from haywain.settings import Settings
from services.files.parts import Parts
from services.files.service import Services

Upload = uploads_pb2.Upload
seam = files_seam.parts_seam
grpc_servicer, grpc_add_to_server, grpc_stub_cls = files_seam.services, files_seam.add_both_to_server, files_seam.stub_cls


@pytest.fixture
def clock() -> FakeClock:
    """Begin now: the sweep compares the clock with the storage's own times."""
    return FakeClock(time.time())


class Interrupted(Parts):
    """Parts that do something in the middle of a completion or of storing a part, once."""

    meanwhile: Callable[[], Any]

    def _file(self, *arguments: Any) -> Any:
        self._store = _Before(self._store, self.meanwhile)  # type: ignore[assignment]
        return super()._file(*arguments)


class _Before:
    def __init__(self, store: Any, meanwhile: Callable[[], Any]) -> None:
        self._store, self._meanwhile = store, meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def complete(self, *arguments: Any) -> Any:
        await self._meanwhile()
        return await self._store.complete(*arguments)


@pytest.fixture
def interrupted(grpc_servicer: Services, settings: Settings, clock: FakeClock) -> Interrupted:
    """Put the interrupted parts in the place of the others."""
    uploads = grpc_servicer.uploads
    uploads.parts = Interrupted(uploads.store, grpc_servicer.files.blobs, settings, clock)
    return uploads.parts


async def test_cancelled_while_it_completes(seam: Seam, interrupted: Interrupted, grpc_stub: Any, data_dir: Path) -> None:
    """A cancellation that comes before the completion is recorded counts: no file, and not a byte is left."""
    upload = await seam.create(len(LINE))
    part = await seam.add(upload, LINE)
    interrupted.meanwhile = lambda: seam.cancel(upload)
    with pytest.raises(errors.Conflict, match="cancelled"):
        await seam.complete(upload, [part])
    assert blobs_of(data_dir) == []
    assert not (await listed(grpc_stub)).files


async def test_its_hour_ends_while_it_completes(seam: Seam, interrupted: Interrupted, clock: FakeClock) -> None:
    """A completion that began in time ends well, though the hour ended meanwhile."""
    upload = await seam.create(len(LINE))
    part = await seam.add(upload, LINE)
    clock.advance(3_590)

    async def wait() -> None:
        clock.advance(60)

    interrupted.meanwhile = wait
    assert (await seam.complete(upload, [part])).status == Upload.STATUS_COMPLETED


async def test_two_processes_complete_at_once(
    seam: Seam, interrupted: Interrupted, grpc_servicer: Services, settings: Settings, clock: FakeClock, data_dir: Path
) -> None:
    """Of completions in two processes the first counts, both answer its file, and the other's bytes are gone."""
    upload = await seam.create(len(LINE))
    part = await seam.add(upload, LINE)
    other = Parts(grpc_servicer.uploads.store, grpc_servicer.files.blobs, settings, clock)
    found = []

    async def complete() -> None:
        found.append(await other.complete("t", upload.upload_id, [part.part_id], ""))

    interrupted.meanwhile = complete
    completed = await seam.complete(upload, [part])
    assert completed.file.file_id == found[0].file_id
    assert blobs_of(data_dir) == [f"input-{found[0].file_id}"]


async def test_a_client_that_vanishes_in_a_part_leaves_nothing(seam: Seam, data_dir: Path) -> None:
    """A client that breaks the call off in mid-part leaves neither record nor blob nor scratch file."""
    upload = await seam.create(100_000, purpose="user_data")
    scratch = data_dir / "blobs" / "scratch"
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[uploads_pb2.AddUploadPartRequest]:
        yield uploads_pb2.AddUploadPartRequest(header=seam.header(upload))
        while True:
            yield uploads_pb2.AddUploadPartRequest(data=LINE)
            if any(scratch.iterdir()):
                begun.set()

    call = seam.stub.AddUploadPart(endless())
    await begun.wait()
    call.cancel()
    async with asyncio.timeout(10):
        while any(scratch.iterdir()):  # noqa: ASYNC110 - a folder has no event to wait for
            await asyncio.sleep(0.001)
    assert blobs_of(data_dir) == []

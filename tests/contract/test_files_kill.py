"""kill -9 of the Files process in the middle of uploads and deletions: what was answered is there, and nothing is there by half."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
from files_seam import LINE, Parts, blobs_of, delete, download, get, listed, upload

from haywain import errors, rpc
from haywain.files.v1 import files_pb2, files_pb2_grpc, uploads_pb2_grpc
from haywain.settings import Settings


@contextlib.asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[tuple[files_pb2_grpc.FilesServiceStub, asyncio.subprocess.Process]]:
    """Run `haywain files` in a process of its own, ready when the block begins, killed at its end at the latest."""
    arguments = ("-m", "haywain", "files", "--set", f"data_dir={settings.data_dir}", "--set", "log.level=error")
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    try:
        async with connected(settings) as channel:
            yield files_pb2_grpc.FilesServiceStub(channel), process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel to a process that is starting."""
    async with rpc.channel(settings.address("files")) as channel:
        await ready(files_pb2_grpc.FilesServiceStub(channel))
        yield channel


async def ready(stub: files_pb2_grpc.FilesServiceStub) -> None:
    """Wait until the new process answers; what is left of the killed one's connection may still refuse a call or two."""
    for attempt in range(10):
        try:
            await rpc.call(stub.ListFiles, files_pb2.ListFilesRequest(tenant="t"), timeout=30)
        except errors.Unavailable:
            assert attempt < 9
        else:
            return


def content(number: int) -> bytes:
    """Make the bytes of an upload, different for each and different in size."""
    return LINE * (1 + number * 997 % 3_000) + b'{"n":%d}\n' % number


async def test_what_was_answered_survives_kills(settings: Settings) -> None:
    """Uploads repeated by request_id through kills are stored once each, whole; deletions answered once hold for ever."""
    answered: dict[int, files_pb2.File] = {}
    deleted: set[str] = set()

    async def client(stub: files_pb2_grpc.FilesServiceStub, enough: asyncio.Event, goal: int, numbers: range) -> None:
        for number in numbers:
            if number not in answered:
                answered[number] = await upload(stub, content(number), request_id=str(number))
                if number % 3 == 0:
                    deleted.add((await delete(stub, answered[number].file_id)).file_id)
            if len(answered) >= goal:
                enough.set()

    for goal in (3, 11, 17, 29):
        async with running(settings) as (stub, process):
            enough = asyncio.Event()
            clients = [asyncio.ensure_future(client(stub, enough, goal, range(first, 40, 4))) for first in range(4)]
            await enough.wait()
            process.kill()
            ended = await asyncio.gather(*clients, return_exceptions=True)
        assert all(isinstance(end, errors.Unavailable | errors.DeadlineExceeded | None) for end in ended), ended

    async with running(settings) as (stub, process):
        for number in range(40):
            again = await upload(stub, content(number), request_id=str(number))
            assert again.file_id == answered.setdefault(number, again).file_id
        living = {file.file_id: file for file in (await listed(stub)).files}
        assert not deleted & set(living)
        for number, file in answered.items():
            if file.file_id in living:
                assert living[file.file_id].sha256 == hashlib.sha256(content(number)).hexdigest()
                assert await download(stub, file.file_id) == content(number)
            else:
                assert (await get(stub, file.file_id)).status == files_pb2.File.STATUS_DELETED
        assert set(living) <= {file.file_id for file in answered.values()}
        assert {f"input-{file_id}" for file_id in living} <= set(blobs_of(settings.data))


def copying(data: Path) -> bool:
    """Tell whether the whole is being written."""
    return bool(os.listdir(data / "blobs" / "scratch"))


def published(data: Path) -> bool:
    """Tell whether the whole is there, recorded or not."""
    return any(key.startswith("input-") for key in blobs_of(data))


def purging(data: Path) -> bool:
    """Tell whether parts go, which they only do once the completion is recorded."""
    return len([*(data / "blobs").glob("*/part_*")]) < 8


@pytest.mark.parametrize("moment", [copying, published, purging])
async def test_a_completion_survives_kills(settings: Settings, moment: Callable[[Path], bool]) -> None:
    """Killed while it copies, before it is recorded, or before its parts are gone, a completion repeated answers one whole file.

    After the grace nothing is on disk but that file.
    """
    pieces = [content(number + 100) * 10 for number in range(8)]
    text = b"".join(pieces)
    async with running(settings) as (stub, process), connected(settings) as channel:
        seam = Parts(uploads_pb2_grpc.UploadsServiceStub(channel))
        made = await seam.create(len(text))
        parts = [await seam.add(made, piece) for piece in pieces]
        call = asyncio.ensure_future(seam.complete(made, parts))
        while not moment(settings.data) and not call.done():  # noqa: ASYNC110 - a folder has no event to wait for
            await asyncio.sleep(0)
        process.kill()
        with contextlib.suppress(errors.Unavailable):
            await call
    for path in (settings.data / "blobs").glob("*/*"):
        os.utime(path, (time.time() - 8_000,) * 2)
    async with running(settings) as (stub, process), connected(settings) as channel:
        seam = Parts(uploads_pb2_grpc.UploadsServiceStub(channel))
        first, again = [await seam.complete(made, parts) for _ in range(2)]
        assert first == again
        assert (first.file.size_bytes, first.file.sha256) == (len(text), hashlib.sha256(text).hexdigest())
        assert await download(stub, first.file.file_id) == text
        assert [file.file_id for file in (await listed(stub)).files] == [first.file.file_id]
        async with asyncio.timeout(10):
            while blobs_of(settings.data) != [f"input-{first.file.file_id}"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

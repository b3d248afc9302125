"""kill -9 of the Files process in the middle of uploads and deletions: what was answered is there, and nothing is there by half."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from files_seam import LINE, blobs_of, delete, download, get, listed, upload

from haywain import errors, rpc
from haywain.files.v1 import files_pb2, files_pb2_grpc
from haywain.settings import Settings


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[tuple[files_pb2_grpc.FilesServiceStub, asyncio.subprocess.Process]]:
    """Run `haywain files` in a process of its own, ready when the block begins, killed at its end at the latest."""
    arguments = ("-m", "haywain", "files", "--set", f"data_dir={settings.data_dir}", "--set", "log.level=error")
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    try:
        async with rpc.channel(settings.address("files")) as channel:
            stub = files_pb2_grpc.FilesServiceStub(channel)
            await ready(stub)
            yield stub, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


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

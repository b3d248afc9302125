"""Input lines that validation rejected: the scheduler never runs them, counts them as failed, and seals them in their place."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_mesh import lines_of, mesh, quick, with_engine

from haywain import rpc
from haywain.blobs import DirectoryBlobStore
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings

BAD = b"bad"


async def rejected(settings: Settings, batch_id: str, lines: list[bytes]) -> dict[str, Any]:
    """Write the error lines of the bad ones; gives what SubmitBatch is told of them."""
    prefix = f"batch_req_{batch_id.removeprefix('batch_')}_"
    text = "".join(
        f'{{"id":"{prefix}{0x80000000 + number:08x}","custom_id":"bad{number}","response":null,'
        f'"error":{{"code":"invalid_url","message":"a: b}}","line":{number}}}}}\n'
        for number, line in enumerate(lines, 1)
        if line == BAD
    )
    async with DirectoryBlobStore(settings.data / "blobs").writer(f"rejected-{batch_id}") as writer:
        await writer.write(text.encode())
        await writer.commit()
    return {"rejected_blob_key": f"rejected-{batch_id}", "rejected_count": lines.count(BAD)}


@pytest.mark.parametrize("stopped", [False, True])
async def test_rejected_lines_are_sealed_in_their_place(settings: Settings, stopped: bool) -> None:
    """They are failed from the start, and in the error file in input order among rows that failed or never ran; twice the same."""
    lines = [BAD, BAD, *lines_of(3, model="b"), BAD, *lines_of(4, first=3), BAD]
    numbers = {number for number, line in enumerate(lines, 1) if line == BAD}
    async with mesh(quick(settings)) as running:
        await with_engine(running, models=("echo",) if stopped else ("echo", "b"))
        told = await rejected(settings, "batch_1", lines)
        batch_id = await running.submit(lines, shard_rows=2, batch_id="batch_1", **told)
        assert (await running.progress(batch_id)).counts.total == len(lines)
        assert (await running.progress(batch_id)).counts.failed >= len(numbers)
        if stopped:
            stop = pb.StopBatchRequest(batch_id=batch_id, reason=pb.StopBatchRequest.REASON_CANCELLED)
            await rpc.call(running.stub.StopBatch, stop)
        counts = (await running.ended(batch_id)).counts
        output, error = await running.sealed(batch_id)
        again = await running.sealed(batch_id)
    assert again == (output, error)
    places = [line["error"]["line"] for line in error]
    assert places == sorted(places)
    assert numbers <= set(places)
    if not stopped:
        assert (counts.total, counts.completed, counts.failed) == (11, 7, 4)
        assert set(places) == numbers
        assert [line["custom_id"] for line in output] == [f"c{number}" for number in range(7)]
    else:
        assert {3, 4, 5} <= set(places)


async def test_nothing_but_rejected_lines(settings: Settings) -> None:
    """A batch without rows has ended at once, and its sealed error file has all lines, after a restart as well."""
    lines = [BAD, BAD]
    async with mesh(quick(settings)) as running:
        told = await rejected(settings, "batch_1", lines)
        await running.submit(lines, batch_id="batch_1", **told)
    async with mesh(quick(settings)) as running:
        progress = await running.ended("batch_1")
        assert (progress.counts.total, progress.counts.completed, progress.counts.failed) == (2, 0, 2)
        output, error = await running.sealed("batch_1")
        assert [line["error"]["line"] for line in error] == [1, 2]
        assert not output

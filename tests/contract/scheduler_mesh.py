"""A scheduler in the test's process, served on its socket, and the batches that it is given."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec
from scheduler_engine import CHAT, EchoEngine, answer

from haywain import ids, rpc
from haywain.blobs import DirectoryBlobStore
from haywain.clock import Clock
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.scheduler.v1 import scheduler_pb2_grpc
from haywain.settings import SchedulerSettings, Settings
from services.scheduler.scheduler import Scheduler
from services.scheduler.service import NAME, SchedulerServicer

__all__ = [
    "CHAT", "EchoEngine", "Mesh", "answer", "eventually", "lines_of", "make_blobs", "mesh", "quick", "shards_of", "with_engine",
]  # fmt: skip

_ENTRY = Struct("<QII")


def lines_of(count: int, *, model: str = "echo", first: int = 0) -> list[bytes]:
    """Make input lines whose message says their number."""
    return [
        json.dumps(
            {
                "custom_id": f"c{number}", "method": "POST", "url": CHAT,
                "body": {"model": model, "messages": [{"role": "user", "content": f"row {number}"}]},
            }
        ).encode()
        for number in range(first, first + count)
    ]  # fmt: skip


async def make_blobs(settings: Settings, batch_id: str, lines: list[bytes], one_model: str = "") -> list[str]:
    """Write input and index blobs, the latter of lines that are objects; gives the model of each index entry, in their order.

    `one_model`: what all are rows of, whatever they say.
    """
    store = DirectoryBlobStore(settings.data / "blobs")
    entries = []
    offset = 0
    for number, line in enumerate(lines, 1):
        if line.startswith(b"{"):
            entries.append((one_model or json.loads(line)["body"]["model"], number, offset, len(line)))
        offset += len(line) + 1
    entries.sort()
    index = b"".join(_ENTRY.pack(at, length, number) for _, number, at, length in entries)
    for key, data in ((f"input-{batch_id}", b"\n".join(lines) + b"\n"), (f"index-{batch_id}", index)):
        async with store.writer(key) as writer:
            await writer.write(data)
            await writer.commit()
    return [model for model, _, _, _ in entries]


def shards_of(models: list[str], rows: int) -> list[pb.Shard]:
    """Cut index entries into shards of one model and at most `rows`."""
    shards: list[pb.Shard] = []
    for row, model in enumerate(models):
        if shards and shards[-1].model == model and shards[-1].row_count < rows:
            shards[-1].row_count += 1
        else:
            shards.append(pb.Shard(model=model, first_row=row, row_count=1))
    return shards


class Mesh:
    """A running scheduler with its stub."""

    def __init__(self, settings: Settings, scheduler: Scheduler, stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
        """Made by `mesh`."""
        self.settings = settings
        self.scheduler = scheduler
        self.stub: Any = stub
        self.engines: list[EchoEngine] = []
        """Killed at the end."""
        self.loop = asyncio.get_running_loop()

    def blobs(self, key: str) -> list[Path]:
        """Find a blob's file."""
        return list((self.settings.data / "blobs").glob(f"*/{key}"))

    async def submit(self, lines: list[bytes], *, shard_rows: int = 10, few: bool = False, **terms: Any) -> str:
        """Submit a batch of these lines; with its index, no blob of it, if they are `few`."""
        batch_id = terms.pop("batch_id", None) or ids.new("batch_")
        models = await make_blobs(self.settings, batch_id, lines, terms.pop("one_model", ""))
        index = self.blobs(f"index-{batch_id}")[0]
        entries = index.read_bytes() if few else b""
        if few:
            index.unlink()
        request = pb.SubmitBatchRequest(
            batch_id=batch_id,
            tenant=terms.pop("tenant", "default"),
            endpoint=CHAT,
            lane=terms.pop("lane", engine_pb2.LANE_STANDARD),
            input_blob_key=f"input-{batch_id}",
            index_blob_key="" if few else f"index-{batch_id}",
            index=entries,
            shards=shards_of(models, shard_rows),
            row_count=terms.pop("row_count", len(models)),
            **terms,
        )
        await rpc.call(self.stub.SubmitBatch, request)
        return batch_id

    async def progress(self, batch_id: str) -> pb.Progress:
        """Ask how far a batch is."""
        answer = await rpc.call(self.stub.GetProgress, pb.GetProgressRequest(batch_ids=[batch_id]))
        progress: pb.Progress = answer.progress[0]
        return progress

    async def ended(self, batch_id: str) -> pb.Progress:
        """Wait until a batch can be sealed."""
        return await eventually(lambda: self.progress(batch_id), lambda progress: progress.state != pb.Progress.STATE_ACTIVE)

    async def sealed(self, batch_id: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Seal a batch, check the law of conservation, and give its output and error lines."""
        sealed = await rpc.call(self.stub.SealBatch, pb.SealBatchRequest(batch_id=batch_id), timeout=60)
        store = DirectoryBlobStore(self.settings.data / "blobs")
        found: list[list[dict[str, Any]]] = []
        for blob, present in ((sealed.output, sealed.HasField("output")), (sealed.error, sealed.HasField("error"))):
            data = (await store.local(blob.blob_key)).read_bytes() if present else b""
            assert (len(data), hashlib.sha256(data).hexdigest()) == (blob.size_bytes, blob.sha256) or not present
            assert data.count(b"\n") == blob.line_count
            assert present == bool(data)
            found.append([json.loads(line) for line in data.splitlines()])
        output, error = found
        assert (len(output), len(error)) == (sealed.counts.completed, sealed.counts.failed)
        assert len(output) + len(error) == sealed.counts.total
        names = [line["custom_id"] for line in output + error]
        assert len(set(names)) == len(names)
        return output, error


@contextlib.asynccontextmanager
async def mesh(settings: Settings, clock: Clock | None = None) -> AsyncIterator[Mesh]:
    """Run a scheduler in this process, served on its socket."""
    scheduler = await Scheduler.open(settings, clock)
    add = scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server
    running = asyncio.create_task(scheduler.run())
    try:
        async with (
            rpc.serving(settings.address("scheduler"), [(SchedulerServicer(scheduler), add, NAME)], grace_seconds=0),
            rpc.channel(settings.address("scheduler")) as channel,
        ):
            made = Mesh(settings, scheduler, scheduler_pb2_grpc.SchedulerServiceStub(channel))
            try:
                yield made
            finally:
                for engine in made.engines:
                    await engine.kill()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await scheduler.close()


def quick(settings: Settings, **changes: Any) -> Settings:
    """Give settings with short times."""
    terms: dict[str, Any] = {"heartbeat_ms": 300, "checkpoint_seconds": 0.1} | changes
    return msgspec.structs.replace(settings, scheduler=SchedulerSettings(**terms))


async def eventually(ask: Callable[[], Any], right: Callable[[Any], bool], timeout: float = 20.0) -> Any:
    """Ask again and again until the answer is right."""
    async with asyncio.timeout(timeout):
        while True:
            found = ask()
            if asyncio.iscoroutine(found):
                found = await found
            if right(found):
                return found
            await asyncio.sleep(0.01)


async def with_engine(running: Mesh, **terms: Any) -> EchoEngine:
    """Start an engine that is killed at the mesh's end."""
    engine = EchoEngine(running.settings.data, **terms)
    await engine.start(running.stub)
    running.engines.append(engine)
    return engine

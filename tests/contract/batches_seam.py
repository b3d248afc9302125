"""The Batches service under test: its peers, itself, and both killed and started again at will."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
import pytest
from batches_peers import FilesPeer, SchedulerPeer, serve_files, serve_scheduler
from msgspec.structs import replace

from haywain import rpc
from haywain.batches.v1 import batches_pb2, batches_pb2_grpc
from haywain.blobs import DirectoryBlobStore
from haywain.clock import FakeClock
from haywain.settings import Settings
from services.batches.service import NAME, BatchesServiceServicer, opened

Batch = batches_pb2.Batch
CHAT = "/v1/chat/completions"
TERMINAL = (Batch.STATUS_COMPLETED, Batch.STATUS_FAILED, Batch.STATUS_EXPIRED, Batch.STATUS_CANCELLED)
PATIENCE_SECONDS = 20.0


def row(custom_id: str, **body: Any) -> bytes:
    """Write a good line of a chat batch."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]} | body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}).encode() + b"\n"


def key(name: str = "k", fingerprint: str = "body") -> batches_pb2.Idempotency:
    """Name a request."""
    return batches_pb2.Idempotency(key=name, fingerprint=fingerprint)


def rows(count: int) -> bytes:
    """Write good lines."""
    return b"".join(row(f"row-{n}") for n in range(count))


class Seam:
    """Files and scheduler peers, and the service in lives of its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clock = FakeClock()
        self.blobs = DirectoryBlobStore(settings.data / "blobs")
        self.files = FilesPeer(self.blobs)
        self.scheduler = SchedulerPeer(self.blobs)
        self.servicer: BatchesServiceServicer
        self.channel: grpc.aio.Channel
        self.stub: Any = None

    @contextlib.asynccontextmanager
    async def peers(self, *, scheduler: bool = True) -> AsyncIterator[None]:
        """Serve the peers."""
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(serve_files(self.settings, self.files))
            if scheduler:
                await stack.enter_async_context(serve_scheduler(self.settings, self.scheduler))
            yield

    @contextlib.asynccontextmanager
    async def life(self, *, driving: bool = True) -> AsyncIterator[Any]:
        """Run the service; at the end of the block it is cut off wherever it is. Gives a stub."""
        address = self.settings.address("batches")
        add = batches_pb2_grpc.add_BatchesServiceServicer_to_server
        async with opened(self.settings, self.clock) as servicer, rpc.serving(address, [(servicer, add, NAME)], grace_seconds=0):
            self.servicer = servicer
            running = asyncio.create_task(servicer.driver.run()) if driving else None
            async with rpc.channel(address) as channel:
                self.channel = channel
                self.stub = batches_pb2_grpc.BatchesServiceStub(channel)
                yield self.stub
            if running is not None:
                running.cancel()
                await asyncio.wait([running])
                if not running.cancelled():
                    running.result()

    async def create(self, input_file_id: str, **fields: Any) -> Batch:
        """Create a batch."""
        return (await self.created(input_file_id=input_file_id, **fields)).batch

    async def created(self, **fields: Any) -> batches_pb2.CreateBatchResponse:
        """Create a batch; the whole answer."""
        request = batches_pb2.CreateBatchRequest(**({"endpoint": CHAT, "completion_window": "24h"} | fields))
        answer: batches_pb2.CreateBatchResponse = await rpc.call(self.stub.CreateBatch, request, timeout=40)
        return answer

    async def batch_of(self, data: bytes, **fields: Any) -> Batch:
        """Store a file and create a batch of it."""
        return await self.create(await self.files.put(data), **fields)

    async def listed(self) -> list[str]:
        """List the batches."""
        return [batch.batch_id for batch in (await rpc.call(self.stub.ListBatches, batches_pb2.ListBatchesRequest())).batches]

    def written(self) -> list[str]:
        """List the blobs that batches wrote."""
        names = (path.name for path in (self.settings.data / "blobs").glob("[0-9a-f][0-9a-f]/*"))
        return sorted(name for name in names if not name.startswith("input-"))

    async def nothing_left(self) -> None:
        """Assert that a creation came to nothing."""
        assert await self.listed() == []
        assert self.written() == []
        assert not self.files.holds
        assert not self.files.adopted
        assert await self.servicer.store.stale_intents(float("inf")) == []

    async def get(self, batch_id: str) -> Batch:
        """Describe a batch."""
        return (await rpc.call(self.stub.GetBatch, batches_pb2.GetBatchRequest(batch_id=batch_id))).batch

    async def cancel(self, batch_id: str) -> Batch:
        """Cancel a batch."""
        return (await rpc.call(self.stub.CancelBatch, batches_pb2.CancelBatchRequest(batch_id=batch_id))).batch

    async def until(self, batch_id: str, *statuses: int) -> Batch:
        """Follow a batch to one of the statuses (a terminal one by default)."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (batch := await self.get(batch_id)).status not in (statuses or TERMINAL):  # noqa: ASYNC110 - as a client does
                await asyncio.sleep(0.005)
        return batch

    async def submitted(self, batch_id: str) -> None:
        """Follow a batch to in_progress and to the scheduler, which it reaches a moment later."""
        await self.until(batch_id, Batch.STATUS_IN_PROGRESS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while batch_id not in self.scheduler.batches:  # noqa: ASYNC110 - the scripted scheduler has no events
                await asyncio.sleep(0.005)

    async def settled(self, batch_id: str) -> None:
        """Wait until nothing is left to do for the batch."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await self.servicer.store.find(batch_id)).settled:  # noqa: ASYNC110 - SQL has no events
                await asyncio.sleep(0.005)
        assert batch_id not in self.files.holds

    async def intents_gone(self) -> None:
        """Wait until no creation is under way, as far as SQL knows."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.servicer.store.stale_intents(float("inf")):  # noqa: ASYNC110 - SQL has no events
                await asyncio.sleep(0.005)

    async def kept(self, batch_id: str, completed: int) -> None:
        """Wait until SQL has a count."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await self.servicer.store.find(batch_id)).counts.completed < completed:  # noqa: ASYNC110 - SQL has no events
                await asyncio.sleep(0.005)


@pytest.fixture
def seam(settings: Settings) -> Seam:
    """Give the service's surroundings, with a quick poll."""
    return Seam(replace(settings, batches=replace(settings.batches, poll_seconds=0.05, shard_rows=4)))


@pytest.fixture
async def live(seam: Seam) -> AsyncIterator[Seam]:
    """Give the service running beside its peers."""
    async with seam.peers(), seam.life():
        yield seam


async def happens(what: Callable[[], Any]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not what():  # noqa: ASYNC110 - peers, processes and SQL have no events
            await asyncio.sleep(0.005)


def conserved(batch: Batch, lines: int) -> None:
    """Assert the conservation law on a batch whose rows ran or were stopped."""
    counts = batch.counts
    assert counts.completed + counts.failed == counts.total == lines
    assert bool(batch.output_file_id) == (counts.completed > 0)
    assert bool(batch.error_file_id) == (counts.failed > 0)
    ordered(batch)


def ordered(batch: Batch) -> None:
    """Assert that timestamps come in order."""
    ends = (batch.completed_time, batch.failed_time, batch.expired_time, batch.cancelled_time)
    stamps: Iterable[Any] = (batch.create_time, batch.in_progress_time, batch.finalizing_time, batch.cancelling_time, *ends)
    times = [stamp.ToNanoseconds() for stamp in stamps if stamp.ToNanoseconds()]
    assert times == sorted(times)
    assert sum(1 for stamp in ends if stamp.ToNanoseconds()) == (batch.status in TERMINAL)

"""An engine in the test's process: a real gRPC server whose answers a test decides. And what a batch is made of."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

import grpc

from haywain import ids, rpc
from haywain.blobs import DirectoryBlobStore
from haywain.engine.v1 import engine_pb2, engine_pb2_grpc
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.scheduler.v1 import scheduler_pb2_grpc
from haywain.settings import SchedulerSettings, Settings
from services.scheduler.scheduler import Scheduler
from services.scheduler.service import NAME, SchedulerServicer

__all__ = ["EchoEngine", "Mesh", "eventually", "lines_of", "make_blobs", "mesh", "shards_of"]

CHAT = "/v1/chat/completions"
_ENTRY = Struct("<QII")
Answer = engine_pb2.SequenceResult | None


def answer(sequence: engine_pb2.Sequence) -> engine_pb2.SequenceResult:
    """Answer a sequence with its own last message."""
    content = json.loads(sequence.request)["messages"][-1]["content"]
    body = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": sequence.model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }  # fmt: skip
    return engine_pb2.SequenceResult(
        sequence_id=sequence.sequence_id,
        status_code=200,
        body=json.dumps(body).encode(),
        usage=engine_pb2.Usage(input_tokens=3, output_tokens=2),
        queue_ms=1,
        run_ms=2,
    )


class EchoEngine(engine_pb2_grpc.EngineServiceServicer):
    """An engine; `respond` decides on each sequence: a result, or None for no answer until `release` or a cancel."""

    Respond = Callable[[engine_pb2.Sequence], Answer]

    def __init__(self, folder: Path, engine_id: str = "e0", *, models: Sequence[str] = ("echo",), slots: int = 8) -> None:
        """It runs after `start`."""
        self.address = f"unix:{folder}/run/{engine_id}.sock"
        self.description = engine_pb2.Engine(
            engine_id=engine_id,
            incarnation="1",
            backend="echo",
            version="1",
            address=self.address,
            slots=slots,
            models=[engine_pb2.ModelDescription(model=model, digest="sha256:0", endpoints=[CHAT]) for model in models],
        )
        self.respond: EchoEngine.Respond = answer
        self.sequences: list[engine_pb2.Sequence] = []
        self.cancelled: list[int] = []
        self.held: dict[int, engine_pb2.Sequence] = {}
        self.most = 0
        """Most sequences that were in flight at the same time."""
        self.streams = 0
        self.out: asyncio.Queue[engine_pb2.RunResponse | None] = asyncio.Queue()
        self._in_flight = 0
        self._server: contextlib.AsyncExitStack | None = None
        self._beating: asyncio.Task[None] | None = None

    async def start(self, scheduler: Any) -> None:
        """Serve, and register by heartbeats with a scheduler's stub."""
        self._server = contextlib.AsyncExitStack()
        Path(self.address.removeprefix("unix:")).parent.mkdir(exist_ok=True)
        server = grpc.aio.server(options=rpc.OPTIONS)
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self, server)
        server.add_insecure_port(self.address)
        await server.start()
        self._server.push_async_callback(server.stop, 0)
        await self.register(scheduler)
        self._beating = asyncio.create_task(self._beat(scheduler))

    async def register(self, scheduler: Any) -> None:
        """Register once."""
        await rpc.call(scheduler.RegisterEngine, pb.RegisterEngineRequest(engine=self.description))

    async def _beat(self, scheduler: Any) -> None:
        while True:
            await asyncio.sleep(0.1)
            with contextlib.suppress(Exception):
                await self.register(scheduler)

    async def kill(self) -> None:
        """Vanish without a word."""
        if self._beating is not None:
            self._beating.cancel()
        if self._server is not None:
            await self._server.aclose()
        self._server = self._beating = None

    async def revive(self, scheduler: Any) -> None:
        """Come back as a new incarnation."""
        await self.kill()
        self.description.incarnation += "+"
        self.held.clear()
        await self.start(scheduler)

    async def Run(self, requests: AsyncIterator[engine_pb2.RunRequest], context: Any) -> AsyncIterator[engine_pb2.RunResponse]:
        """Grant credits, take sequences, send what `respond` says."""
        self.streams += 1
        self._in_flight = 0
        self.out = out = asyncio.Queue()
        out.put_nowait(engine_pb2.RunResponse(credits=self.description.slots))
        reading = asyncio.create_task(self._read(requests))
        try:
            while (response := await out.get()) is not None:
                yield response
        finally:
            reading.cancel()

    def release(self, respond: Callable[[engine_pb2.Sequence], Answer] = answer) -> None:
        """Answer all that is held."""
        held, self.held = self.held, {}
        self._send([result for sequence in held.values() if (result := respond(sequence)) is not None])

    def _send(self, results: list[engine_pb2.SequenceResult]) -> None:
        self._in_flight -= len(results)
        self.out.put_nowait(engine_pb2.RunResponse(results=results, credits=len(results)))

    async def _read(self, requests: AsyncIterator[engine_pb2.RunRequest]) -> None:
        async for request in requests:
            results = []
            self._in_flight += len(request.sequences)
            self.most = max(self.most, self._in_flight)
            for sequence in request.sequences:
                self.sequences.append(sequence)
                result = self.respond(sequence)
                if result is None:
                    self.held[sequence.sequence_id] = sequence
                else:
                    results.append(result)
            self.cancelled += request.cancel_sequence_ids
            for sequence_id in request.cancel_sequence_ids:
                if self.held.pop(sequence_id, None) is not None:
                    error = engine_pb2.SequenceError(code="cancelled", message="cancelled")
                    results.append(engine_pb2.SequenceResult(sequence_id=sequence_id, status_code=499, error=error))
            if results:
                self._send(results)


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


async def make_blobs(settings: Settings, batch_id: str, lines: list[bytes]) -> list[str]:
    """Write input and index blobs; gives the model of each index entry, in their order."""
    store = DirectoryBlobStore(settings.data / "blobs")
    entries = []
    offset = 0
    for number, line in enumerate(lines, 1):
        entries.append((json.loads(line)["body"]["model"], number, offset, len(line)))
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

    async def submit(self, lines: list[bytes], *, shard_rows: int = 10, **terms: Any) -> str:
        """Submit a batch of these lines."""
        batch_id = terms.pop("batch_id", None) or ids.new("batch_")
        models = await make_blobs(self.settings, batch_id, lines)
        request = pb.SubmitBatchRequest(
            batch_id=batch_id,
            tenant=terms.pop("tenant", "default"),
            endpoint=CHAT,
            lane=terms.pop("lane", engine_pb2.LANE_STANDARD),
            input_blob_key=f"input-{batch_id}",
            index_blob_key=f"index-{batch_id}",
            shards=shards_of(models, shard_rows),
            row_count=terms.pop("row_count", len(lines)),
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
async def mesh(settings: Settings) -> AsyncIterator[Mesh]:
    """Run a scheduler in this process, served on its socket."""
    scheduler = await Scheduler.open(settings)
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
    return Settings(data_dir=settings.data_dir, scheduler=SchedulerSettings(**terms))


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

"""Many small batches through the whole mesh with the echo engine: how many a second, what each costs, and how long each waits.

    python bench/small_batches.py [--batches 5000] [--rows 20] [--connections 16] [--beside 0] [--inline]

The inputs are uploaded first. Then the clock runs from the first creation, over REST and on parallel connections, to the last batch
that has completed. With `--beside` a batch of so many rows runs meanwhile; what counts then is how long the small ones wait.
Prints batches and rows a second, the times between creation and completion, and each process's processor time for a batch, which
says more than the rate where the machine does other work as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from throughput import Family, write_input

from haywain.batches.v1 import batches_pb2, batches_pb2_grpc
from haywain.settings import Settings

_Batch = batches_pb2.Batch
_TERMINAL = (_Batch.STATUS_COMPLETED, _Batch.STATUS_FAILED, _Batch.STATUS_EXPIRED, _Batch.STATUS_CANCELLED)
_BOUNDARY = "haywain-bench"


class Connection:
    """A plain HTTP connection: a client library would take more processor time than the service."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Made by `connect`."""
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Connection:
        """Connect to the mesh."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    async def post(self, path: str, kind: str, body: bytes) -> dict[str, Any]:
        """Send a request; its answer, which must be 200."""
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.partition("content-length: ")[2].split("\r\n")[0])
        text = await self._reader.readexactly(length)
        if " 200 " not in answer.split("\r\n", 1)[0]:
            sys.exit(f"{answer.splitlines()[0]} {text[:500]!r}")
        found: dict[str, Any] = json.loads(text)
        return found

    async def upload(self, data: bytes) -> str:
        """Upload an input; its id."""
        form = (
            f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
        ).encode()
        whole = form + data + f"\r\n--{_BOUNDARY}--\r\n".encode()
        return str((await self.post("/v1/files", f"multipart/form-data; boundary={_BOUNDARY}", whole))["id"])

    async def create(self, source: dict[str, Any]) -> str:
        """Create a batch; its id."""
        body = source | {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
        return str((await self.post("/v1/batches", "application/json", json.dumps(body).encode()))["id"])


def lines(rows: int) -> list[dict[str, Any]]:
    """Make input lines."""
    bodies = [
        {"model": "echo", "messages": [{"role": "user", "content": f"text {number}"}], "max_tokens": 8} for number in range(rows)
    ]
    return [
        {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number, body in enumerate(bodies)
    ]


async def shared(options: argparse.Namespace, count: int, act: Callable[[Connection], Awaitable[str]]) -> list[str]:
    """Do something `count` times, on all connections."""
    connections = [await Connection.connect(options.port) for _ in range(options.connections)]
    left = iter(range(count))

    async def some(connection: Connection) -> list[str]:
        return [await act(connection) for _ in left]

    return [one for part in await asyncio.gather(*map(some, connections)) for one in part]


async def described(stub: Any, batch_id: str) -> _Batch:
    """Get a batch."""
    answer: batches_pb2.GetBatchResponse = await stub.GetBatch(batches_pb2.GetBatchRequest(batch_id=batch_id))
    return answer.batch


async def settled(stub: Any, ids: set[str]) -> dict[str, _Batch]:
    """Wait until batches have ended: look at one of them until it has, then through the list."""
    ended: dict[str, _Batch] = {}
    while len(ended) < len(ids):
        one = next(batch_id for batch_id in ids if batch_id not in ended)
        while (await described(stub, one)).status not in _TERMINAL:  # noqa: ASYNC110 - clients poll
            await asyncio.sleep(0.05)
        token = ""
        while True:
            page = await stub.ListBatches(batches_pb2.ListBatchesRequest(page_size=100, page_token=token))
            ended |= {batch.batch_id: batch for batch in page.batches if batch.batch_id in ids and batch.status in _TERMINAL}
            token = page.next_page_token
            if not token:
                break
    return ended


async def measure(options: argparse.Namespace, stub: Any, count: int, source: list[dict[str, Any]]) -> tuple[float, float, Any]:
    """Run batches; seconds until all were created, until all had completed, and the batches."""
    left = iter(source)
    began = time.perf_counter()
    ids = await shared(options, count, lambda connection: connection.create(next(left)))
    created = time.perf_counter() - began
    ended = await settled(stub, set(ids))
    total = time.perf_counter() - began
    for batch in ended.values():
        if batch.status != _Batch.STATUS_COMPLETED or batch.counts.completed != options.rows:
            sys.exit(f"not completed: {batch}")
    return created, total, ended


async def sources(options: argparse.Namespace, count: int) -> list[dict[str, Any]]:
    """Prepare what batches are made of: uploaded files, or the lines themselves."""
    if options.inline:
        return [{"requests": lines(options.rows)}] * count
    data = "".join(json.dumps(line) + "\n" for line in lines(options.rows)).encode()
    return [{"input_file_id": one} for one in await shared(options, count, lambda connection: connection.upload(data))]


async def beside(options: argparse.Namespace, folder: Path, stub: Any) -> str:
    """Start the large batch and wait until its rows run."""
    write_input(folder / "large.jsonl", options.beside, 150)
    connection = await Connection.connect(options.port)
    batch_id = await connection.create({"input_file_id": await connection.upload((folder / "large.jsonl").read_bytes())})
    while not (await described(stub, batch_id)).counts.completed:  # noqa: ASYNC110 - clients poll
        await asyncio.sleep(0.1)
    return batch_id


async def run(options: argparse.Namespace, folder: Path, mesh_pid: int) -> None:
    """Prepare, measure, print."""
    async with grpc.aio.insecure_channel(Settings(data_dir=str(folder / "data")).address("batches")) as channel:
        stub = batches_pb2_grpc.BatchesServiceStub(channel)
        await measure(options, stub, 32, await sources(options, 32))  # warm
        source = await sources(options, options.batches)
        large = await beside(options, folder, stub) if options.beside else ""
        print(f"{options.batches} batches of {options.rows} rows, {options.connections} connections", flush=True)
        family = Family(mesh_pid)
        family.start()
        created, total, ended = await measure(options, stub, options.batches, source)
        family.stop()
        if large:
            batch = await described(stub, large)
            print(f"the large batch was at {batch.counts.completed:,} of {options.beside:,} rows when the last small one ended")
    rate, number = options.batches / total, options.batches
    print(f"created    {created:8.2f} s  {number / created:,.0f} batches/s")
    print(f"completed  {total:8.2f} s  {rate:,.0f} batches/s  {rate * options.rows:,.0f} rows/s")
    waits = sorted(one.completed_time.ToNanoseconds() / 1e9 - one.create_time.ToNanoseconds() / 1e9 for one in ended.values())
    print("waits      " + "  ".join(f"p{at} {waits[min(len(waits) * at // 100, len(waits) - 1)]:.2f} s" for at in (50, 95, 100)))
    print(f"others kept {family.others():.2f} processors busy")
    seconds = family.seconds()
    for name, megabytes in sorted(family.highest.items()):
        print(f"{name:<20} {megabytes:6.0f} MB {seconds[name] / number * 1e3:8.2f} ms/batch")
    print(f"{'all':<30} {sum(seconds.values()) / number * 1e3:8.2f} ms/batch")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=5_000)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--beside", type=int, default=0)
    parser.add_argument("--inline", action="store_true")
    parser.add_argument("--port", type=int, default=10912)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hwb", dir="/tmp") as folder:
        words = [sys.executable, "-m", "haywain", "up", "--engine", "echo", "--data", f"{folder}/data", "--port", str(options.port)]
        words += ["--set", f"scheduler.intake_rows={10_000_000}"]
        if options.beside:
            size = 400 * options.beside
            words += ["--set", f"batches.max_lines={options.beside}", "--set", f"files.max_file_bytes={size}"]
            words += ["--set", f"envoy.max_upload_bytes={size}"]
        mesh = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            assert mesh.stdout is not None  # noqa: S101 - it was asked for
            if not mesh.stdout.readline().startswith(b"ready"):
                sys.exit("the mesh did not start")
            asyncio.run(run(options, Path(folder), mesh.pid))
        finally:
            mesh.terminate()
            mesh.wait()


if __name__ == "__main__":
    main()

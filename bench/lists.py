"""What a page costs with 100,000 files and 100,000 batches, at the services: the first one, one in the middle, and the last one.

    python bench/lists.py [--records 100000] [--calls 300] [--limits 20,100]

Prints the times of each page, the service's processor time for it (which says what a busy machine hides), and the ratio of the last
page to the first, which keyset paging keeps at 1. Exits with 1 when a page's p99 misses its target.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psutil

from haywain.batches.v1 import batches_pb2, batches_pb2_grpc
from haywain.files.v1 import files_pb2, files_pb2_grpc
from haywain.settings import Settings

TARGET_MS = 20.0


@contextlib.contextmanager
def running(settings: Settings, name: str) -> Iterator[tuple[grpc.Channel, psutil.Process]]:
    """Run a service as a process, ready when the block begins."""
    words = [sys.executable, "-m", "haywain", name, "--set", f"data_dir={settings.data_dir}", "--set", "log.level=error"]
    process = subprocess.Popen(words)
    try:
        with grpc.insecure_channel(settings.address(name)) as channel:
            grpc.channel_ready_future(channel).result(30)
            yield channel, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def make_file(channel: grpc.Channel) -> None:
    """Make the file that the others are copies of."""
    message = files_pb2.UploadFileRequest
    parts = [
        message(header=message.Header(filename="requests.jsonl", purpose="batch")),
        message(data=b"{}\n"),
        message(end=message.End()),
    ]
    files_pb2_grpc.FilesServiceStub(channel).UploadFile(iter(parts))


def make_batch(channel: grpc.Channel) -> None:
    """Make the batch that the others are copies of; without a file it fails, and is settled."""
    stub = batches_pb2_grpc.BatchesServiceStub(channel)
    request = batches_pb2.CreateBatchRequest(
        input_file_id="file-none", endpoint="/v1/chat/completions", completion_window="24h", metadata={"team": "search"}
    )
    batch = stub.CreateBatch(request).batch
    while batch.status != batches_pb2.Batch.STATUS_FAILED:
        time.sleep(0.05)
        batch = stub.GetBatch(batches_pb2.GetBatchRequest(batch_id=batch.batch_id)).batch


def multiply(database: Path, table: str, key: str, records: int) -> None:
    """Copy the one record of a table, an hour apart each, a fifth of them in pairs of the same instant."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        row = dict(connection.execute(f"select * from {table}").fetchone())  # noqa: S608 - our own names
        marks = ", ".join(f":{name}" for name in row)
        copies = (row | _changes(row, key, number) for number in range(records - 1))
        with connection:
            connection.executemany(f"insert into {table} ({', '.join(row)}) values ({marks})", copies)  # noqa: S608


def _changes(row: dict[str, Any], key: str, number: int) -> dict[str, Any]:
    name = f"{row[key].partition('0')[0]}{number:012x}{os.urandom(8).hex()}"
    changes = {key: name, "created_at": 1_600_000_000.0 + 3_600 * (number - (number % 10 == 1)), "request_id": None}
    return changes | ({"blob_key": f"input-{name}"} if "blob_key" in row else {})


def measure(ask: Callable[[], Any], calls: int) -> list[float]:
    """Time calls, in milliseconds, sorted."""
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        ask()
        times.append((time.perf_counter() - began) * 1e3)
    return sorted(times)


def spent(process: psutil.Process) -> float:
    """Tell the processor time of a service, in milliseconds."""
    times = process.cpu_times()
    return float(times.user + times.system) * 1e3


def compare(what: str, page: Callable[[str], Any], places: dict[str, str], process: psutil.Process, calls: int) -> bool:
    """Print the times of some pages and their ratio; false when one is over the target."""
    medians, good = {}, True
    for place, token in places.items():
        before = spent(process)
        times = measure(lambda token=token: page(token), calls)
        cost = (spent(process) - before) / calls
        medians[place], p99 = statistics.median(times), times[len(times) * 99 // 100]
        good = good and p99 < TARGET_MS
        print(f"{what}   {place:<7} p50 {medians[place]:6.2f} ms   p99 {p99:6.2f} ms   processor {cost:6.2f} ms", flush=True)
    print(f"{what}   last/first {medians['last'] / medians['first']:.2f}")
    return good


def places(page: Callable[[int, str], Any], records: int, limit: int) -> dict[str, str]:
    """Walk through the whole list, which must have every record once; name the pages to be measured."""
    tokens, seen, token = [""], 0, ""
    while True:
        answer = page(10_000, token)
        entries = answer.files if isinstance(answer, files_pb2.ListFilesResponse) else answer.batches
        seen += len(entries)
        if not answer.next_page_token:
            break
        tokens.append(token := answer.next_page_token)
    if seen != records:
        sys.exit(f"{seen} records listed, {records} there")
    last = entries[-min(limit, len(entries) - 1) - 1]
    return {"first": "", "middle": tokens[len(tokens) // 2], "last": getattr(last, "file_id", "") or last.batch_id}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--limits", default="20,100")
    options = parser.parse_args()
    limits = [int(limit) for limit in options.limits.split(",")]
    with tempfile.TemporaryDirectory(prefix="hwb") as folder:
        settings, good = Settings(data_dir=folder), True
        with running(settings, "files") as (files, _), running(settings, "batches") as (batches, _):
            make_file(files)
            make_batch(batches)
        for name, key in (("files", "id"), ("batches", "batch_id")):
            multiply(Path(folder) / f"{name}.db", name, key, options.records)
            with running(settings, name) as (channel, process):
                page = lister(name, channel)
                for limit in limits:
                    pages = places(page, options.records, limit)
                    title = f"{name:<7} limit {limit:<5}"
                    good = compare(title, partial(page, limit), pages, process, options.calls) and good
        sys.exit(0 if good else f"over {TARGET_MS:g} ms")


def lister(name: str, channel: grpc.Channel) -> Callable[[int, str], Any]:
    """Make the call that lists a page."""
    if name == "files":
        files = files_pb2_grpc.FilesServiceStub(channel)
        return lambda size, token: files.ListFiles(files_pb2.ListFilesRequest(page_size=size, page_token=token))
    batches = batches_pb2_grpc.BatchesServiceStub(channel)
    return lambda size, token: batches.ListBatches(batches_pb2.ListBatchesRequest(page_size=size, page_token=token))


if __name__ == "__main__":
    main()

"""Megabytes a second of uploads and downloads through Envoy, alone and side by side, and what each process needs for them.

    python bench/transfer.py [--megabytes 200] [--parallel 1,8] [--parts]

Prints the speed of each way, the CPU seconds that each process spent for a gigabyte of it (which says what a busy machine hides),
and each process's highest resident memory. Exits with 1 when a speed or a size misses its target.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from throughput import Family

TARGET_MB_PER_SECOND, TARGET_MEGABYTES = 100.0, 300.0
LINE = b'{"custom_id":"row-%08d","method":"POST","url":"/v1/chat/completions","body":{"model":"echo","messages":[%s]}}\n'
PART_BYTES = 64 * 1024 * 1024
_CHUNK = 1024 * 1024
_BOUNDARY = "----haywain"


class Door:
    """Envoy's port."""

    def __init__(self, port: int) -> None:
        """Connect for each request."""
        self._port = port

    def post(self, path: str, data: memoryview, field: str, **fields: str) -> dict[str, object]:
        """Send a form whose file is `data`; the JSON answer."""
        head = "".join(f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items())
        head += f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="{field}"; filename="in.jsonl"\r\n\r\n'
        tail = f"\r\n--{_BOUNDARY}--\r\n"
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        connection.putrequest("POST", path)
        connection.putheader("content-type", f"multipart/form-data; boundary={_BOUNDARY}")
        connection.putheader("content-length", str(len(head) + len(data) + len(tail)))
        connection.endheaders(head.encode())
        for at in range(0, len(data), _CHUNK):
            connection.send(data[at : at + _CHUNK])
        connection.send(tail.encode())
        return self._answer(connection)

    def json(self, path: str, body: dict[str, object]) -> dict[str, object]:
        """Send JSON; the JSON answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        return self._answer(connection)

    def _answer(self, connection: http.client.HTTPConnection) -> dict[str, object]:
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            sys.exit(f"{response.status}: {text[:500]!r}")
        connection.close()
        return dict(json.loads(text))

    def get(self, file_id: str) -> int:
        """Download and forget; the number of bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        connection.request("GET", f"/v1/files/{file_id}/content")
        response, buffer, size = connection.getresponse(), bytearray(_CHUNK), 0
        while count := response.readinto(buffer):
            size += count
        connection.close()
        return size


def content(megabytes: int) -> bytes:
    """Make a batch file of lines of about 500 bytes."""
    filler = b'{"role":"user","content":"%s"}' % (b"word " * 76)
    lines = [LINE % (number, filler) for number in range(megabytes * 1_000_000 // len(LINE % (0, filler)))]
    return b"".join(lines)


def in_parts(door: Door, data: memoryview) -> dict[str, object]:
    """Upload in parts of 64 MiB, one after the other."""
    announced = {"filename": "in.jsonl", "purpose": "batch", "bytes": len(data), "mime_type": "application/jsonl"}
    upload = door.json("/v1/uploads", announced)["id"]
    pieces = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
    parts = [door.post(f"/v1/uploads/{upload}/parts", piece, "data")["id"] for piece in pieces]
    file = door.json(f"/v1/uploads/{upload}/complete", {"part_ids": parts})["file"]
    return dict(file) if isinstance(file, dict) else sys.exit(f"no file: {file}")


def processor_seconds(root: int) -> dict[str, float]:
    """Tell the CPU time that each process of the mesh has spent."""
    spent = {"client": sum(os.times()[:2])}
    for process in psutil.Process(root).children():
        words, times = process.cmdline(), process.cpu_times()
        name = words[3] if words[1:3] == ["-m", "haywain"] else Path(words[0]).name
        spent[name] = times.user + times.system
    return spent


def race(name: str, root: int, works: list[Callable[[], int]]) -> float:
    """Do things at the same time, print their speed and cost; the megabytes a second."""
    before, began = processor_seconds(root), time.perf_counter()
    with ThreadPoolExecutor(len(works)) as pool:
        size = sum(pool.map(lambda work: work(), works))
    took, after = time.perf_counter() - began, processor_seconds(root)
    costs = {who: (after[who] - before[who]) / (size / 1e9) for who in after}
    told = ", ".join(f"{who} {cost:.2f}" for who, cost in sorted(costs.items(), key=lambda pair: -pair[1]) if cost >= 0.05)
    print(f"{name:<20} {size / 1e6 / took:7.0f} MB/s   CPU seconds a GB: {told}", flush=True)
    return size / 1e6 / took


def measure(door: Door, root: int, data: bytes, parallel: list[int], *, parts: bool) -> list[float]:
    """Run all ways; the speeds."""
    view, sha256 = memoryview(data), f"sha256:{hashlib.sha256(data).hexdigest()}"
    files: list[str] = []

    def upload() -> int:
        file = in_parts(door, view) if parts else door.post("/v1/files", view, "file", purpose="batch")
        if (file["bytes"], file["checksum"]) != (len(data), sha256):
            sys.exit(f"not what was sent: {file}")
        files.append(str(file["id"]))
        return len(data)

    def download() -> int:
        size = door.get(files[-1])
        if size != len(data):
            sys.exit(f"{size} bytes came, {len(data)} were stored")
        return size

    speeds = []
    for number in parallel:
        speeds.append(race(f"upload, {number} at once", root, [upload] * number))
        speeds.append(race(f"download, {number} at once", root, [download] * number))
    return speeds


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--parallel", default="1,8")
    parser.add_argument("--parts", action="store_true", help="upload in parts of 64 MiB")
    parser.add_argument("--port", type=int, default=10912)
    options = parser.parse_args()
    data = content(options.megabytes)
    with tempfile.TemporaryDirectory(prefix="hwbench") as folder:
        words = [sys.executable, "-m", "haywain", "up", "--engine", "echo", "--data", f"{folder}/data", "--port", str(options.port)]
        mesh = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            if mesh.stdout is None or not mesh.stdout.readline().startswith(b"ready"):
                sys.exit("the mesh did not start")
            memory = Family(mesh.pid)
            memory.start()
            parallel = [int(number) for number in options.parallel.split(",")]
            speeds = measure(Door(options.port), mesh.pid, data, parallel, parts=options.parts)
            memory.done.set()
            for name, megabytes in sorted(memory.highest.items()):
                print(f"{name:<20} {megabytes:7.0f} MB")
        finally:
            mesh.terminate()
            mesh.wait()
    good = min(speeds) >= TARGET_MB_PER_SECOND and max(memory.highest.values()) < TARGET_MEGABYTES
    sys.exit(0 if good else f"under {TARGET_MB_PER_SECOND:g} MB/s or over {TARGET_MEGABYTES:g} MB")


if __name__ == "__main__":
    main()

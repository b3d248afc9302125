"""Small batches through the whole mesh with the echo engine: how many a second, from the first creation to the last one completed.

    python bench/small_batches.py [--batches 200] [--rows 20] [--clients 16] [--inline]

Each client uploads a file and creates a batch of it (or sends the rows with the creation), one after the other. Nearly all of the
time is syncs of the disk, so their cost is measured in the same run, and the rate is also told in syncs a batch.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

TERMINAL = ("completed", "failed", "expired", "cancelled")


def sync_seconds(folder: Path) -> float:
    """Measure what an append and its sync cost."""
    path = folder / "sync"
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    began = time.perf_counter()
    for _ in range(50):
        os.write(handle, b"x" * 4_096)
        os.fsync(handle)
    os.close(handle)
    path.unlink()
    return (time.perf_counter() - began) / 50


def row(number: int) -> dict[str, Any]:
    """Make an input line."""
    body = {"model": "echo", "messages": [{"role": "user", "content": f"text {number}"}], "max_tokens": 8}
    return {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def create(client: httpx.Client, rows: int, *, inline: bool) -> str:
    """Create one batch; its id."""
    lines = [row(number) for number in range(rows)]
    if inline:
        return str(client.post("/v1/batches", json={"requests": lines}).raise_for_status().json()["id"])
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    form = {"purpose": "batch"}
    uploaded = client.post("/v1/files", data=form, files={"file": ("in.jsonl", data)}).raise_for_status().json()
    return str(client.post("/v1/batches", json={"input_file_id": uploaded["id"]}).raise_for_status().json()["id"])


def measure(client: httpx.Client, options: argparse.Namespace) -> tuple[float, float]:
    """Run the batches; seconds until all were created, and until all had completed."""
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(options.clients) as pool:
        creating = [pool.submit(create, client, options.rows, inline=options.inline) for _ in range(options.batches)]
        ids = {one.result() for one in creating}
    created = time.perf_counter() - began
    while ids:
        page, after = {"has_more": True}, ""
        while page["has_more"]:
            page = client.get(f"/v1/batches?limit=100{after}").raise_for_status().json()
            after = f"&after={page['last_id']}"
            for batch in page["data"]:
                if batch["id"] in ids and batch["status"] in TERMINAL:
                    if batch["request_counts"]["completed"] != options.rows:
                        sys.exit(f"not completed: {batch}")
                    ids.discard(batch["id"])
        time.sleep(0.02)
    return created, time.perf_counter() - began


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--inline", action="store_true")
    parser.add_argument("--port", type=int, default=10912)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hwbench") as folder:
        sync = sync_seconds(Path(folder))
        words = [sys.executable, "-m", "haywain", "up", "--engine", "echo", "--data", f"{folder}/data", "--port", str(options.port)]
        mesh = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            assert mesh.stdout is not None  # noqa: S101 - it was asked for
            if not mesh.stdout.readline().startswith(b"ready"):
                sys.exit("the mesh did not start")
            limits = httpx.Limits(max_connections=options.clients)
            address = f"http://127.0.0.1:{options.port}"
            with httpx.Client(base_url=address, timeout=60, limits=limits, trust_env=False) as client:
                warm = argparse.Namespace(batches=2, rows=options.rows, clients=1, inline=options.inline)
                measure(client, warm)
                created, total = measure(client, options)
        finally:
            mesh.terminate()
            mesh.wait()
    rate = options.batches / total
    print(f"{options.batches} batches of {options.rows} rows, {options.clients} clients{', inline' if options.inline else ''}")
    print(f"created   {created:8.2f} s")
    print(f"completed {total:8.2f} s  {rate:,.0f} batches/s  {rate * options.rows:,.0f} rows/s")
    print(f"a sync costs {sync * 1e3:.2f} ms here: {1 / rate / sync:.1f} syncs a batch")


if __name__ == "__main__":
    main()

"""kill -9 of the whole mesh in the middle of a large batch: how long until rows run again, and whether one that was recorded did.

    python bench/restart.py --rows 1000000

Prints the time of the whole batch, the time from the second start to the first row recorded after it, how many rows ran twice
(those that were in flight) and how many recorded ones did (none may).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from throughput import TERMINAL, Family, write_input

from services.scheduler.replay import replay, row_prefix


class Mesh:
    """`haywain up` with one batch in it."""

    def __init__(self, folder: Path, rows: int, port: int) -> None:
        """Nothing is started yet."""
        self.folder = folder
        self.rows = rows
        self.log = folder / "runs"
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False)
        size = (folder / "in.jsonl").stat().st_size + 1_000_000
        sets = {
            "batches.max_lines": rows, "files.max_file_bytes": size, "envoy.max_upload_bytes": size + 1_000_000,
            "scheduler.intake_rows": max(rows, 1_000_000), "engine.echo.run_log": self.log,
        }  # fmt: skip
        words = [sys.executable, "-m", "haywain", "up", "--engine", "echo", "--data", f"{folder}/data", "--port", str(port)]
        self._words = [*words, *(word for key, value in sets.items() for word in ("--set", f"{key}={value}"))]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Family:
        """Start and wait until it is ready."""
        self.process = subprocess.Popen(self._words, stdout=subprocess.PIPE)
        if self.process.stdout is None or not self.process.stdout.readline().startswith(b"ready"):
            sys.exit("the mesh did not start")
        family = Family(self.process.pid)
        family.start()
        return family

    def kill(self) -> None:
        """kill -9 all of it."""
        if self.process is None:
            return
        family = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        for process in family:
            os.kill(process.pid, signal.SIGSTOP)  # so that nobody notices before all are dead
        for process in family:
            os.kill(process.pid, signal.SIGKILL)
        self.process.wait()
        psutil.wait_procs(family)

    def create(self) -> str:
        """Upload and create; the batch's id."""
        with (self.folder / "in.jsonl").open("rb") as file:
            answer = self.client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", file)})
        body = {
            "input_file_id": answer.raise_for_status().json()["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        return str(self.client.post("/v1/batches", json=body).raise_for_status().json()["id"])

    def batch(self, batch_id: str) -> dict[str, Any]:
        """Get the batch."""
        return dict(self.client.get(f"/v1/batches/{batch_id}").raise_for_status().json())

    def wait(self, batch_id: str, completed: int) -> dict[str, Any]:
        """Wait until so many rows are recorded, or it ended."""
        while True:
            batch = self.batch(batch_id)
            if batch["request_counts"]["completed"] >= completed or batch["status"] in TERMINAL:
                return batch
            time.sleep(0.05)


def recorded(journal: Path) -> set[int]:
    """Read which rows are recorded: each whole line begins `{"id":"batch_req_<batch>_<row>"`."""
    rows = set()
    with journal.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                rows.add(int(line[: line.index(b'",')].rpartition(b"_")[2], 16))
    return rows


def body_hashes(path: Path) -> list[bytes]:
    """Hash each row's body as the run log does."""
    hashes = []
    with path.open("rb") as file:
        for line in file:
            body = line[line.index(b'"body": ') + 8 : -2]
            hashes.append(hashlib.sha256(body).hexdigest()[:16].encode())
    return hashes


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--row-bytes", type=int, default=250)
    parser.add_argument("--port", type=int, default=10912)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hwbench") as folder:
        write_input(Path(folder) / "in.jsonl", options.rows, options.row_bytes)
        mesh = Mesh(Path(folder), options.rows, options.port)
        families = [mesh.start()]
        began = time.perf_counter()
        batch_id = mesh.create()
        mesh.wait(batch_id, options.rows // 2)
        families[0].stop()
        mesh.kill()
        journal = Path(folder) / "data" / "incremental" / f"{batch_id}.jsonl"
        before = recorded(journal)
        began_replay = time.perf_counter()
        replay(journal, row_prefix(batch_id), options.rows, journal.stat().st_size, range(0, options.rows, 5_000))
        per_million = (time.perf_counter() - began_replay) / len(before) * 1_000_000
        print(f"the journal is read back at {per_million:.2f} s per 1,000,000 lines")
        ran = mesh.log.read_bytes().count(b"\n")
        again = time.perf_counter()
        families.append(mesh.start())
        print(f"killed at {len(before)} recorded rows; ready again after {time.perf_counter() - again:.2f} s")
        mesh.wait(batch_id, len(before) + 1)
        print(f"rows recorded again after {time.perf_counter() - again:.2f} s")
        batch = mesh.wait(batch_id, options.rows + 1)
        print(f"ended after {time.perf_counter() - began:.1f} s, the kill included: {json.dumps(batch['request_counts'])}")
        later = mesh.log.read_bytes().splitlines()[ran:]
        hashes = body_hashes(Path(folder) / "in.jsonl")
        mine = {hashes[row] for row in before}
        wrong = sum(line[:16] in mine for line in later)
        print(f"{ran + len(later) - options.rows} rows ran twice; {wrong} of the recorded ones")
        families[1].stop()
        for name in sorted(families[0].highest):
            print(f"{name:<24} {max(family.highest[name] for family in families):6.0f} MB")
        mesh.kill()
        if wrong or batch["request_counts"]["completed"] != options.rows:
            sys.exit("a row is lost or ran again")


if __name__ == "__main__":
    main()

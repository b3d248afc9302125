"""Rows a second through the whole mesh with the echo engine: REST upload to downloaded output, and what each process needs for it.

    python bench/throughput.py --rows 50000 [--row-bytes 200] [--slots 512] [--database postgresql] [--cancel]

Prints one line a stage, the total, and each process's highest resident memory and processor time. `--cancel` cancels the batch
once a tenth of its rows is recorded, and counts the lines of both files. `--database postgresql` starts a server of its own, and
needs what the tests need.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

TERMINAL = ("completed", "failed", "expired", "cancelled")
_POLL_SECONDS = 0.2


class Family(threading.Thread):
    """Watches a process and all below it: memory at its highest, processor time, and how busy others keep the machine meanwhile."""

    def __init__(self, pid: int) -> None:
        """`pid` is the family's root."""
        super().__init__(daemon=True)
        self.highest: dict[str, float] = defaultdict(float)
        """Megabytes by process name; `scheduler pool` are the processes that a scheduler started."""
        self._root = psutil.Process(pid)
        self._cpu: dict[tuple[str, int], float] = {}
        self._first: dict[tuple[str, int], float] = {}
        self._began, self._busy = time.perf_counter(), _busy_seconds()
        self.done = threading.Event()

    def run(self) -> None:
        """Sample until `done`."""
        self.sample()
        self._first = dict(self._cpu)
        while not self.done.wait(0.2):
            self.sample()

    def stop(self) -> None:
        """Stop watching."""
        self.done.set()
        self.join()

    def sample(self) -> None:
        """Look at every process once."""
        for process in (self._root, *self._root.children(recursive=True)):
            try:
                name = self._called(process)
                times = process.cpu_times()
                with open(f"/proc/{process.pid}/status") as status:
                    peak = next((line for line in status if line.startswith("VmHWM")), "VmHWM: 0 kB")
            except (psutil.Error, OSError):
                continue
            self._cpu[name, process.pid] = times.user + times.system
            self.highest[name] = max(self.highest[name], int(peak.split()[1]) / 1000)

    def _called(self, process: psutil.Process) -> str:
        words = process.cmdline()
        if words[1:3] == ["-m", "haywain"]:
            return words[3]
        if "multiprocessing" in " ".join(words):
            parent = process.parent()
            kind = "tracker" if "resource_tracker" in " ".join(words) else "pool"
            return f"{self._called(parent) if parent else '?'} {kind}"
        return Path(words[0]).name if words else "?"

    def seconds(self) -> dict[str, float]:
        """Tell the processor time by name since the first sample."""
        spent: dict[str, float] = defaultdict(float)
        for (name, pid), seconds in self._cpu.items():
            spent[name] += seconds - self._first.get((name, pid), 0.0)
        return spent

    def others(self) -> float:
        """Tell how many processors were busy with something else than the family and this benchmark."""
        mine = sum(self.seconds().values()) + time.process_time()
        return max(0.0, _busy_seconds() - self._busy - mine) / (time.perf_counter() - self._began)


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice + times.irq + times.softirq)


def write_input(path: Path, rows: int, row_bytes: int) -> None:
    """Write `rows` chat lines of about `row_bytes` each."""
    text = "word " * max((row_bytes - 150) // 5, 1)
    with path.open("w") as file:
        for number in range(rows):
            body = {"model": "echo", "messages": [{"role": "user", "content": f"{number} {text}"}], "max_tokens": 16}
            file.write(
                json.dumps({"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"
            )


class Run:
    """One batch, from its upload on; prints how long each stage took."""

    def __init__(self, client: httpx.Client, results: Path) -> None:
        """`results` is where downloads go."""
        self._client = client
        self._results = results
        self._began = self._last = time.perf_counter()
        self._batch: dict[str, Any] = {}

    def stage(self, name: str) -> None:
        """Print a stage that ended."""
        now = time.perf_counter()
        print(f"{name:<12} {now - self._last:8.2f} s", flush=True)
        self._last = now

    def create(self, source: Path) -> None:
        """Upload the input and create the batch."""
        with source.open("rb") as file:
            sent = self._client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", file)})
        uploaded = sent.raise_for_status().json()
        self.stage("upload")
        body = {"input_file_id": uploaded["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        self._batch = self._client.post("/v1/batches", json=body).raise_for_status().json()

    def follow(self, *, until_rows: int | None = None) -> dict[str, Any]:
        """Wait until the batch ended, or so many rows are recorded."""
        while (status := self._batch["status"]) not in TERMINAL:
            if until_rows is not None and self._batch["request_counts"]["completed"] >= until_rows:
                break
            time.sleep(_POLL_SECONDS)
            self._batch = self._client.get(f"/v1/batches/{self._batch['id']}").raise_for_status().json()
            if self._batch["status"] != status:
                self.stage(status)
        return self._batch

    def complete(self, source: Path, rows: int) -> None:
        """Run it to its end and download the output."""
        self.create(source)
        batch = self.follow()
        if batch["status"] != "completed" or batch["request_counts"] != {"total": rows, "completed": rows, "failed": 0}:
            sys.exit(f"not completed: {json.dumps(batch)[:1000]}")
        self.download(batch["output_file_id"])
        self.stage("download")
        total = time.perf_counter() - self._began
        print(f"{'total':<12} {total:8.2f} s  {rows / total:,.0f} rows/s")
        if self.lines() != rows:
            sys.exit("lines are missing")

    def cancel(self, source: Path, rows: int) -> None:
        """Cancel it when a tenth is recorded, and see that each row is in one of the files."""
        self.create(source)
        self.follow(until_rows=rows // 10)
        self.stage("a tenth")
        self._batch = self._client.post(f"/v1/batches/{self._batch['id']}/cancel").raise_for_status().json()
        began = time.perf_counter()
        batch = self.follow()
        print(f"{batch['status']:<12} {time.perf_counter() - began:8.2f} s after the answer to the cancel")
        self.download(batch["output_file_id"])
        ran = self.lines()
        self.download(batch["error_file_id"])
        unrun = self.lines()
        print(f"{ran} rows in the output, {unrun} in the error file")
        if batch["status"] != "cancelled" or ran + unrun != rows:
            sys.exit(f"rows are missing: {json.dumps(batch)[:1000]}")

    def download(self, file_id: str) -> None:
        """Download a file."""
        with self._client.stream("GET", f"/v1/files/{file_id}/content") as response, self._results.open("wb") as file:
            for chunk in response.raise_for_status().iter_bytes():
                file.write(chunk)

    def lines(self) -> int:
        """Count the lines of what was downloaded last."""
        with self._results.open("rb") as file:
            return sum(1 for _ in file)


@contextlib.contextmanager
def database(kind: str) -> Iterator[list[str]]:
    """Give the settings of a database that lives as long as the block."""
    if kind == "sqlite":
        yield []
        return
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from postgres_fixture import PostgresServer  # noqa: PLC0415 - needs the test extra

    server = PostgresServer()
    try:
        server.start()
        yield [f"db.url={server.database()}"]
    finally:
        server.close()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--row-bytes", type=int, default=250)
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--port", type=int, default=10911)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--cancel", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hwbench") as folder, database(options.database) as sets:
        source = Path(folder) / "in.jsonl"
        write_input(source, options.rows, options.row_bytes)
        print(f"{options.rows} rows, {source.stat().st_size / 1e6:.0f} MB")
        size = source.stat().st_size + 1_000_000
        sets += [f"engine.echo.slots={options.slots}", f"batches.max_lines={options.rows}", f"files.max_file_bytes={size}"]
        sets += [f"envoy.max_upload_bytes={size + 1_000_000}", f"scheduler.intake_rows={max(options.rows, 1_000_000)}"]
        sets.append(f"batches.max_line_bytes={max(1_048_576, 2 * options.row_bytes)}")
        words = [sys.executable, "-m", "haywain", "up", "--engine", "echo", "--data", f"{folder}/data", "--port", str(options.port)]
        began = time.perf_counter()
        mesh = subprocess.Popen([*words, *(word for text in sets for word in ("--set", text))], stdout=subprocess.PIPE)
        try:
            assert mesh.stdout is not None  # noqa: S101 - it was asked for
            if not mesh.stdout.readline().startswith(b"ready"):
                sys.exit("the mesh did not start")
            print(f"{'ready':<12} {time.perf_counter() - began:8.2f} s")
            family = Family(mesh.pid)
            family.start()
            with httpx.Client(base_url=f"http://127.0.0.1:{options.port}", timeout=None, trust_env=False) as client:  # noqa: S113
                run = Run(client, Path(folder) / "out.jsonl")
                (run.cancel if options.cancel else run.complete)(source, options.rows)
            family.stop()
            print(f"others kept {family.others():.2f} of {psutil.cpu_count()} processors busy")
            seconds = family.seconds()
            for name, megabytes in sorted(family.highest.items()):
                print(f"{name:<24} {megabytes:6.0f} MB {seconds[name]:8.2f} s")
        finally:
            mesh.terminate()
            mesh.wait()


if __name__ == "__main__":
    main()

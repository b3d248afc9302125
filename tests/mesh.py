"""A whole mesh for a test: `haywain up` as an operator starts it, from the built wheel, on a free port and a folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
from family import kill, words

from haywain import crash

__all__ = ["Mesh", "chat_row", "free_port", "jsonl", "until"]

PROCESSES = ("files", "batches", "scheduler", "engine", "gateway", "envoy")
TERMINAL = ("completed", "failed", "expired", "cancelled")


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(what: str, true: Callable[[], Any], timeout: float = 60.0) -> Any:
    """Ask again and again until the answer is true, and return it; AssertionError that says `what` after `timeout` seconds."""
    give_up = time.monotonic() + timeout
    while not (answer := true()):
        assert time.monotonic() < give_up, f"not within {timeout:g} s: {what}"
        time.sleep(0.01)
    return answer


def chat_row(custom_id: str, text: str = "hello", **body: Any) -> dict[str, Any]:
    """Make an input line for the echo model."""
    messages = [{"role": "user", "content": text}]
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "echo", "messages": messages} | body,
    }


def jsonl(rows: Iterable[Any]) -> bytes:
    """Write rows as JSONL."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _is(words: list[str], name: str) -> bool:
    if name == "envoy":
        return bool(words) and Path(words[0]).name == "envoy"
    kind, _, number = name.partition("-")
    wanted = ["-m", "haywain", kind, *(["--replica", number] if number else ["--resolved"])]
    return words[1 : 1 + len(wanted)] == wanted


class Mesh:
    """One `haywain up`. Use as a context manager; leaving it stops the mesh and removes its data."""

    def __init__(self, command: Path, *, data: Path | None = None, port: int | None = None) -> None:
        """`command` is the `haywain` script to run."""
        self.command = command
        self.environment: dict[str, str] = {}
        """What its processes find in their environment besides this process's own."""
        self._own = data is None
        self.data = data or Path(tempfile.mkdtemp(prefix="hw", dir="/tmp"))  # socket paths must be short
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30.0, trust_env=False)

    def arguments(self, *more: str) -> list[str]:
        """The command line of `up`."""
        return [str(self.command), "up", "--data", str(self.data), "--port", str(self.port), *more]

    def take_orders(self, folder: Path) -> None:
        """Let processes die when files in `folder` say so (haywain/crash.py), and start again at once however often they die."""
        folder.mkdir()
        self.environment[crash.VARIABLE] = str(folder)

    def start(self, *more: str) -> Mesh:
        """Start and wait for the line `ready …`; AssertionError with the mesh's own words when it doesn't come."""
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        with (self.data / "up.log").open("ab") as errors:
            environment = os.environ | self.environment
            self.process = subprocess.Popen(self.arguments(*more), stdout=subprocess.PIPE, stderr=errors, cwd="/", env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(b"ready http://127.0.0.1:"), (line, self.logs())
        return self

    def logs(self) -> str:
        """The end of every process's log, for a failing assertion."""
        files = [self.data / "up.log", *sorted((self.data / "logs").glob("*.log"))]
        return "\n".join(f"--- {file.name}\n{file.read_text('utf-8', 'replace')[-2000:]}" for file in files if file.exists())

    def pid(self, name: str) -> int:
        """Find a process of this mesh by name; waits while it is being restarted."""
        return int(until(f"{name} runs", lambda: self._find(name)))

    def _find(self, name: str) -> int | None:
        assert self.process is not None
        for child in psutil.Process(self.process.pid).children():
            if _is(words(child), name):
                return child.pid
        return None

    def kill(self, *names: str) -> None:
        """kill -9 processes of this mesh, all before any can be restarted."""
        pids = [self.pid(name) for name in names]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def kill_everything(self) -> None:
        """kill -9 the supervisor and every process below it at once, and wait until all are gone."""
        assert self.process is not None
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        for child in family:
            kill(child)
        self.process.wait()
        _, alive = psutil.wait_procs(family, timeout=10)
        assert not alive, alive

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop in order; asserts that nothing is left behind. Returns the exit status."""
        assert self.process is not None
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        status = self.process.wait(60)
        _, alive = psutil.wait_procs(family, timeout=10)
        assert not alive, f"left behind: {alive}"
        return status

    def sql(self, service: str, statement: str, url: str = "") -> list[tuple[Any, ...]]:
        """Run a statement in a service's database, on PostgreSQL where there is a `url`."""
        if url:
            with psycopg.connect(url, autocommit=True) as server:
                server.execute(f"set search_path to {service}".encode())
                cursor = server.execute(statement.encode())
                return cursor.fetchall() if cursor.description else []
        with contextlib.closing(sqlite3.connect(self.data / f"{service}.db", timeout=10)) as file, file:
            return file.execute(statement).fetchall()

    def upload(self, content: bytes, filename: str = "input.jsonl", purpose: str = "batch") -> dict[str, Any]:
        """Upload a file; its object."""
        response = self.client.post("/v1/files", data={"purpose": purpose}, files={"file": (filename, content)})
        assert response.status_code == 200, response.text
        return dict(response.json())

    def create(self, rows: Iterable[Any], **fields: Any) -> dict[str, Any]:
        """Upload rows and create a batch of them; its object."""
        body = {"input_file_id": self.upload(jsonl(rows))["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        response = self.client.post("/v1/batches", json=body | fields)
        assert response.status_code == 200, response.text
        return dict(response.json())

    def ask(self, method: str, path: str, **terms: Any) -> httpx.Response:
        """Ask until somebody answers who isn't just being restarted: a status below 500."""

        def answer() -> httpx.Response | None:
            try:
                response = self.client.request(method, path, **terms)
            except httpx.TransportError:
                return None
            return response if response.status_code < 500 else None

        found: httpx.Response = until(f"{method} {path} is answered", answer)
        return found

    def batch(self, batch_id: str) -> dict[str, Any]:
        """Get a batch, however often it takes: the door may be restarting."""
        response = self.ask("GET", f"/v1/batches/{batch_id}")
        assert response.status_code == 200, response.text
        return dict(response.json())

    def wait(self, batch_id: str, timeout: float = 120.0) -> dict[str, Any]:
        """Wait for a terminal status; the batch object."""

        def ended() -> dict[str, Any] | None:
            batch = self.batch(batch_id)
            return batch if batch["status"] in TERMINAL else None

        try:
            return dict(until(f"{batch_id} ends", ended, timeout))
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.batch(batch_id)}\n{self.logs()}") from None

    def __enter__(self) -> Mesh:
        """Nothing is started yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop what runs and remove the data."""
        self.client.close()
        if self.process is not None and self.process.poll() is None:
            self.stop()
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        if self._own:
            shutil.rmtree(self.data, ignore_errors=True)

"""A disk without room: new work is refused, what runs waits, and all goes on by itself when there is room again."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conservation import assert_conserved
from mesh import PROCESSES, Mesh, chat_row, until

ROWS = 3_000
SLOW = ("--engine", "echo", "--set", "engine.echo.slots=32", "--set", "engine.echo.ms_per_row=10")


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """Give a disk of 64 MiB. Needs root, to mount it."""
    folder = Path(tempfile.mkdtemp(prefix="hw", dir="/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "haywain-test", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    assert mounted.returncode == 0, f"this test must be able to mount a tmpfs (run it as root): {mounted.stderr}"
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    shutil.rmtree(folder)


def fill(folder: Path) -> None:
    """Leave no byte on a disk."""
    file = os.open(folder / "ballast", os.O_CREAT | os.O_WRONLY)
    for size in (1 << 20, 4096, 1):
        try:
            while True:
                os.write(file, b"x" * size)
        except OSError:
            continue
    os.close(file)


def begin(mesh: Mesh) -> dict[str, Any]:
    """Create a batch and wait until some of it is recorded."""
    batch = mesh.create(chat_row(f"row-{n}", f"text {n}") for n in range(ROWS))
    until("some rows are recorded", lambda: mesh.batch(batch["id"])["request_counts"]["completed"] > ROWS // 10)
    return batch


def finish(mesh: Mesh, batch: dict[str, Any]) -> None:
    """Wait for the end and assert the law."""
    ended = mesh.wait(batch["id"])
    assert ended["status"] == "completed"
    _, failed = assert_conserved(mesh.client, ended, [f"row-{n}" for n in range(ROWS)])
    assert not failed


def test_a_full_disk_is_waited_for(haywain: Path, small_disk: Path) -> None:
    """Uploads and creations answer 503 `storage_full` and leave nothing; rows wait; no process dies of it."""
    with Mesh(haywain, data=small_disk).start(*SLOW) as mesh:
        batch = begin(mesh)
        pids = {name: mesh.pid(name) for name in PROCESSES}
        fill(small_disk)
        until("rows wait", lambda: mesh.batch(batch["id"])["x_progress"]["running"] == 0)
        before = mesh.batch(batch["id"])["request_counts"]
        assert before["completed"] < ROWS
        for path, terms in (
            ("/v1/files", {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", b'{"a":1}\n' * 100_000)}}),
            (
                "/v1/batches",
                {"json": {"input_file_id": batch["input_file_id"], "endpoint": batch["endpoint"], "completion_window": "24h"}},
            ),
        ):
            answer = mesh.client.post(path, **terms)  # type: ignore[arg-type]
            assert answer.status_code == 503, answer.text
            assert answer.json()["error"]["code"] == "storage_full"
            assert int(answer.headers["retry-after"]) > 0
        assert mesh.batch(batch["id"])["request_counts"] == before
        health = mesh.client.get("/health")
        assert (health.status_code, health.json()["reason"]) == (503, "storage_full")
        components = mesh.client.get("/health/detailed").json()["components"]
        assert {name for name, one in components.items() if one["status"] == "unhealthy"} == {"storage"}
        (small_disk / "ballast").unlink()
        until("healthy again", lambda: mesh.client.get("/health").status_code == 200)
        finish(mesh, batch)
        assert {name: mesh.pid(name) for name in PROCESSES} == pids, "a process died"
        assert [one["id"] for one in mesh.client.get("/v1/batches").json()["data"]] == [batch["id"]]
        assert len(mesh.client.get("/v1/files").json()["data"]) == 2, "the input and the output"


@pytest.mark.parametrize("name", ["files", "batches", "scheduler"])
def test_a_process_that_dies_while_the_disk_is_full(haywain: Path, small_disk: Path, name: str) -> None:
    """It comes back when there is room, if not before."""
    with Mesh(haywain, data=small_disk).start(*SLOW) as mesh:
        batch = begin(mesh)
        fill(small_disk)
        mesh.kill(name)
        mesh.pid(name)  # it was started again
        (small_disk / "ballast").unlink()
        finish(mesh, batch)

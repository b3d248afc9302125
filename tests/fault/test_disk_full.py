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


def test_what_makes_room_works_on_a_full_disk(haywain: Path, small_disk: Path) -> None:
    """A file can be deleted and a batch cancelled while no byte is left; by the room it makes the rest goes on."""
    with Mesh(haywain, data=small_disk).start(*SLOW) as mesh:
        files = [mesh.upload(b"x" * 3_000_000, purpose="user_data")["id"] for _ in range(2)]
        batch = begin(mesh)
        fill(small_disk)
        until("rows wait", lambda: mesh.batch(batch["id"])["x_progress"]["running"] == 0)
        answer = mesh.client.post(f"/v1/batches/{batch['id']}/cancel")
        assert answer.json().get("status") == "cancelling", answer.text
        for number, file_id in enumerate(files):
            answer = mesh.client.delete(f"/v1/files/{file_id}")
            assert (answer.status_code, answer.json().get("deleted")) == (200, True), answer.text
            assert mesh.client.get(f"/v1/files/{file_id}/content").status_code == 404
            if not number:
                fill(small_disk)  # as long as it is full, the next is deleted all the same
        ended = mesh.wait(batch["id"])
        assert ended["status"] == "cancelled"
        assert_conserved(mesh.client, ended, [f"row-{n}" for n in range(ROWS)])


def test_new_work_leaves_room_for_what_runs(haywain: Path, small_disk: Path) -> None:
    """With less than 8 MiB left uploads and creations are refused, while the batch that runs completes without a pause."""
    with Mesh(haywain, data=small_disk).start(*SLOW) as mesh:
        batch = begin(mesh)
        ballast = os.open(small_disk / "ballast", os.O_CREAT | os.O_WRONLY)
        os.posix_fallocate(ballast, 0, shutil.disk_usage(small_disk).free - 7 * 1024 * 1024)
        os.close(ballast)
        answer = mesh.client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b'{"a":1}')})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_full")
        body = {"filename": "a", "purpose": "user_data", "bytes": 1, "mime_type": "text/plain"}
        answer = mesh.client.post("/v1/uploads", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_full")
        assert until("health tells", lambda: mesh.client.get("/health").json().get("reason")) == "storage_full"
        finish(mesh, batch)


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

"""Large files cost no memory: what a process held at most is the same for a small and for a large one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mesh import PROCESSES, Mesh

PART = 8 * 1024 * 1024
MOST = 300 * 1024 * 1024
"""what any process may hold"""
GROWTH = 24 * 1024 * 1024
"""what 128 MiB more may add to it: pools of buffers, fragments"""


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with the echo engine."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo")


def peaks(mesh: Mesh) -> dict[str, int]:
    """Ask the kernel what each process held at most in its life, in bytes."""
    found = {}
    for name in PROCESSES:
        status = Path(f"/proc/{mesh.pid(name)}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        found[name] = int(line.split()[1]) * 1024
    return found


def through(mesh: Mesh, parts: int) -> None:
    """Send a file in parts, four at a time, and read it back."""
    blocks = [bytes([number]) * PART for number in range(4)]
    announced = {"filename": "large.bin", "purpose": "user_data", "bytes": parts * PART, "mime_type": "application/octet-stream"}
    upload = mesh.client.post("/v1/uploads", json=announced).json()

    def send(number: int) -> str:
        answer = mesh.client.post(f"/v1/uploads/{upload['id']}/parts", files={"data": ("part", blocks[number % 4])}, timeout=120)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    with ThreadPoolExecutor(4) as threads:
        part_ids = [*threads.map(send, range(parts))]
    digest, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    for number in range(parts):
        digest.update(blocks[number % 4])
        md5.update(blocks[number % 4])
    body = {"part_ids": part_ids, "md5": md5.hexdigest()}
    completed = mesh.client.post(f"/v1/uploads/{upload['id']}/complete", json=body, timeout=300)
    assert completed.status_code == 200, completed.text
    file = completed.json()["file"]
    assert file["checksum"] == f"sha256:{digest.hexdigest()}"
    back = hashlib.sha256()
    with mesh.client.stream("GET", f"/v1/files/{file['id']}/content", timeout=120) as answer:
        for piece in answer.iter_raw():
            back.update(piece)
    assert back.digest() == digest.digest()
    assert mesh.client.delete(f"/v1/files/{file['id']}").status_code == 200


def test_large_files_cost_no_memory(mesh: Mesh) -> None:
    """192 MiB in parts, four at a time, there and back, need no more than 64 MiB did in any process; none holds 300 MB."""
    through(mesh, 8)
    before = peaks(mesh)
    through(mesh, 24)
    after = peaks(mesh)
    for name in PROCESSES:
        assert after[name] < MOST, (name, after)
        assert after[name] - before[name] < GROWTH, (name, before, after)

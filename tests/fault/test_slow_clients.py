"""Clients that take their time: what they hold in the mesh's memory is a window each, whatever they send or fetch."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, until

MEGA = 1024 * 1024
SIZE = 96 * MEGA
CLIENTS = 10
WINDOW = 20 * MEGA
"""What one client may hold in all processes together, the buffers of three connections: far less than its file."""


@pytest.fixture
def mesh(haywain: Path) -> Iterator[Mesh]:
    """Give a mesh that has served somebody already."""
    with Mesh(haywain).start("--engine", "echo") as running:
        file = running.upload(os.urandom(MEGA) * 8, purpose="user_data")
        assert len(running.client.get(f"/v1/files/{file['id']}/content").content) == 8 * MEGA
        yield running


def memory(mesh: Mesh) -> dict[str, int]:
    """Measure what each process on the way of a file's bytes has to itself."""
    return {name: psutil.Process(mesh.pid(name)).memory_full_info().uss for name in ("envoy", "gateway", "files")}


def growth(mesh: Mesh, before: dict[str, int]) -> int:
    """Measure by how much all of them together have grown."""
    now = memory(mesh)
    return sum(max(0, now[name] - before[name]) for name in now)


def highest_growth(mesh: Mesh, before: dict[str, int], seconds: float = 3.0) -> int:
    """Measure for a while by how much all of them together have grown at most."""
    highest, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        highest = max(highest, growth(mesh, before))
        time.sleep(0.05)
    return highest


def connected(mesh: Mesh) -> socket.socket:
    """Connect, with a small window of its own."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    client.connect(("127.0.0.1", mesh.port))
    return client


def works(mesh: Mesh) -> None:
    """Assert that others are served meanwhile, by every process."""
    began = time.monotonic()
    batch = mesh.wait(mesh.create([chat_row("one")])["id"])
    assert_conserved(mesh.client, batch, ["one"])
    assert time.monotonic() - began < 20


def test_slow_downloaders(mesh: Mesh) -> None:
    """Downloads whose clients stop reading stop being read from the disk as well."""
    file = mesh.upload(os.urandom(MEGA) * (SIZE // MEGA), purpose="user_data")
    before = memory(mesh)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(mesh)) for _ in range(CLIENTS)]
        for client in clients:
            client.sendall(f"GET /v1/files/{file['id']}/content HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            assert client.recv(1024).startswith(b"HTTP/1.1 200")
        assert highest_growth(mesh, before) < CLIENTS * WINDOW
        works(mesh)


def test_slow_uploaders(mesh: Mesh) -> None:
    """Uploads that come in pieces with pauses are on the disk, not in memory; a client that leaves takes its bytes along."""
    head = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    head += b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    before = memory(mesh)
    scratch = mesh.data / "blobs" / "scratch"
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(mesh)) for _ in range(CLIENTS)]
        for client in clients:
            length = len(head) + 2 * SIZE
            terms = f"host: localhost\r\ncontent-type: multipart/form-data; boundary=b\r\ncontent-length: {length}\r\n\r\n"
            client.sendall(f"POST /v1/files HTTP/1.1\r\n{terms}".encode() + head)
        piece = os.urandom(MEGA)
        highest = 0
        for _ in range(SIZE // MEGA // 8):
            for client in clients:
                client.sendall(piece * 4)
            highest = max(highest, growth(mesh, before))
        until(
            "most is on the disk", lambda: sum(path.stat().st_size for path in scratch.iterdir()) > CLIENTS * (SIZE // 2 - 4 * MEGA)
        )
        assert max(highest, highest_growth(mesh, before)) < CLIENTS * WINDOW
        works(mesh)
    until("nothing stays of them", lambda: not any(scratch.iterdir()))
    assert len(mesh.client.get("/v1/files").json()["data"]) == 3, "the first, and one batch's two"


def test_slow_readers_of_results(mesh: Mesh) -> None:
    """A reader of a batch's results who stops reading holds a window as well."""
    batch = mesh.create(chat_row(f"row-{n}", "x" * 4_000) for n in range(20_000))
    mesh.wait(batch["id"])
    before = memory(mesh) | {"scheduler": psutil.Process(mesh.pid("scheduler")).memory_full_info().uss}
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(mesh)) for _ in range(CLIENTS)]
        for client in clients:
            client.sendall(f"GET /v1/batches/{batch['id']}/results HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            assert client.recv(1024).startswith(b"HTTP/1.1 200")
        assert highest_growth(mesh, {name: before[name] for name in memory(mesh)}) < CLIENTS * WINDOW
        scheduler = psutil.Process(mesh.pid("scheduler")).memory_full_info().uss
        assert scheduler - before["scheduler"] < CLIENTS * WINDOW

"""The whole mesh on PostgreSQL: the database goes away in mid-batch, the mesh is killed in mid-batch, and nothing is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mesh import PROCESSES, Mesh, chat_row, jsonl, until
from postgres_fixture import PostgresServer
from test_kill import SLOW, begin, finish, recorded

AWAY_SECONDS = 10.0


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """Give a server, with full syncs, that the test stops and starts."""
    own = PostgresServer()
    try:
        own.start()
        yield own
    finally:
        own.close()


@pytest.fixture
def terms(server: PostgresServer) -> tuple[str, ...]:
    """Give the words that put a slow mesh on the server."""
    return (*SLOW, "--set", f"db.url={server.database()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_database_away_for_ten_seconds(haywain: Path, server: PostgresServer, terms: tuple[str, ...], number: int) -> None:
    """While the database is away requests are refused at once with Retry-After; when it is back the batch completes, all of it."""
    with Mesh(haywain).start(*terms) as mesh:
        batch = begin(mesh)
        pids = {name: mesh.pid(name) for name in PROCESSES}
        server.stop(number)
        back = time.monotonic() + AWAY_SECONDS
        while time.monotonic() < back:
            began = time.monotonic()
            response = mesh.client.get("/v1/files")
            assert (response.status_code, response.json()["error"]["code"]) == (503, "service_unavailable")
            assert int(response.headers["retry-after"]) > 0
            assert time.monotonic() - began < 3
        kept = recorded(mesh, batch["id"])
        server.start()
        finish(mesh, batch["id"], kept)
        assert {name: mesh.pid(name) for name in PROCESSES} == pids, "a process died of it"
        second = mesh.wait(mesh.create([chat_row("one")])["id"])
        assert second["status"] == "completed"


def test_a_write_waits_for_the_database(haywain: Path, server: PostgresServer, terms: tuple[str, ...]) -> None:
    """A delete that arrives while the database is away for a moment is answered when it is back."""
    with Mesh(haywain).start(*terms) as mesh:
        path = f"/v1/files/{mesh.upload(jsonl([chat_row('one')]))['id']}"
        server.stop()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(mesh.client.delete, path)
            until("the files service waits", lambda: "database.away" in (mesh.data / "logs" / "files.log").read_text())
            assert not waiting.done()
            server.start()
            assert waiting.result(20).json()["deleted"] is True
        assert mesh.client.get("/v1/files").json()["data"] == []


def test_kill_all_processes(haywain: Path, terms: tuple[str, ...]) -> None:
    """Every process killed at once while rows run: the batch completes and recorded rows stay."""
    with Mesh(haywain).start(*terms) as mesh:
        batch = begin(mesh)
        mesh.kill(*PROCESSES)
        finish(mesh, batch["id"], recorded(mesh, batch["id"]))


def test_kill_the_mesh_and_the_database(haywain: Path, server: PostgresServer, terms: tuple[str, ...]) -> None:
    """The mesh and the database killed at once; started again on the same folders, the batch goes on and completes."""
    with Mesh(haywain).start(*terms) as mesh:
        batch = begin(mesh)
        mesh.kill_everything()
        server.stop(signal.SIGQUIT)
        kept = recorded(mesh, batch["id"])
        server.start()
        mesh.start(*terms)
        finish(mesh, batch["id"], kept)


def test_the_mesh_stops_without_its_database(haywain: Path, server: PostgresServer, terms: tuple[str, ...]) -> None:
    """While the database is away in mid-batch the mesh stops in order; its settings, which may hold a password, are private."""
    with Mesh(haywain).start(*terms) as mesh:
        batch = begin(mesh)
        assert (mesh.data / "run" / "settings.toml").stat().st_mode & 0o777 == 0o600
        server.stop()
        began = time.monotonic()
        assert mesh.stop() == 0
        assert time.monotonic() - began < 30
        server.start()
        mesh.start(*terms)
        finish(mesh, batch["id"], [])

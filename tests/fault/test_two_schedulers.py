"""Two schedulers as real processes on one PostgreSQL: one is killed, stands still, or dies while it seals, and nothing is lost."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, until
from postgres_fixture import PostgresServer

ROWS = 2_000
NAMES = [f"row-{number}" for number in range(ROWS)]
LEASE_SECONDS = 2
TERMS = (
    "--engine", "echo", "--replicas", "scheduler=2",
    "--set", "engine.echo.slots=32", "--set", "engine.echo.ms_per_row=20",
    "--set", "batches.shard_rows=100", "--set", "scheduler.message_rows=16",
    "--set", f"scheduler.lease_seconds={LEASE_SECONDS}", "--set", "scheduler.checkpoint_seconds=0.2",
)  # fmt: skip
BOTH = ("scheduler", "scheduler-2")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Tell where the engine writes down what it ran."""
    return tmp_path / "runs"


@pytest.fixture
def terms(postgres: PostgresServer, log: Path) -> tuple[str, ...]:
    """Give the words that start two schedulers on an empty database."""
    return (*TERMS, "--set", f"db.url={postgres.database()}", "--set", f"engine.echo.run_log={log}")


@pytest.fixture
def mesh(haywain: Path, tmp_path: Path) -> Iterator[Mesh]:
    """Give a mesh whose processes die where files in a folder say so."""
    with Mesh(haywain) as made:
        made.take_orders(tmp_path / "orders")
        yield made


def begin(mesh: Mesh) -> dict[str, Any]:
    """Create a batch and wait until about a tenth of it is recorded."""
    batch = mesh.create(rows())
    until("a tenth is recorded", lambda: mesh.batch(batch["id"])["request_counts"]["completed"] > ROWS // 10)
    return batch


def recorded(mesh: Mesh, batch_id: str) -> list[str]:
    """List the custom ids of the rows that are recorded."""

    def read() -> httpx.Response | None:
        answer = mesh.client.get(f"/v1/batches/{batch_id}/results")
        return answer if answer.status_code == 200 else None

    lines = until("results are read", read).content.splitlines()
    return [json.loads(line)["custom_id"] for line in lines]


def runs(log: Path) -> Counter[str]:
    """Count how often the engine ran each row, by custom id."""
    names = {hashlib.sha256(json.dumps(row["body"]).encode()).hexdigest()[:16]: row["custom_id"] for row in rows()}
    return Counter(names[line.split()[0]] for line in log.read_text().splitlines())


def rows() -> list[dict[str, Any]]:
    """Make the input."""
    return [chat_row(name, f"text of {name}") for name in NAMES]


def finish(mesh: Mesh, batch_id: str) -> None:
    """Wait for the end and assert the law."""
    batch = mesh.wait(batch_id)
    assert batch["status"] == "completed"
    output, failed = assert_conserved(mesh.client, batch, NAMES)
    assert (len(output), failed) == (ROWS, [])


def owners(postgres: PostgresServer) -> set[str]:
    """Tell who holds shards."""
    return {str(row[0]) for row in postgres.sql("select owner from scheduler.shards where state = 1", "test")}


def test_both_run_a_batch(mesh: Mesh, terms: tuple[str, ...], log: Path, postgres: PostgresServer) -> None:
    """Both hold shards of it and record rows, no row runs twice, health names both; a cancel stops both."""
    mesh.start(*terms)
    health = mesh.client.get("/health/detailed").raise_for_status().json()
    assert {name: health["components"][name]["status"] for name in BOTH} == dict.fromkeys(BOTH, "healthy")
    batch = begin(mesh)
    until("both hold shards", lambda: owners(postgres) == set(BOTH))
    finish(mesh, batch["id"])
    assert runs(log) == dict.fromkeys(NAMES, 1)
    second = begin(mesh)
    assert mesh.client.post(f"/v1/batches/{second['id']}/cancel").status_code == 200
    cancelled = mesh.wait(second["id"])
    assert cancelled["status"] == "cancelled"
    output, failed = assert_conserved(mesh.client, cancelled, NAMES)
    assert output
    assert {line["error"]["code"] for line in failed} == {"batch_cancelled"}


def test_schedulers_are_killed(mesh: Mesh, terms: tuple[str, ...], log: Path) -> None:
    """Whichever is killed, or both at once: the batch completes, and no row runs again that was recorded."""
    mesh.start(*terms, "--set", "engine.echo.ms_per_row=60")  # else the batch may be over before who looks has seen enough of it
    batch = begin(mesh)
    ran: dict[str, int] = {}
    for names in (("scheduler-2",), ("scheduler",), BOTH):
        before = len(ran)
        enough = min(before + ROWS // 20, ROWS - 1)  # all may be by now, if each look takes seconds
        until("more is recorded", lambda enough=enough: len(recorded(mesh, batch["id"])) > enough)
        kept = recorded(mesh, batch["id"])
        assert before or len(kept) < ROWS, "nobody was killed in mid-batch"
        mesh.kill(*names)
        ran = {name: times for name, times in runs(log).items() if name in set(kept)} | ran
    finish(mesh, batch["id"])
    after = runs(log)
    assert ran == {name: after[name] for name in ran}


def test_a_scheduler_stands_still_past_its_lease(mesh: Mesh, terms: tuple[str, ...], log: Path, postgres: PostgresServer) -> None:
    """The other takes its shards over; when it goes on it can commit nothing, and what it wrote late appears nowhere."""
    mesh.start(*terms)
    batch = begin(mesh)
    until("both hold shards", lambda: owners(postgres) == set(BOTH))
    pid = mesh.pid("scheduler-2")
    os.kill(pid, signal.SIGSTOP)
    until("its leases are gone", lambda: "scheduler-2" not in owners(postgres), 30)
    kept = set(recorded(mesh, batch["id"]))
    ran = {name: times for name, times in runs(log).items() if name in kept}
    os.kill(pid, signal.SIGCONT)
    finish(mesh, batch["id"])
    assert mesh.pid("scheduler-2") == pid
    after = runs(log)
    assert ran == {name: after[name] for name in kept}


def test_a_scheduler_dies_while_it_seals(mesh: Mesh, terms: tuple[str, ...], tmp_path: Path) -> None:
    """Killed between its blobs and the database, whoever seals next seals the same; there is one output file."""
    mesh.start(*terms)
    for point in ("scheduler:sealed", "scheduler:sealed-blob-stored", "scheduler:seal-recorded"):
        (tmp_path / "orders" / point).write_text("1")
        batch = mesh.create(chat_row(name) for name in NAMES[:50])
        until(f"a scheduler dies at {point}", lambda point=point: not (tmp_path / "orders" / point).exists())
        ended = mesh.wait(batch["id"])
        assert ended["status"] == "completed"
        assert_conserved(mesh.client, ended, NAMES[:50])
    assert len(mesh.client.get("/v1/files", params={"purpose": "batch_output"}).json()["data"]) == 3


def test_several_schedulers_need_postgresql(haywain: Path, tmp_path: Path) -> None:
    """With SQLite two schedulers are refused in one line, before anything is started."""
    command = [str(haywain), "up", "--engine", "echo", "--data", str(tmp_path / "data"), "--replicas", "scheduler=2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "haywain up: scheduler.replicas is 2: more than one scheduler needs PostgreSQL, set db.url\n"
    assert not (tmp_path / "data").exists()

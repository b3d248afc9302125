"""Processes that stand still, come back as something else, or die where it is least convenient."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, until

ROWS = 3_000
SLOW = ("--engine", "echo", "--set", "engine.echo.slots=32", "--set", "engine.echo.ms_per_row=10")
IDS = [f"row-{n}" for n in range(ROWS)]


def begin(mesh: Mesh) -> dict[str, Any]:
    """Create a batch and wait until some of it is recorded."""
    batch = mesh.create(chat_row(name, f"text of {name}") for name in IDS)
    until("some rows are recorded", lambda: mesh.batch(batch["id"])["request_counts"]["completed"] > ROWS // 10)
    return batch


def finish(mesh: Mesh, batch_id: str) -> None:
    """Wait for the end and assert the law."""
    batch = mesh.wait(batch_id)
    assert batch["status"] == "completed"
    _, failed = assert_conserved(mesh.client, batch, IDS)
    assert not failed


def engine_state(mesh: Mesh) -> str:
    """Ask what the scheduler thinks of the engine."""
    return str(mesh.client.get("/v1/pool/status").raise_for_status().json()["engines"][0]["state"])


def test_an_engine_that_stands_still_is_lost_and_found(haywain: Path) -> None:
    """Its rows run again when it comes back, and what it says of them twice counts once."""
    with Mesh(haywain).start(*SLOW, "--set", "scheduler.heartbeat_ms=200") as mesh:
        batch = begin(mesh)
        pid = mesh.pid("engine")
        os.kill(pid, signal.SIGSTOP)
        until("the engine is lost", lambda: engine_state(mesh) == "lost")
        counts = mesh.batch(batch["id"])["request_counts"]
        assert counts["completed"] < ROWS
        os.kill(pid, signal.SIGCONT)
        finish(mesh, batch["id"])
        assert mesh.pid("engine") == pid


@pytest.mark.parametrize("name", ["files", "batches", "gateway"])
def test_a_process_that_stands_still_while_rows_run(haywain: Path, name: str) -> None:
    """The rows go on without it, and so does it."""
    with Mesh(haywain).start(*SLOW) as mesh:
        batch = begin(mesh)
        pid = mesh.pid(name)
        journal = mesh.data / "incremental" / f"{batch['id']}.jsonl"
        size = journal.stat().st_size
        os.kill(pid, signal.SIGSTOP)
        until("rows are recorded", lambda: journal.stat().st_size > size)
        os.kill(pid, signal.SIGCONT)
        finish(mesh, batch["id"])


def test_another_model_after_a_restart(haywain: Path) -> None:
    """A batch whose model is gone waits and says so; it can be cancelled, and goes on when the model is back."""
    with Mesh(haywain).start(*SLOW) as mesh:
        batches = [begin(mesh), mesh.create([chat_row("only")])]
        until("its lines were read", lambda: mesh.batch(batches[1]["id"])["status"] == "in_progress")
        mesh.kill_everything()
        mesh.start(*SLOW, "--set", "engine.echo.model=other")
        for batch in batches:
            until("it says why it waits", lambda batch=batch: mesh.batch(batch["id"])["waiting_reason"] == "model_not_available")
        answer = mesh.client.post(f"/v1/batches/{batches[0]['id']}/cancel")
        assert answer.status_code == 200, answer.text
        cancelled = mesh.wait(batches[0]["id"])
        assert cancelled["status"] == "cancelled"
        output, failed = assert_conserved(mesh.client, cancelled, IDS)
        assert len(output) > ROWS // 10
        assert {line["error"]["code"] for line in failed} == {"batch_cancelled"}
        assert mesh.wait(mesh.create([chat_row("new", model="other")])["id"])["status"] == "completed"
        mesh.stop()
        mesh.start(*SLOW)
        batch = mesh.wait(batches[1]["id"])
        assert batch["status"] == "completed"
        assert_conserved(mesh.client, batch, ["only"])


def test_kills_while_sealing(haywain: Path) -> None:
    """A scheduler that is killed again and again while it seals writes the same files in the end, and each only once."""
    names = [f"row-{n}" for n in range(20_000)]
    with Mesh(haywain).start("--engine", "echo") as mesh:
        batch = mesh.create(chat_row(name) for name in names)
        for _ in range(3):
            until("it is sealed, or was", lambda: mesh.batch(batch["id"])["status"] in ("finalizing", "completed"))
            mesh.kill("scheduler")
        ended = mesh.wait(batch["id"])
        assert ended["status"] == "completed"
        assert_conserved(mesh.client, ended, names)
        assert len(mesh.client.get("/v1/files", params={"purpose": "batch_output"}).json()["data"]) == 1

"""kill -9 in mid-batch: the batch completes by itself, nothing is lost, nothing recorded runs again."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conservation import assert_conserved
from mesh import PROCESSES, Mesh, chat_row, until

ROWS = 3_000
SLOW = ("--engine", "echo", "--set", "engine.echo.slots=32", "--set", "engine.echo.ms_per_row=10")


def rows() -> list[dict[str, Any]]:
    """Rows enough for about a second of work."""
    return [chat_row(f"row-{n}", f"text {n}") for n in range(ROWS)]


def begin(mesh: Mesh) -> dict[str, Any]:
    """Create a batch and wait until about a tenth of it is recorded."""
    batch = mesh.create(rows())
    until("a tenth is recorded", lambda: mesh.batch(batch["id"])["request_counts"]["completed"] > ROWS // 10)
    return batch


def recorded(mesh: Mesh, batch_id: str) -> list[bytes]:
    """The whole lines of the batch's journal: what must never run again."""
    journal = (mesh.data / "incremental" / f"{batch_id}.jsonl").read_bytes()
    return [line for line in journal.split(b"\n")[:-1] if line]


def finish(mesh: Mesh, batch_id: str, kept: list[bytes]) -> None:
    """Wait for the end and assert the law; lines recorded before the kill are in the output as they were."""
    batch = mesh.wait(batch_id)
    assert batch["status"] == "completed"
    output, failed = assert_conserved(mesh.client, batch, [f"row-{n}" for n in range(ROWS)])
    assert not failed
    content = mesh.client.get(f"/v1/files/{batch['output_file_id']}/content").content
    assert set(kept) <= set(content.splitlines())
    assert len(output) == ROWS


@pytest.mark.parametrize("names", [(name,) for name in PROCESSES] + [PROCESSES], ids="+".join)
def test_kill_in_mid_batch(haywain: Path, names: tuple[str, ...], tmp_path: Path) -> None:
    """Each process, and all of them at once, killed while rows run: the batch completes and recorded rows stay."""
    log = tmp_path / "runs"
    with Mesh(haywain).start(*SLOW, "--set", f"engine.echo.run_log={log}") as mesh:
        batch = begin(mesh)
        mesh.kill(*names)
        kept = recorded(mesh, batch["id"])
        finish(mesh, batch["id"], kept)
        if "scheduler" not in names and "engine" not in names:
            runs = Counter(log.read_text().splitlines())
            assert sum(runs.values()) == ROWS, "a row ran twice although neither engine nor scheduler died"


def test_kill_the_supervisor_and_everything(haywain: Path) -> None:
    """The whole mesh killed at once; `up` on the same folder goes on by itself."""
    with Mesh(haywain).start(*SLOW) as mesh:
        batch = begin(mesh)
        mesh.kill_everything()
        kept = recorded(mesh, batch["id"])
        assert len(kept) >= ROWS // 10
        mesh.start(*SLOW)
        finish(mesh, batch["id"], kept)


def test_kill_while_validating_and_sealing(haywain: Path) -> None:
    """Kills all along a batch's life, the early and late steps included."""
    with Mesh(haywain).start("--engine", "echo") as mesh:
        batch = mesh.create(rows())
        for names in (("batches",), ("scheduler",), ("batches", "files"), ("scheduler", "engine"), ("batches",)):
            mesh.kill(*names)
            until("answers", lambda: mesh.batch(batch["id"]))
        finish(mesh, batch["id"], [])


def test_stopped_scheduler_wakes(haywain: Path) -> None:
    """A scheduler that is stopped for a while and goes on loses nothing."""
    with Mesh(haywain).start(*SLOW) as mesh:
        batch = begin(mesh)
        pid = mesh.pid("scheduler")
        os.kill(pid, signal.SIGSTOP)
        kept = recorded(mesh, batch["id"])
        assert mesh.client.get("/v1/files").status_code == 200, "the rest of the mesh still answers"
        os.kill(pid, signal.SIGCONT)
        finish(mesh, batch["id"], kept)


def test_poisonous_row(haywain: Path) -> None:
    """A row that kills its engine every time is failed; every other row completes."""
    poison = chat_row("poison", "drop dead")
    many = [chat_row(f"row-{n}") for n in range(60)]
    many.insert(30, poison)
    with Mesh(haywain).start("--engine", "echo", "--set", "engine.echo.die_containing=drop dead") as mesh:
        batch = mesh.wait(mesh.create(many)["id"])
        assert batch["status"] == "completed"
        output, failed = assert_conserved(mesh.client, batch, [row["custom_id"] for row in many])
        assert len(output) == 60
        assert [(line["custom_id"], line["error"]["code"]) for line in failed] == [("poison", "engine_error")]

"""/v1/batches/{id}/results against the whole mesh: every line once, in an order that stays, while the batch runs and after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mesh import Mesh, chat_row, jsonl, until


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with four slots, 10 ms a word, and a second for a row."""
    settings = (
        "engine.echo.slots=4",
        "engine.echo.ms_per_token=10",
        "engine.echo.fail_containing=please fail",
        "engine.echo.hang_containing=please hang",
        "scheduler.row_timeout_seconds=1",
    )
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo", *(word for text in settings for word in ("--set", text)))


def _read(mesh: Mesh, batch_id: str, after: int = 0) -> tuple[list[dict[str, Any]], httpx.Response]:
    answer = mesh.client.get(f"/v1/batches/{batch_id}/results", params={"after_line": after} if after else {})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/jsonl"
    assert answer.content.endswith(b"\n") or not answer.content
    return [json.loads(line) for line in answer.content.splitlines()], answer


def _followed(mesh: Mesh, batch_id: str) -> list[dict[str, Any]]:
    """Ask for what is new until there can be no more."""
    lines: list[dict[str, Any]] = []

    def ended() -> bool:
        news, answer = _read(mesh, batch_id, len(lines))
        lines.extend(news)
        assert answer.headers.get("x-incomplete") in ("true", None)
        return "x-incomplete" not in answer.headers

    until("the batch ends", ended)
    return lines


def _files(mesh: Mesh, batch: dict[str, Any]) -> list[dict[str, Any]]:
    ids = [batch[name] for name in ("output_file_id", "error_file_id") if batch[name]]
    return [json.loads(line) for file_id in ids for line in mesh.client.get(f"/v1/files/{file_id}/content").content.splitlines()]


def test_followed_to_the_end(mesh: Mesh) -> None:
    """A client that follows a batch gets each line of output and error file once; asked again, they come in the same order."""
    rows = [chat_row(f"row-{n}", "please fail" if n == 5 else "word " * (n % 17 + 1)) for n in range(120)]
    batch_id = mesh.create(rows)["id"]
    lines = _followed(mesh, batch_id)
    batch = mesh.wait(batch_id)
    assert batch["status"] == "completed"
    assert sorted(line["custom_id"] for line in lines) == sorted(row["custom_id"] for row in rows)
    assert sorted(lines, key=str) == sorted(_files(mesh, batch), key=str)
    again, answer = _read(mesh, batch_id)
    assert again == lines
    assert answer.headers["x-results-order"] == "completion"
    assert _read(mesh, batch_id, 100)[0] == lines[100:]
    assert _read(mesh, batch_id, 120)[0] == _read(mesh, batch_id, 10**12)[0] == []


def test_followed_through_a_cancellation(mesh: Mesh) -> None:
    """Rows that never ran follow those that did, once."""
    rows = [chat_row(f"row-{n}", "word " * 20) for n in range(200)]
    batch_id = mesh.create(rows)["id"]
    early: list[dict[str, Any]] = []
    until("some rows are done", lambda: early.extend(_read(mesh, batch_id, len(early))[0]) or len(early) >= 8)
    mesh.client.post(f"/v1/batches/{batch_id}/cancel")
    batch = mesh.wait(batch_id)
    late, answer = _read(mesh, batch_id, len(early))
    assert "x-incomplete" not in answer.headers
    assert sorted(early + late, key=str) == sorted(_files(mesh, batch), key=str)
    unrun = [line for line in late if line["response"] is None]
    assert {line["error"]["code"] for line in unrun} == {"batch_cancelled"}
    assert late[-len(unrun) :] == unrun
    assert _read(mesh, batch_id, 150)[0] == (early + late)[150:]


def test_rows_without_an_answer_come_once(mesh: Mesh) -> None:
    """A row that timed out has no answer either, but it ran: it is among the first lines, and not again among the last ones."""
    rows = [chat_row(f"row-{n}", "please hang" if n == 1 else "fine") for n in range(6)]
    content = jsonl(rows) + jsonl([{"custom_id": "bad"}]) + jsonl([chat_row("last")])
    body = {"input_file_id": mesh.upload(content)["id"], "invalid_rows": "reject"}
    batch_id = mesh.client.post("/v1/batches", json=body).json()["id"]
    lines = _followed(mesh, batch_id)
    batch = mesh.wait(batch_id)
    assert batch["request_counts"] == {"total": 8, "completed": 6, "failed": 2}
    assert sorted(lines, key=str) == sorted(_files(mesh, batch), key=str)
    assert [line["custom_id"] for line in lines if line["response"] is None] == ["bad", "row-1"]
    for after in range(9):
        assert _read(mesh, batch_id, after)[0] == lines[after:]


def test_rejected_lines_come_first(mesh: Mesh) -> None:
    """What validation rejected is there while the rows run, before any of them, and under the same numbers afterwards."""
    bad = [{"custom_id": f"bad-{n}"} for n in range(3)]
    rows = [bad[0], *(chat_row(f"row-{n}", "word " * 30) for n in range(12)), *bad[1:]]
    body = {"input_file_id": mesh.upload(jsonl(rows))["id"], "invalid_rows": "reject"}
    batch_id = mesh.client.post("/v1/batches", json=body).json()["id"]
    until("it runs", lambda: mesh.batch(batch_id)["status"] == "in_progress")
    early, answer = _read(mesh, batch_id)
    assert answer.headers["x-incomplete"] == "true"
    assert [line["custom_id"] for line in early[:3]] == ["bad-0", "bad-1", "bad-2"]
    assert [line["custom_id"] for line in _read(mesh, batch_id, 1)[0][:2]] == ["bad-1", "bad-2"]
    mesh.client.post(f"/v1/batches/{batch_id}/cancel")
    batch = mesh.wait(batch_id)
    lines, _ = _read(mesh, batch_id)
    assert lines[: len(early)] == early
    assert sorted(lines, key=str) == sorted(_files(mesh, batch), key=str)
    for after in (1, 3, 4, len(early), 13, 15):
        assert _read(mesh, batch_id, after)[0] == lines[after:]


def test_nothing_but_rejected_lines(mesh: Mesh) -> None:
    """A batch of which no line can run has the error lines of them all."""
    body = {"input_file_id": mesh.upload(jsonl([{"custom_id": "a"}, {"custom_id": "b"}]))["id"], "invalid_rows": "reject"}
    batch = mesh.wait(mesh.client.post("/v1/batches", json=body).json()["id"])
    lines, _ = _read(mesh, batch["id"])
    assert [line["custom_id"] for line in lines] == ["a", "b"]
    assert _read(mesh, batch["id"], 1)[0] == lines[1:]


def test_without_the_journal(mesh: Mesh) -> None:
    """When the journal's time is over, the lines of the output file and then those of the error file are served."""
    batch = mesh.wait(mesh.create([chat_row(f"row-{n}", "please fail" if n % 2 else "fine") for n in range(10)])["id"])
    (mesh.data / "incremental" / f"{batch['id']}.jsonl").unlink()
    lines, answer = _read(mesh, batch["id"])
    assert lines == _files(mesh, batch)
    assert answer.headers["x-results-order"] == "files"
    for after in (1, 5, 6, 10, 11):
        assert _read(mesh, batch["id"], after)[0] == lines[after:]


def test_a_deleted_output_is_gone(mesh: Mesh) -> None:
    """Whoever deletes the output file doesn't find it here either."""
    batch = mesh.wait(mesh.create([chat_row("a")])["id"])
    mesh.client.delete(f"/v1/files/{batch['output_file_id']}")
    answer = mesh.client.get(f"/v1/batches/{batch['id']}/results")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "file_deleted")


def test_nothing_ran(mesh: Mesh) -> None:
    """A batch that failed validation has no lines, and is at its end."""
    batch = mesh.wait(mesh.create([chat_row("a"), chat_row("a")])["id"])
    lines, answer = _read(mesh, batch["id"])
    assert lines == []
    assert "x-incomplete" not in answer.headers


def test_journal_survives_a_restart(mesh: Mesh) -> None:
    """The order is the same after the scheduler was killed."""
    batch = mesh.wait(mesh.create([chat_row(f"row-{n}", "word " * (20 - n)) for n in range(20)])["id"])
    before = _read(mesh, batch["id"])[0]
    mesh.kill("scheduler")
    until("healthy again", lambda: mesh.client.get("/health").status_code == 200)
    assert _read(mesh, batch["id"])[0] == before

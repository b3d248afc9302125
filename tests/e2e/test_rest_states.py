"""Cancel in every state and twice, expiry with rows running, inputs deleted in mid-run: through the whole mesh."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, jsonl, until

SLOW = "scheduler.slots=8", "engine.echo.slots=8", "engine.echo.ms_per_row=100", "batches.completion_windows=any"
MANY = "batches.max_lines=1000000", "files.max_file_bytes=400000000", "envoy.max_upload_bytes=401000000"


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh that runs eighty rows a second, and takes any window and many lines."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo", *(word for text in (*SLOW, *MANY) for word in ("--set", text)))


def rows(count: int) -> list[dict[str, Any]]:
    """Make rows."""
    return [chat_row(f"c{number}", f"text {number}") for number in range(count)]


def ids(count: int) -> list[str]:
    """List their ids."""
    return [f"c{number}" for number in range(count)]


def cancel(mesh: Mesh, batch_id: str, status: int = 200) -> dict[str, Any]:
    """Cancel."""
    answer = mesh.client.post(f"/v1/batches/{batch_id}/cancel")
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def codes(lines: list[Any]) -> set[str]:
    """Say what became of rows that failed."""
    return {line["error"]["code"] for line in lines}


def test_cancelled_while_rows_run(mesh: Mesh) -> None:
    """`cancelling` at once, the same again and again, `cancelled` within two seconds; rows that ended are kept, in input order."""
    batch_id = mesh.create(rows(500))["id"]
    until("some rows ended", lambda: mesh.batch(batch_id)["request_counts"]["completed"] > 10)
    first, second = cancel(mesh, batch_id), cancel(mesh, batch_id)
    began = time.monotonic()
    assert first["status"] == "cancelling"
    assert second["status"] in ("cancelling", "cancelled")
    assert second["cancelling_at"] == first["cancelling_at"]
    done = mesh.wait(batch_id)
    assert time.monotonic() - began < 4  # two on a quiet machine
    output, failed = assert_conserved(mesh.client, done, ids(500))
    assert (done["status"], codes(failed)) == ("cancelled", {"batch_cancelled"})
    assert len(output) >= 10
    assert cancel(mesh, batch_id) == done


def test_cancelled_at_once(mesh: Mesh) -> None:
    """A batch that is cancelled as soon as it is created keeps the law: counts survive, every row has its line."""
    for count in (1, 40):
        batch_id = mesh.create(rows(count))["id"]
        assert cancel(mesh, batch_id)["status"] in ("cancelling", "cancelled")
        done = mesh.wait(batch_id)
        _, failed = assert_conserved(mesh.client, done, ids(count))
        assert codes(failed) <= {"batch_cancelled"}
        assert done["status"] == "cancelled"


def test_cancelled_while_validated(mesh: Mesh) -> None:
    """A large file whose lines are still being read: `cancelling`, and in the end every line is `batch_cancelled`."""
    count = 300_000
    text = jsonl(rows(1))
    data = b"".join(text.replace(b'"c0"', b'"c%d"' % number) for number in range(count))
    created = mesh.client.post("/v1/batches", json={"input_file_id": mesh.upload(data)["id"]}).json()
    assert created["status"] == "validating"
    first = cancel(mesh, created["id"])
    assert (first["status"], first["in_progress_at"]) == ("cancelling", None)
    done = mesh.wait(created["id"])
    assert (done["status"], done["request_counts"]) == ("cancelled", {"total": count, "completed": 0, "failed": count})
    assert done["output_file_id"] is None
    content = mesh.client.get(f"/v1/files/{done['error_file_id']}/content").content
    assert content.count(b"\n") == content.count(b'"code":"batch_cancelled"') == count
    last = json.loads(content[content.rindex(b"\n", 0, -1) :])
    assert (last["custom_id"], last["error"]["line"]) == (f"c{count - 1}", count)


def test_cancelled_with_bad_lines(mesh: Mesh) -> None:
    """A line that was rejected keeps its own code when the batch is cancelled."""
    batch_id = mesh.create([*rows(100), {"custom_id": "bad"}], invalid_rows="reject")["id"]
    until("it runs", lambda: mesh.batch(batch_id)["status"] == "in_progress")
    cancel(mesh, batch_id)
    done = mesh.wait(batch_id)
    _, failed = assert_conserved(mesh.client, done, [*ids(100), "bad"])
    assert (failed[-1]["custom_id"], failed[-1]["error"]["code"]) == ("bad", "missing_required_parameter")


def test_what_has_ended_can_not_be_cancelled(mesh: Mesh) -> None:
    """Completed and failed batches are left as they are, with a conflict that no retry cures."""
    completed = mesh.wait(mesh.create(rows(1))["id"])
    failed = mesh.wait(mesh.create([{"custom_id": "bad"}])["id"])
    for batch in (completed, failed):
        answer = mesh.client.post(f"/v1/batches/{batch['id']}/cancel")
        assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
        assert answer.json()["error"]["message"] == f"Cannot cancel a batch with status '{batch['status']}'."
        assert mesh.batch(batch["id"]) == batch


def test_expired_with_rows_running(mesh: Mesh) -> None:
    """When the window closes, what ended is kept in input order, and the rest are `batch_expired`."""
    created = mesh.create([*rows(600), {"custom_id": "bad"}], completion_window="3s", invalid_rows="reject")
    done = mesh.wait(created["id"])
    assert done["status"] == "expired"
    assert created["expires_at"] <= done["finalizing_at"] <= created["expires_at"] + 3
    output, failed = assert_conserved(mesh.client, done, [*ids(600), "bad"])
    assert output
    assert codes(failed[:-1]) == {"batch_expired"}
    assert failed[-1]["error"]["code"] == "missing_required_parameter"
    assert cancel(mesh, created["id"], 409)["error"]["message"] == "Cannot cancel a batch with status 'expired'."


def test_expired_before_anything(mesh: Mesh) -> None:
    """A window that closes before the first row runs leaves every row expired, and no output."""
    done = mesh.wait(mesh.create(rows(400), completion_window="1s")["id"])
    output, failed = assert_conserved(mesh.client, done, ids(400))
    assert (done["status"], len(output) + len(failed)) == ("expired", 400)


def test_input_deleted_in_mid_run(mesh: Mesh) -> None:
    """The batch runs to its end on the rows that it was created with; the file is gone for everybody else."""
    file_id = mesh.upload(jsonl(rows(150)))["id"]
    batch = mesh.client.post("/v1/batches", json={"input_file_id": file_id}).json()
    until("some rows ended", lambda: mesh.batch(batch["id"])["request_counts"]["completed"] > 10)
    assert mesh.client.delete(f"/v1/files/{file_id}").json()["deleted"] is True
    assert mesh.client.get(f"/v1/files/{file_id}/content").status_code == 404
    done = mesh.wait(batch["id"])
    output, failed = assert_conserved(mesh.client, done, ids(150))
    assert (done["status"], done["input_file_id"], failed) == ("completed", file_id, [])
    until("the bytes go", lambda: not list((mesh.data / "blobs").glob(f"*/input-{file_id}")))
    assert output


def test_two_batches_one_file(mesh: Mesh) -> None:
    """A file that is deleted while two batches run on it serves both to the end."""
    file_id = mesh.upload(jsonl(rows(60)))["id"]
    batches = [mesh.client.post("/v1/batches", json={"input_file_id": file_id}).json()["id"] for _ in range(2)]
    mesh.client.delete(f"/v1/files/{file_id}")
    for batch_id in batches:
        done = mesh.wait(batch_id)
        assert_conserved(mesh.client, done, ids(60))
        assert done["status"] == "completed"


def test_a_failed_batch_says_why(mesh: Mesh) -> None:
    """`errors` has every bad line, `error` the reason of the whole; no counts, no files, and the times in order."""
    done = mesh.wait(mesh.create([chat_row("a"), {"custom_id": "bad"}, chat_row("a", stream=True)])["id"])
    assert_conserved(mesh.client, done, [])
    assert [(one["line"], one["code"], one["param"]) for one in done["errors"]["data"]] == [
        (2, "missing_required_parameter", "method"),
        (3, "duplicate_custom_id", "custom_id"),
    ]
    assert done["error"]["code"] == "validation_failed"
    assert "line 2" in done["error"]["message"]
    assert done["created_at"] <= done["failed_at"]
    assert (done["in_progress_at"], done["completed_at"], done["usage"]) == (None, None, None)


def test_a_full_intake(haywain: Path) -> None:
    """What doesn't fit is refused with 429 and a time to come back, and nothing of it is stored; later it fits."""
    with Mesh(haywain).start(
        "--engine", "echo", "--set", "scheduler.intake_rows=100", *("--set", SLOW[2]), *("--set", SLOW[1])
    ) as small:
        first = small.create(rows(90))
        file_id = small.upload(jsonl(rows(20)))["id"]
        files = small.client.get("/v1/files").json()["data"]
        for fields in ({"input_file_id": file_id}, {"requests": rows(20)}):
            answer = small.client.post("/v1/batches", json=fields, headers={"prefer": "wait=5"})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["type"]) == (429, "capacity_exceeded", "rate_limit_error")
            assert int(answer.headers["retry-after"]) >= 1
            assert "at most 100 rows" in error["message"]
        assert small.client.get("/v1/files").json()["data"] == files
        assert [batch["id"] for batch in small.client.get("/v1/batches").json()["data"]] == [first["id"]]
        small.wait(first["id"])
        second = small.client.post("/v1/batches", json={"input_file_id": file_id}).json()
        assert small.wait(second["id"])["status"] == "completed"

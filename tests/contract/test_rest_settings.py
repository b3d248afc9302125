"""Where the references disagree (REST contract §8): each setting's other behaviour, in a mesh of its own, beside the default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mesh import chat_row, jsonl, until
from rest_seam import RestMesh

from haywain.settings import BatchesSettings

ENDED = ("completed", "failed", "expired", "cancelled")
SLOW = "Qwen/Qwen3-0.6B"
OTHERS = BatchesSettings(
    mixed_models=True,
    completion_windows="any",
    one_active_per_file=True,
    cancel_conflict=400,
    check_file_at_create=True,
    invalid_rows="reject",
    poll_seconds=0.2,
)


@pytest.fixture(scope="module")
def other_mesh() -> Iterator[RestMesh]:
    """Give a mesh with every setting the other way."""
    with RestMesh(OTHERS) as mesh:
        yield mesh


def upload(mesh: RestMesh, rows: list[Any]) -> str:
    """Store an input; its id."""
    answer = mesh.client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", jsonl(rows))})
    return str(answer.json()["id"])


def create(mesh: RestMesh, status: int = 200, **fields: Any) -> dict[str, Any]:
    """Create a batch; the object, or the error."""
    answer = mesh.client.post("/v1/batches", json=fields)
    assert answer.status_code == status, answer.text
    return dict(answer.json() if status == 200 else answer.json()["error"])


def get(mesh: RestMesh, batch_id: str) -> dict[str, Any]:
    """Describe a batch."""
    return dict(mesh.client.get(f"/v1/batches/{batch_id}").json())


def ended(mesh: RestMesh, batch_id: str) -> dict[str, Any]:
    """Wait for the end of a batch."""
    until("the batch ends", lambda: get(mesh, batch_id)["status"] in ENDED)
    return get(mesh, batch_id)


MIXED = [chat_row("a"), chat_row("b", model="narrow"), chat_row("c")]


def test_one_model(rest_mesh: RestMesh) -> None:
    """By default a line of another model than the first is `mismatched_model`, naming both."""
    failed = ended(rest_mesh, create(rest_mesh, input_file_id=upload(rest_mesh, MIXED))["id"])
    [error] = failed["errors"]["data"]
    assert (failed["status"], error["code"], error["line"], error["param"]) == ("failed", "mismatched_model", 2, "body.model")
    assert "'echo'" in error["message"]
    assert "'narrow'" in error["message"]


def test_mixed_models(other_mesh: RestMesh) -> None:
    """With batches.mixed_models each line runs on its own model: a shard for each, and every row is submitted."""
    batch = create(other_mesh, input_file_id=upload(other_mesh, MIXED))
    until("it is submitted", lambda: batch["id"] in other_mesh.scheduler.batches)
    request = other_mesh.scheduler.batches[batch["id"]].request
    assert [(shard.model, shard.row_count) for shard in request.shards] == [("echo", 2), ("narrow", 1)]
    assert ended(other_mesh, batch["id"])["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


def test_a_day_only(rest_mesh: RestMesh) -> None:
    """By default every window but 24h is refused with what is supported."""
    file_id = upload(rest_mesh, [chat_row("a")])
    for window in ("2s", "1h", "48h", "24H", "24h "):
        error = create(rest_mesh, 400, input_file_id=file_id, completion_window=window)
        assert (error["code"], error["param"]) == ("invalid_value", "completion_window")
        assert error["message"] == f"Invalid value: '{window}'. Supported values are: '24h'."


def test_any_window(other_mesh: RestMesh) -> None:
    """With batches.completion_windows = any, seconds, minutes and hours up to 168h are taken."""
    for window, seconds in (("90s", 90), ("30m", 1_800), ("168h", 604_800)):
        batch = create(other_mesh, input_file_id=upload(other_mesh, [chat_row("a")]), completion_window=window)
        assert (batch["completion_window"], batch["expires_at"] - batch["created_at"]) == (window, seconds)
    for window in ("169h", "0s", "1d", "24", ""):
        error = create(other_mesh, 400, input_file_id="file-a", completion_window=window)
        assert error["param"] == "completion_window"


def test_expiry(other_mesh: RestMesh) -> None:
    """When its window closes, a batch whose rows wait or run ends `expired`, with every row in the error file."""
    batch = create(other_mesh, input_file_id=upload(other_mesh, [chat_row("a", model=SLOW)]), completion_window="2s")
    done = ended(other_mesh, batch["id"])
    assert done["status"] == "expired"
    assert done["expired_at"] >= done["finalizing_at"] >= done["expires_at"]
    assert (done["output_file_id"], done["request_counts"]) == (None, {"total": 1, "completed": 0, "failed": 1})
    assert done["error_file_id"]
    error = other_mesh.client.post(f"/v1/batches/{batch['id']}/cancel").json()["error"]
    assert error["message"] == "Cannot cancel a batch with status 'expired'."


def test_two_batches_on_a_file(rest_mesh: RestMesh) -> None:
    """By default any number may be active."""
    file_id = upload(rest_mesh, [chat_row("a", model=SLOW)])
    first, second = (create(rest_mesh, input_file_id=file_id) for _ in range(2))
    assert first["id"] != second["id"]
    for batch in (first, second):
        rest_mesh.client.post(f"/v1/batches/{batch['id']}/cancel")
        assert ended(rest_mesh, batch["id"])["status"] == "cancelled"


def test_one_active_per_file(other_mesh: RestMesh) -> None:
    """With batches.one_active_per_file a second one is refused, naming the first, until that has ended."""
    file_id = upload(other_mesh, [chat_row("a", model=SLOW)])
    first = create(other_mesh, input_file_id=file_id)
    error = create(other_mesh, 400, input_file_id=file_id)
    assert (error["code"], error["param"]) == ("invalid_value", "input_file_id")
    assert first["id"] in error["message"]
    other_mesh.client.post(f"/v1/batches/{first['id']}/cancel")
    ended(other_mesh, first["id"])
    assert create(other_mesh, input_file_id=file_id)["id"] != first["id"]


def test_cancelling_what_has_ended(rest_mesh: RestMesh, other_mesh: RestMesh) -> None:
    """409 that no retry cures, or with batches.cancel_conflict = 400 that status; the same words."""
    for mesh, status in ((rest_mesh, 409), (other_mesh, 400)):
        batch = ended(mesh, create(mesh, input_file_id=upload(mesh, [chat_row("a")]))["id"])
        assert batch["status"] == "completed"
        answer = mesh.client.post(f"/v1/batches/{batch['id']}/cancel")
        assert (answer.status_code, answer.headers.get("x-should-retry")) == (status, "false" if status == 409 else None)
        assert answer.json()["error"]["message"] == "Cannot cancel a batch with status 'completed'."


def test_a_missing_file(rest_mesh: RestMesh, other_mesh: RestMesh) -> None:
    """200 and then `failed`, or with batches.check_file_at_create 400 by name and no batch."""
    failed = ended(rest_mesh, create(rest_mesh, input_file_id="file-nope")["id"])
    assert (failed["status"], failed["error"]["code"]) == ("failed", "invalid_request")
    [fault] = failed["errors"]["data"]
    assert (fault["code"], fault["line"], fault["param"]) == ("invalid_request", None, "file_id")
    before = other_mesh.client.get("/v1/batches").json()["data"]
    error = create(other_mesh, 400, input_file_id="file-nope")
    assert (error["param"], "file-nope" in error["message"]) == ("input_file_id", True)
    assert other_mesh.client.get("/v1/batches").json()["data"] == before


def test_a_bad_line(rest_mesh: RestMesh, other_mesh: RestMesh) -> None:
    """It fails the batch, or with batches.invalid_rows = reject just itself; the creation's own word goes before the setting."""
    rows = [chat_row("a"), {"custom_id": "bad"}]
    for mesh, words in ((rest_mesh, {None: "failed", "reject": "completed"}), (other_mesh, {None: "completed", "fail": "failed"})):
        for asked, status in words.items():
            fields = {"invalid_rows": asked} if asked else {}
            batch = ended(mesh, create(mesh, input_file_id=upload(mesh, rows), **fields)["id"])
            assert batch["status"] == status, (asked, batch)
            counts = (
                {"total": 2, "completed": 1, "failed": 1} if status == "completed" else {"total": 0, "completed": 0, "failed": 0}
            )
            assert batch["request_counts"] == counts
            assert bool(batch["errors"]) == (status == "failed")

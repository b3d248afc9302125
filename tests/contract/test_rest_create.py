"""POST /v1/batches with inline records, with `Prefer: wait`, and with records that can't run."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from mesh import chat_row, jsonl, until
from rest_seam import RestMesh

ENDED = ("completed", "failed", "expired", "cancelled")
BAD_URL = chat_row("wrong") | {"url": "/v1/completions"}
REJECTED = ("rejected_count", "rejected_records", "rejected_records_file_id")


def create(mesh: RestMesh, headers: dict[str, str] | None = None, status: int = 200, **fields: Any) -> dict[str, Any]:
    """Create a batch; the answer."""
    answer = mesh.client.post("/v1/batches", json=fields, headers=headers)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def upload(mesh: RestMesh, data: bytes) -> str:
    """Store an input; its id."""
    answer = mesh.client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", data)})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def ended(mesh: RestMesh, batch_id: str) -> dict[str, Any]:
    """Wait for the end of a batch."""

    def look() -> dict[str, Any] | None:
        batch = mesh.client.get(f"/v1/batches/{batch_id}").json()
        return batch if batch["status"] in ENDED else None

    return dict(until("the batch ends", look))


def everything(mesh: RestMesh) -> tuple[list[str], list[str]]:
    """List batches and files."""
    batches = mesh.client.get("/v1/batches?limit=100").json()["data"]
    files = mesh.client.get("/v1/files").json()["data"]
    return [batch["id"] for batch in batches], [file["id"] for file in files]


def test_inline_records_are_a_file_of_the_batch(rest_mesh: RestMesh) -> None:
    """Their text is kept to the digit, one a line, in a file of purpose batch that expires like any other and can be read."""
    records = (
        '[{"custom_id": "a",\n "method": "POST", "url": "/v1/chat/completions", "body": {"model": "echo", "seed": 9007199254740993,'
        ' "temperature": 1.10, "messages": [{"role": "user", "content": "a\u2028b \\u00e9 \\" }"}]}}]'
    )
    answer = rest_mesh.client.post("/v1/batches", content=f'{{"requests": {records}, "metadata": {{"a": "b"}}}}'.encode())
    assert answer.status_code == 200, answer.text
    batch = answer.json()
    assert batch["request_counts"] == {"total": 1, "completed": 0, "failed": 0}
    assert [batch[name] for name in REJECTED] == [0, [], None]
    file = rest_mesh.client.get(f"/v1/files/{batch['input_file_id']}").json()
    assert (file["purpose"], file["status"], file["filename"]) == ("batch", "processed", f"batch_input_{batch['id']}.jsonl")
    assert file["expires_at"] == pytest.approx(file["created_at"] + 2_592_000, abs=2)
    content = rest_mesh.client.get(f"/v1/files/{file['id']}/content").content
    assert content.endswith(b"\n")
    assert content.count(b"\n") == 1
    assert b'"seed":9007199254740993,"temperature":1.10' in content
    assert json.loads(content) == json.loads(records)[0]
    assert ended(rest_mesh, batch["id"])["status"] == "completed"


def test_a_record_without_a_model_runs_the_batchs(rest_mesh: RestMesh) -> None:
    """The batch's `model` is for records that name none; one that names its own keeps it."""
    rows = [chat_row("own"), chat_row("none")]
    del rows[1]["body"]["model"]
    batch = create(rest_mesh, requests=rows, model="echo")
    assert (batch["model"], batch["rejected_count"]) == ("echo", 0)
    refused = create(rest_mesh, status=400, requests=rows[1:])
    assert refused["error"]["rejected_records"][0]["param"] == "body.model"
    ended(rest_mesh, batch["id"])  # its output is a file: not to come while the next test counts them


@pytest.mark.parametrize(
    ("fields", "code", "param", "told"),
    [
        ({"requests": []}, "empty_array", "requests", "minimum length 1"),
        ({"requests": [chat_row("a")] * 1_001}, "array_above_max_length", "requests", "maximum length 1000, but got"),
        ({"requests": {"a": 1}}, "invalid_type", "requests", "expected an array, but got an object"),
        ({"requests": [chat_row("a")], "input_file_id": "file-a"}, "invalid_value", "requests", "got both"),
        ({"requests": None}, "missing_required_parameter", "input_file_id", "input_file_id"),
        ({"requests": [chat_row("a")], "invalid_rows": "drop"}, "invalid_value", "invalid_rows", "'fail' and 'reject'"),
        ({"requests": [chat_row("a")], "pack": "yes"}, "invalid_type", "pack", "a boolean"),
        ({"requests": [chat_row("a")], "pack": True}, "invalid_value", "pack", "means nothing to /v1/chat/completions"),
        ({"requests": [chat_row("a")], "request": []}, "unknown_parameter", "request", "request"),
    ],
)
def test_what_is_refused(rest_mesh: RestMesh, fields: dict[str, Any], code: str, param: str, told: str) -> None:
    """By name, with limit and measured value, and nothing is created."""
    before = everything(rest_mesh)
    error = create(rest_mesh, status=400, **fields)["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert told in error["message"]
    assert everything(rest_mesh) == before


def test_records_need_not_be_objects_to_be_refused_one_by_one(rest_mesh: RestMesh) -> None:
    """With invalid_rows reject each bad record is told with its place, its code and its id, and is in a file; the rest runs."""
    records = [chat_row("a"), 1, None, [], "x", {}, chat_row("a"), BAD_URL, chat_row("שלום"), chat_row("b", nope=1)]
    batch = create(rest_mesh, requests=records, invalid_rows="reject")
    assert batch["rejected_count"] == 8
    assert [(one["line"], one["custom_id"], one["code"], one["param"]) for one in batch["rejected_records"]] == [
        (2, None, "invalid_json_line", None),
        (3, None, "invalid_json_line", None),
        (4, None, "invalid_json_line", None),
        (5, None, "invalid_json_line", None),
        (6, None, "missing_required_parameter", "custom_id"),
        (7, "a", "duplicate_custom_id", "custom_id"),
        (8, "wrong", "invalid_url", "url"),
        (10, "b", "unsupported_parameter", "body.nope"),
    ]
    file = rest_mesh.client.get(f"/v1/files/{batch['rejected_records_file_id']}").json()
    assert file["purpose"] == "batch_rejections"
    content = rest_mesh.client.get(f"/v1/files/{file['id']}/content").content
    lines = [json.loads(line) for line in content.splitlines()]
    assert [line["error"]["line"] for line in lines] == [2, 3, 4, 5, 6, 7, 8, 10]
    assert all(line["response"] is None and line["id"].startswith("batch_req_") for line in lines)
    shown = rest_mesh.client.get(f"/v1/batches/{batch['id']}").json()
    assert not set(REJECTED) & set(shown)
    assert shown["request_counts"] == {"total": 10, "completed": shown["request_counts"]["completed"], "failed": 8}
    assert ended(rest_mesh, batch["id"])["request_counts"] == {"total": 10, "completed": 2, "failed": 8}


def test_waiting_for_validation(rest_mesh: RestMesh) -> None:
    """`Prefer: wait` tells what became of an uploaded file's lines; without it these fields are null."""
    file_id = upload(rest_mesh, jsonl([chat_row("a"), BAD_URL]))
    batch = create(rest_mesh, {"prefer": "respond-async, wait=10"}, input_file_id=file_id)
    assert (batch["status"], batch["error"]["code"], batch["failed_at"]) == ("failed", "validation_failed", batch["created_at"])
    assert [error["line"] for error in batch["errors"]["data"]] == [2]
    assert (batch["rejected_count"], batch["rejected_records"][0]["code"]) == (1, "invalid_url")
    plain = create(rest_mesh, input_file_id=file_id)
    assert [plain[name] for name in REJECTED] == [None, None, None]
    assert plain["status"] == "validating"
    for preference in ("wait=0", "wait=soon", "return=minimal", "wait=-1", ""):
        assert create(rest_mesh, {"prefer": preference}, input_file_id=file_id)["rejected_count"] is None


@pytest.mark.parametrize("policy", ["fail", "reject"])
@pytest.mark.parametrize("inline", [True, False])
def test_no_record_can_run(rest_mesh: RestMesh, policy: str, inline: bool) -> None:
    """400 `no_valid_records` with the records, and neither a batch nor a file is there."""
    rows = [BAD_URL | {"custom_id": f"c{n}"} for n in range(120)]
    source: dict[str, Any] = {"requests": rows} if inline else {"input_file_id": upload(rest_mesh, jsonl(rows))}
    before = everything(rest_mesh)
    error = create(rest_mesh, {"prefer": "wait=10"}, 400, invalid_rows=policy, **source)["error"]
    assert (error["code"], error["type"], error["param"]) == ("no_valid_records", "invalid_request_error", None)
    assert "120" in error["message"]
    assert (error["rejected_count"], len(error["rejected_records"]), error["rejected_records_file_id"]) == (120, 100, None)
    assert error["rejected_records"][99] == {
        "line": 100,
        "custom_id": "c99",
        "code": "invalid_url",
        "message": "The url '/v1/completions' is not the endpoint of the batch, '/v1/chat/completions'.",
        "param": "url",
    }
    assert everything(rest_mesh) == before


def test_waiting_ends(rest_mesh: RestMesh) -> None:
    """After N seconds without an engine the answer is the batch as it is."""
    with rest_mesh.without_engines():
        file_id = upload(rest_mesh, jsonl([chat_row("a")]))
        began = time.monotonic()
        batch = create(rest_mesh, {"prefer": "wait=1"}, input_file_id=file_id)
        assert 0.9 < time.monotonic() - began < 8
        assert (batch["status"], batch["rejected_count"]) == ("validating", None)
    assert ended(rest_mesh, batch["id"])["status"] == "completed"


def test_embeddings_can_be_packed(rest_mesh: RestMesh) -> None:
    """`pack` is for embeddings, true or false."""
    row = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "vectors", "input": "x"}}
    for pack in (True, False, None):
        batch = create(rest_mesh, requests=[row], endpoint="/v1/embeddings", pack=pack)
        assert batch["endpoint"] == "/v1/embeddings"


def test_deterministic_is_refused_by_name(rest_mesh: RestMesh) -> None:
    """Where no engine of the model promises it, the batch fails with the parameter's name; it is never ignored."""
    batch = create(rest_mesh, requests=[chat_row("a")], deterministic=True)
    assert batch["status"] == "failed"
    assert [(one["code"], one["param"], one["line"]) for one in batch["errors"]["data"]] == [
        ("unsupported_parameter", "deterministic", None)
    ]


def test_missing_file(rest_mesh: RestMesh) -> None:
    """Waited for or not, 200 and then failed."""
    batch = create(rest_mesh, {"prefer": "wait=5"}, input_file_id="file-nope")
    assert (batch["status"], batch["errors"]["data"][0]["param"]) == ("failed", "file_id")
    assert (batch["rejected_count"], batch["rejected_records"]) == (0, [])
    assert ended(rest_mesh, create(rest_mesh, input_file_id="file-nope")["id"])["status"] == "failed"


def test_inline_input_outlives_its_deletion(rest_mesh: RestMesh) -> None:
    """Deleting the file of inline records, or of rejections, right after creation harms the batch in nothing."""
    row = chat_row("a", model="Qwen/Qwen3-0.6B")
    batch = create(rest_mesh, requests=[row, BAD_URL], invalid_rows="reject")
    for name in ("input_file_id", "rejected_records_file_id"):
        assert rest_mesh.client.delete(f"/v1/files/{batch[name]}").json()["deleted"] is True
        assert rest_mesh.client.get(f"/v1/files/{batch[name]}/content").json()["error"]["code"] == "file_deleted"
    until("it runs", lambda: rest_mesh.client.get(f"/v1/batches/{batch['id']}").json()["status"] == "in_progress")
    submitted = rest_mesh.scheduler.batches[batch["id"]].request
    for key in (submitted.input_blob_key, submitted.rejected_blob_key):
        assert list((rest_mesh.data / "blobs").glob(f"*/{key}"))
    rest_mesh.client.post(f"/v1/batches/{batch['id']}/cancel")
    assert ended(rest_mesh, batch["id"])["request_counts"] == {"total": 2, "completed": 0, "failed": 2}
    until("the bytes go", lambda: not list((rest_mesh.data / "blobs").glob(f"*/{submitted.input_blob_key}")))
    until("the bytes go", lambda: not list((rest_mesh.data / "blobs").glob(f"*/{submitted.rejected_blob_key}")))

"""What programs for other systems do, call by call, against the whole mesh: BatchGen's client, miLLM's and OpenRelay's requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from conservation import assert_conserved, content_lines
from mesh import TERMINAL, Mesh, chat_row, jsonl, until


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with a slow engine of few slots."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo", "--set", "engine.echo.slots=8", "--set", "engine.echo.ms_per_row=4")


def batchgen(client: httpx.Client, path: Path, **fields: Any) -> dict[str, Any]:
    """Do what BatchGen's `submit_batch` does, each request as its client sends it; the batch, once it has ended."""
    assert client.get("/health").status_code == 200
    with path.open("rb") as file:
        uploaded = client.post("/v1/files", files={"file": (path.name, file)}, data={"purpose": "batch"}).json()
    assert (uploaded["object"], uploaded["bytes"]) == ("file", path.stat().st_size)
    assert uploaded["checksum"].startswith("sha256:")
    body = {"input_file_id": uploaded["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h", **fields}
    created = client.post("/v1/batches", json=body)
    assert created.status_code == 200, created.text
    batch: dict[str, Any] = created.json()
    assert {name: batch[name] for name in fields} == fields
    assert batch["started_at"] is None

    def poll() -> dict[str, Any] | None:
        polled: dict[str, Any] = client.get(f"/v1/batches/{batch['id']}").json()
        return polled if polled["status"] in {"completed", "failed", "cancelled"} else None

    return dict(until("the batch ends", poll))


def test_batchgen_s_client(mesh: Mesh, tmp_path: Path) -> None:
    """Its calls get what it reads: the batch-level fields, `started_at`, `checksum`, and results by `output_file_id`."""
    path = tmp_path / "requests.jsonl"
    rows = [chat_row(f"row-{number}", f"one two three {number}") for number in range(40)]
    path.write_bytes(jsonl(rows))
    fields = {
        "metadata": {"team": "search"}, "max_decoding_length": 2, "max_context_length": 100, "temperature": 0.0, "top_p": 1.0,
        "top_k": 0,
    }  # fmt: skip
    batch = batchgen(mesh.client, path, **fields)
    assert (batch["status"], batch["error"]) == ("completed", None)
    assert batch["created_at"] <= batch["started_at"] <= batch["completed_at"]
    output, failed = assert_conserved(mesh.client, batch, [row["custom_id"] for row in rows])
    assert not failed
    [choice] = output[0]["response"]["body"]["choices"]
    assert choice["message"]["content"] == "one two"
    assert not choice["message"].get("tool_calls")
    described = mesh.client.get(f"/v1/files/{batch['output_file_id']}").json()
    assert (described["id"], described["purpose"]) == (batch["output_file_id"], "batch_output")


def test_batchgen_s_client_is_told_why(mesh: Mesh, tmp_path: Path) -> None:
    """A failed batch has `error`, which its client raises with; a refused one has a status and words."""
    path = tmp_path / "requests.jsonl"
    path.write_bytes(jsonl([chat_row("a"), chat_row("a")]))
    batch = batchgen(mesh.client, path)
    assert batch["status"] == "failed"
    assert "line 2" in batch["error"]["message"]
    refused = mesh.client.post("/v1/batches", json={"input_file_id": batch["input_file_id"], "top_p": 2})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "top_p")


def test_rows_go_before_their_batch(mesh: Mesh) -> None:
    """What a row says of its sampling and length holds; what it leaves out is the batch's; else the engine's own."""
    words = "one two three four five"
    rows = [
        chat_row("batch", words),
        chat_row("row", words, max_tokens=3),
        chat_row("newer", words, max_completion_tokens=4),
    ]
    batch = mesh.wait(mesh.create(rows, max_decoding_length=2)["id"])
    said = [line["response"]["body"]["choices"][0] for line in content_lines(mesh.client, batch["output_file_id"])]
    assert [choice["message"]["content"] for choice in said] == ["one two", "one two three", "one two three four"]
    assert {choice["finish_reason"] for choice in said} == {"length"}
    batch = mesh.wait(mesh.create(rows[:1])["id"])
    [line] = content_lines(mesh.client, batch["output_file_id"])
    assert line["response"]["body"]["choices"][0]["message"]["content"] == words


@pytest.mark.parametrize("pack", [None, False, True])
def test_embeddings_of_a_batch_are_those_of_a_request(mesh: Mesh, pack: bool | None) -> None:
    """To the last digit, packed or not, for texts, lists, tokens, other dimensions and base64."""
    bodies: list[dict[str, Any]] = [
        {"input": "one"}, {"input": ["one", "two words", "字"]}, {"input": [1, 2, 3]}, {"input": [[1], [2, 3]]},
        {"input": "one", "dimensions": 7}, {"input": ["one", "two"], "encoding_format": "base64"},
    ]  # fmt: skip
    rows = [
        {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/embeddings", "body": {"model": "echo", **body}}
        for number, body in enumerate(bodies)
    ]
    fields = {} if pack is None else {"pack": pack}
    batch = mesh.wait(mesh.create(rows, endpoint="/v1/embeddings", **fields)["id"])
    assert batch["request_counts"] == {"total": 6, "completed": 6, "failed": 0}, batch
    lines = mesh.client.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
    for row, line in zip(rows, lines, strict=True):
        now = mesh.client.post("/v1/embeddings", json=row["body"])
        exact = [json.loads(text, parse_float=str) for text in (line, now.text)]
        assert exact[0]["response"]["body"] == exact[1]


def test_several_choices_of_a_row(mesh: Mesh) -> None:
    """`n` choices are in the row's answer, and all of them in the usage."""
    batch = mesh.wait(mesh.create([chat_row("a", "one two", n=3)])["id"])
    [line] = content_lines(mesh.client, batch["output_file_id"])
    body = line["response"]["body"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in body["choices"]} == {"one two"}
    assert (body["usage"]["completion_tokens"], batch["usage"]["output_tokens"]) == (6, 6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "find"}}]),
        ("tool_choice", "auto"),
        ("logprobs", True),
        ("response_format", {"type": "json_object"}),
        ("service_tier", "flex"),
        ("store", True),
        ("reasoning_effort", "low"),
    ],
)
def test_what_would_have_no_effect_is_refused(mesh: Mesh, field: str, value: Any) -> None:
    """By its name, now and in a batch alike, never ignored; absent or null it is no matter."""
    row = chat_row("a", "hello", **{field: value})
    now = mesh.client.post("/v1/chat/completions", json=row["body"])
    error = now.json()["error"]
    assert (now.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", field)
    failed = mesh.wait(mesh.create([chat_row("b"), row])["id"])
    [error] = failed["errors"]["data"]
    assert (error["code"], error["param"], error["line"]) == ("unsupported_parameter", f"body.{field}", 2)
    assert f"'{field}'" in error["message"]
    without = chat_row("a", "hello", **{field: None})
    assert mesh.client.post("/v1/chat/completions", json=without["body"]).status_code == 200
    assert mesh.wait(mesh.create([without])["id"])["status"] == "completed"


def test_expedited_goes_first(mesh: Mesh) -> None:
    """While a batch of priority `expedited` has rows that wait, no row of another runs, however small and new that one is."""
    expedited = mesh.create([chat_row(f"e{number}") for number in range(4_000)], priority="expedited")
    assert expedited["priority"] == "expedited"
    until("rows run", lambda: mesh.batch(expedited["id"])["request_counts"]["completed"])
    standard = mesh.create([chat_row(f"s{number}") for number in range(20)])
    waited = 0
    while True:
        behind = mesh.batch(standard["id"])
        done = mesh.batch(expedited["id"])["request_counts"]["completed"]
        if done > 3_800:
            break
        assert behind["request_counts"]["completed"] == 0
        waited += behind["status"] == "in_progress"
    assert waited, (done, behind)
    assert mesh.wait(standard["id"])["status"] == mesh.wait(expedited["id"])["status"] == "completed"


def test_millm_s_headers(mesh: Mesh) -> None:
    """What its clients send with every request means nothing here, and breaks nothing."""
    headers = {"X-miLLM-Lease": "lease-1", "X-miLLM-Load-Policy": "refuse", "X-miLLM-Strict": "true"}
    uploaded = mesh.client.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", jsonl([chat_row("a")]))}, headers=headers
    )
    created = mesh.client.post("/v1/batches", json={"input_file_id": uploaded.json()["id"]}, headers=headers)
    assert mesh.wait(created.json()["id"])["status"] == "completed"
    body = chat_row("a")["body"]
    assert mesh.client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200


def test_openrelay_s_inline_records(mesh: Mesh) -> None:
    """Records in the request, a model for all, one of them bad: what was rejected is told at once, and the rest runs."""
    records = [chat_row("a"), chat_row("a"), chat_row("c")]
    for record in records:
        del record["body"]["model"]
    body = {"requests": records, "model": "echo", "priority": "expedited", "invalid_rows": "reject"}
    headers = {"Idempotency-Key": "openrelay-1"}
    created = mesh.client.post("/v1/batches", json=body, headers=headers)
    made = created.json()
    assert (made["rejected_count"], [record["line"] for record in made["rejected_records"]]) == (1, [2])
    again = mesh.client.post("/v1/batches", json=body, headers=headers)
    assert (again.content, again.headers["idempotent-replayed"]) == (created.content, "true")
    batch = mesh.wait(made["id"])
    assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    updated = mesh.client.post(f"/v1/batches/{made['id']}", json={"metadata": {"seen": "yes"}}).json()
    assert (updated["status"], updated["metadata"]) == ("completed", {"seen": "yes"})


def test_an_end_and_its_files_come_together(mesh: Mesh) -> None:
    """No reader ever sees an ended batch without its files and counts, or files before the end; each can be read at once."""
    for _ in range(12):
        created = mesh.create([chat_row("good"), chat_row("bad", messages=[{"rolez": "user"}])])
        batch = mesh.client.get(f"/v1/batches/{created['id']}").json()  # at once: what was answered is there
        while batch["status"] not in TERMINAL:
            assert (batch["output_file_id"], batch["error_file_id"], batch["completed_at"]) == (None, None, None)
            answer = mesh.client.get(f"/v1/batches/{created['id']}")
            assert answer.status_code == 200, answer.text
            batch = answer.json()
        assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        assert_conserved(mesh.client, batch, ["good", "bad"])

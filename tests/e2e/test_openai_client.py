"""The official openai client against the whole mesh: change the base URL, nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, jsonl, until


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with the echo engine."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo", "--set", "engine.echo.fail_containing=please fail")


@pytest.fixture
def client(mesh: Mesh) -> Iterator[openai.OpenAI]:
    """The official client; retries off, so that each answer is seen."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{mesh.port}/v1", api_key="any", max_retries=0) as made:
        yield made


def test_upload_batch_poll_results(mesh: Mesh, client: openai.OpenAI) -> None:
    """Upload, create, poll, download: the whole main job through the official client."""
    rows = [chat_row(f"row-{n}", "please fail" if n == 7 else f"text {n} é \u2028 😀") for n in range(20)]
    file = client.files.create(file=("requests.jsonl", jsonl(rows)), purpose="batch")
    assert client.files.wait_for_processing(file.id).status == "processed"
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"team": "search"}
    )
    assert batch.status == "validating"
    assert batch.metadata == {"team": "search"}
    ended = until("the batch ends", lambda: (b := client.batches.retrieve(batch.id)).completed_at and b)
    assert ended.status == "completed"
    assert (ended.request_counts.total, ended.request_counts.completed, ended.request_counts.failed) == (20, 19, 1)
    output, failed = assert_conserved(mesh.client, mesh.batch(batch.id), [row["custom_id"] for row in rows])
    assert [line["custom_id"] for line in failed] == ["row-7"]
    first = output[0]["response"]["body"]
    assert first["object"] == "chat.completion"
    assert "text 0 é \u2028 😀" in first["choices"][0]["message"]["content"]
    assert first["usage"]["total_tokens"] > 0
    text = client.files.content(ended.output_file_id).text
    assert len(text.splitlines()) == 19
    assert json.loads(text.splitlines()[0])["custom_id"] == "row-0"
    assert batch.id in [listed.id for listed in client.batches.list(limit=5)]


def test_chat(client: openai.OpenAI) -> None:
    """A chat completion, plain."""
    answer = client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "good morning"}])
    assert "good morning" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_chat_streamed(client: openai.OpenAI) -> None:
    """A chat completion, token by token, says the same as the plain one."""
    messages = [{"role": "user", "content": "one two three"}]
    plain = client.chat.completions.create(model="echo", messages=messages)  # type: ignore[arg-type]
    with client.chat.completions.create(model="echo", messages=messages, stream=True) as stream:  # type: ignore[arg-type, call-overload]
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(chunks) > 2
    assert text == plain.choices[0].message.content


def test_errors_are_typed(client: openai.OpenAI) -> None:
    """Errors arrive as the client's own exceptions, with code and param."""
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as window:
        client.batches.create(input_file_id="file-x", endpoint="/v1/chat/completions", completion_window="1h")  # type: ignore[arg-type]
    assert window.value.param == "completion_window"
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_none")
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve("file-none")
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "please fail"}])


def test_validation_failure_names_every_line(mesh: Mesh, client: openai.OpenAI) -> None:
    """A file with bad lines fails as a whole, each bad line named, and nothing runs."""
    rows = [chat_row("a"), chat_row("a"), {"custom_id": "c"}, chat_row("d") | {"url": "/v1/embeddings"}]
    batch = mesh.wait(mesh.create(rows)["id"])
    assert batch["status"] == "failed"
    seen = [(entry["line"], entry["code"]) for entry in batch["errors"]["data"]]
    assert seen == [(2, "duplicate_custom_id"), (3, "missing_required_parameter"), (4, "invalid_url")]
    assert_conserved(mesh.client, batch, ["a", "a", "c", "d"])
    fetched = client.batches.retrieve(batch["id"])
    assert fetched.errors is not None
    assert fetched.errors.data is not None
    assert fetched.errors.data[0].line == 2


def test_cancel_keeps_what_is_done(haywain: Path) -> None:
    """Cancelling answers at once; finished rows are kept, the others are `batch_cancelled`, each id once."""
    with Mesh(haywain).start("--engine", "echo", "--set", "engine.echo.ms_per_row=200", "--set", "engine.echo.slots=4") as mesh:
        rows = [chat_row(f"row-{n}") for n in range(400)]
        batch = mesh.create(rows)
        until("a row is done", lambda: mesh.batch(batch["id"])["request_counts"]["completed"] >= 4)
        cancelling = mesh.client.post(f"/v1/batches/{batch['id']}/cancel").json()
        assert cancelling["status"] == "cancelling"
        assert mesh.client.post(f"/v1/batches/{batch['id']}/cancel").json()["status"] in ("cancelling", "cancelled")
        ended = mesh.wait(batch["id"])
        assert ended["status"] == "cancelled"
        output, failed = assert_conserved(mesh.client, ended, [row["custom_id"] for row in rows])
        assert len(output) >= 4
        assert {line["error"]["code"] for line in failed} == {"batch_cancelled"}
        again = mesh.client.post(f"/v1/batches/{batch['id']}/cancel")
        assert again.status_code == 200
        assert again.json() == ended

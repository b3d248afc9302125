"""What comes back from the whole mesh, held against the official client's own types: strictly, and with every field there."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from conservation import assert_conserved
from jsonschema import Draft202012Validator
from mesh import TERMINAL, Mesh, chat_row, until
from openai import types
from openai.types import chat

from gateway.openapi import document


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with the echo engine."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo", "--set", "engine.echo.fail_containing=please fail")


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    """The schemas that /openapi.json publishes."""
    return dict(json.loads(document())["components"]["schemas"])


def _strict(kind: Any, answer: httpx.Response | bytes) -> Any:
    """Read an answer as one of the client's types; nothing is coerced."""
    data = answer if isinstance(answer, bytes) else answer.content
    if isinstance(answer, httpx.Response):
        assert answer.status_code == 200, answer.text
    return kind.model_validate_json(data, strict=True)


def _has_every_field(schemas: dict[str, Any], name: str, value: dict[str, Any]) -> None:
    """Check an object by its schema: it has just the members that are always there, in their order."""
    assert [*value] == schemas[name]["required"], name
    Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}).validate(value)


def test_file(mesh: Mesh, schemas: dict[str, Any]) -> None:
    """A file and a list of files."""
    uploaded = mesh.upload(b'{"a": 1}\n')
    for answer in (mesh.client.get(f"/v1/files/{uploaded['id']}"), httpx.Response(200, json=uploaded)):
        file = _strict(types.FileObject, answer)
        assert file.expires_at == file.created_at + 2_592_000
        assert answer.json() == uploaded
    _has_every_field(schemas, "FileObject", uploaded)
    page = mesh.client.get("/v1/files").json()
    _has_every_field(schemas, "Page_FileObject_", page)
    assert page["data"][0] == uploaded
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
    gone = mesh.client.delete(f"/v1/files/{uploaded['id']}")
    assert _strict(types.FileDeleted, gone).deleted
    _has_every_field(schemas, "DeletedFile", gone.json())


def test_batch(mesh: Mesh, schemas: dict[str, Any]) -> None:
    """A batch in every status it goes through: all fields there, usage summed, timestamps in order, never one back to null."""
    rows = [chat_row(f"row-{n}", "please fail" if n == 3 else f"text {n}") for n in range(10)]
    created = mesh.create(rows, metadata={"a": "b"})
    seen = [created]
    until_ended = time.monotonic() + 30
    while seen[-1]["status"] not in TERMINAL and time.monotonic() < until_ended:
        answer = mesh.client.get(f"/v1/batches/{created['id']}")
        _strict(types.Batch, answer)
        seen.append(answer.json())
    for before, after in itertools.pairwise(seen):
        _has_every_field(schemas, "BatchObject", after)
        for name, value in before.items():
            if name.endswith("_at") and value is not None:
                assert after[name] == value, name
    batch = seen[-1]
    order = [batch[name] for name in ("created_at", "in_progress_at", "finalizing_at", "completed_at", "expires_at")]
    assert order == sorted(order)
    assert batch["started_at"] == batch["in_progress_at"]
    assert batch["expires_at"] == batch["created_at"] + 86_400
    assert batch["request_counts"] == {"total": 10, "completed": 9, "failed": 1}
    assert batch["metadata"] == {"a": "b"}
    output, failed = assert_conserved(mesh.client, batch, [row["custom_id"] for row in rows])
    usages = [line["response"]["body"]["usage"] for line in output]
    assert batch["usage"] == {
        "input_tokens": sum(usage["prompt_tokens"] for usage in usages),
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": sum(usage["completion_tokens"] for usage in usages),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": sum(usage["total_tokens"] for usage in usages),
    }
    for line in (*output, *failed):
        provenance = line["response"]["x_provenance"]
        assert provenance["engine"] == "engine-0"
        assert [*provenance] == [
            "engine", "backend", "model_digest", "seed", "prompt_cached_tokens", "queue_ms", "run_ms", "attempt"
        ]  # fmt: skip
    for line in output:
        _strict(chat.ChatCompletion, json.dumps(line["response"]["body"]).encode())
    page = mesh.client.get("/v1/batches").json()
    _has_every_field(schemas, "Page_BatchObject_", page)


def test_failed_batch(mesh: Mesh, schemas: dict[str, Any]) -> None:
    """A batch whose lines are bad: `errors` and `error` in their shapes."""
    batch = mesh.wait(mesh.create([chat_row("a"), chat_row("a")])["id"])
    read = _strict(types.Batch, json.dumps(batch).encode())
    assert read.errors.object == "list"
    _has_every_field(schemas, "BatchObject", batch)
    _has_every_field(schemas, "ErrorList", batch["errors"])
    _has_every_field(schemas, "LineErrorObject", batch["errors"]["data"][0])
    _has_every_field(schemas, "BatchError", batch["error"])
    assert batch["failed_at"] >= batch["created_at"]


def test_ids_are_opaque(mesh: Mesh) -> None:
    """An id means nothing but what it was given for: prefixes, other cases and lookalikes of it are not found."""
    batch_id, file_id = mesh.create([chat_row("a")])["id"], mesh.upload(b"{}\n")["id"]
    for path, one in (("/v1/batches", batch_id), ("/v1/files", file_id)):
        assert mesh.client.get(f"{path}/{one}").status_code == 200
        for other in (one[:-1], one + "0", one.upper(), f" {one}", f"{one}%20", one.replace("_", "-", 1) + "x"):
            assert mesh.client.get(f"{path}/{other}").status_code == 404, other


def test_models(mesh: Mesh, schemas: dict[str, Any]) -> None:
    """A model and the list of models."""
    answer = mesh.client.get("/v1/models/echo")
    assert _strict(types.Model, answer).created > 1_700_000_000
    _has_every_field(schemas, "ModelObject", answer.json())
    listing = mesh.client.get("/v1/models").json()
    _has_every_field(schemas, "ModelList", listing)
    assert listing["data"] == [answer.json()]


def test_chat(mesh: Mesh, schemas: dict[str, Any]) -> None:
    """A chat completion, whole and in chunks."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "one two"}], "n": 2, "seed": 7}
    answer = mesh.client.post("/v1/chat/completions", json=body)
    completion = _strict(chat.ChatCompletion, answer)
    assert [choice.index for choice in completion.choices] == [0, 1]
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (2, 4, 6)
    assert completion.usage.prompt_tokens_details.cached_tokens == 0
    assert completion.usage.completion_tokens_details.reasoning_tokens == 0
    _has_every_field(schemas, "ChatCompletion", answer.json())
    _has_every_field(schemas, "ChatChoice", answer.json()["choices"][0])
    _has_every_field(schemas, "ChatMessage", answer.json()["choices"][0]["message"])
    chunks = _events(mesh, "/v1/chat/completions", body | {"stream": True, "stream_options": {"include_usage": True}})
    read = [_strict(chat.ChatCompletionChunk, chunk) for chunk in chunks]
    for index in (0, 1):
        mine = [choice for chunk in read for choice in chunk.choices if choice.index == index]
        assert "".join(choice.delta.content or "" for choice in mine) == "one two"
        assert [choice.finish_reason for choice in mine if choice.finish_reason] == ["stop"]
    assert (read[-1].choices, read[-1].usage) == ([], completion.usage)
    assert {chunk.id for chunk in read} == {read[0].id}


def test_completion(mesh: Mesh, schemas: dict[str, Any]) -> None:
    """A text completion, whole and in chunks."""
    body = {"model": "echo", "prompt": ["one two", "5 6 7"], "max_tokens": 2}
    answer = mesh.client.post("/v1/completions", json=body)
    completion = _strict(types.Completion, answer)
    assert [(choice.text, choice.finish_reason) for choice in completion.choices] == [("one two", "stop"), ("5 6", "length")]
    _has_every_field(schemas, "TextCompletion", answer.json())
    _has_every_field(schemas, "TextChoice", answer.json()["choices"][0])
    read = [json.loads(chunk) for chunk in _events(mesh, "/v1/completions", body | {"stream": True})]
    for index, text in enumerate(["one two", "5 6"]):
        assert "".join(c["text"] for chunk in read for c in chunk["choices"] if c["index"] == index) == text
    with (
        openai.OpenAI(base_url=f"http://127.0.0.1:{mesh.port}/v1", api_key="any", max_retries=0) as client,
        client.completions.create(model="echo", prompt="one two", stream=True) as stream,
    ):
        assert "".join(chunk.choices[0].text for chunk in stream) == "one two"


def test_embeddings(mesh: Mesh, schemas: dict[str, Any]) -> None:
    """Embeddings, as numbers and as the client likes them best, base64; the same text has the same vector."""
    answer = mesh.client.post("/v1/embeddings", json={"model": "echo", "input": ["a b", "c", "a b"], "dimensions": 8})
    made = _strict(types.CreateEmbeddingResponse, answer)
    assert [len(one.embedding) for one in made.data] == [8, 8, 8]
    assert made.data[0].embedding == made.data[2].embedding != made.data[1].embedding
    assert (made.usage.prompt_tokens, made.usage.total_tokens) == (5, 5)
    _has_every_field(schemas, "EmbeddingList", answer.json())
    _has_every_field(schemas, "Embedding", answer.json()["data"][0])
    with openai.OpenAI(base_url=f"http://127.0.0.1:{mesh.port}/v1", api_key="any", max_retries=0) as client:
        decoded = client.embeddings.create(model="echo", input=["a b"], dimensions=8).data[0].embedding
    assert decoded == pytest.approx(made.data[0].embedding, abs=1e-6)


def test_health_and_pool(mesh: Mesh, schemas: dict[str, Any]) -> None:
    """The mesh's own objects."""
    detailed = mesh.client.get("/health/detailed").json()
    _has_every_field(schemas, "DetailedHealth", detailed)
    assert [*detailed["components"]] == ["files", "batches", "scheduler", "storage", "engine engine-0"]
    for component in detailed["components"].values():
        _has_every_field(schemas, "Component", component)
        assert component["status"] == "healthy"
    assert detailed["components"]["files"]["latency_ms"] > 0
    until("nothing waits", lambda: mesh.client.get("/health/detailed").json()["batch_backlog_rows"] == 0)
    pool = mesh.client.get("/v1/pool/status").json()
    _has_every_field(schemas, "PoolObject", pool)
    _has_every_field(schemas, "EngineObject", pool["engines"][0])


def _events(mesh: Mesh, path: str, body: dict[str, Any]) -> list[bytes]:
    """Read a stream of events: the data of each, without the [DONE] at the end."""
    answer = mesh.client.post(path, json=body)
    assert answer.headers["content-type"] == "text/event-stream"
    *events, done, nothing = answer.content.split(b"\n\n")
    assert (done, nothing) == (b"data: [DONE]", b"")
    return [event.removeprefix(b"data: ") for event in events]

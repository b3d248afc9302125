"""The official openai SDK for Node against the whole mesh: change the base URL, nothing else.

tests/npm.py says where Node and the SDK come from.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row
from npm import NODE, environment, installed

SCRIPTS = Path(__file__).parent / "node"

Script = Callable[[str], Any]


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with an echo engine that fails on demand."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo", "--set", "engine.echo.fail_containing=please fail")


@pytest.fixture(scope="session")
def sdk() -> Path:
    """Install the SDK unless it is there; the `node_modules` that has it."""
    return installed(SCRIPTS) / "node_modules"


@pytest.fixture
def script(mesh: Mesh, sdk: Path, tmp_path: Path) -> Script:
    """Run a script of tests/e2e/node against the mesh; what it printed, parsed."""

    def run(name: str) -> Any:
        shutil.copy(SCRIPTS / name, tmp_path)  # modules are found from where a script lies
        (tmp_path / "node_modules").symlink_to(sdk)
        words = [str(NODE), str(tmp_path / name), f"http://127.0.0.1:{mesh.port}/v1"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=environment())
        assert done.returncode == 0, done.stderr + mesh.logs()
        return json.loads(done.stdout)

    return run


def test_upload_batch_poll_content_delete(mesh: Mesh, script: Script) -> None:
    """The whole main job: every row once, in order, with the text that was sent; a deleted input is gone."""
    seen = script("batch.mjs")
    assert seen["processed"] == "processed"
    assert (seen["file"]["object"], seen["file"]["purpose"], seen["file"]["filename"]) == ("file", "batch", "requests.jsonl")
    assert (seen["created"]["status"], seen["created"]["metadata"]) == ("validating", {"team": "search"})
    assert seen["batch"]["status"] == "completed"
    assert seen["batch"]["request_counts"] == {"total": 20, "completed": 19, "failed": 1}
    output, errors = assert_conserved(mesh.client, seen["batch"], [f"row-{n}" for n in range(20)])
    assert (seen["output"], seen["errors"]) == (output, errors)
    assert "text 0 é \u2028 😀" in output[0]["response"]["body"]["choices"][0]["message"]["content"]
    assert [line["custom_id"] for line in errors] == ["row-7"]
    assert seen["again"]["status"] == 409
    assert seen["again"]["kind"] == "ConflictError"
    assert "Cannot cancel a batch with status 'completed'." in seen["again"]["message"]
    assert seen["requestId"]
    assert seen["deleted"] == {"id": seen["file"]["id"], "object": "file", "deleted": True}
    assert seen["gone"] == {"status": 404, "code": "file_deleted"}


def test_chat_plain_and_streamed(script: Script) -> None:
    """A stream says what the plain answer says, ends with its usage, and can be left in the middle."""
    seen = script("chat.mjs")
    text = seen["plain"]["choices"][0]["message"]["content"]
    assert "one two three é 😀" in text
    assert (seen["plain"]["object"], seen["plain"]["choices"][0]["finish_reason"]) == ("chat.completion", "stop")
    parts = [choice["delta"].get("content") or "" for chunk in seen["chunks"] for choice in chunk["choices"]]
    assert len(seen["chunks"]) > 2
    assert "".join(parts) == text
    assert {chunk["object"] for chunk in seen["chunks"]} == {"chat.completion.chunk"}
    assert seen["chunks"][-1]["choices"] == []
    assert seen["chunks"][-1]["usage"]["total_tokens"] == seen["plain"]["usage"]["total_tokens"]
    assert seen["assembled"]["choices"][0]["message"]["content"] == text
    assert seen["before"] == 1
    assert seen["models"] == ["echo"]
    assert (seen["model"]["id"], seen["model"]["object"]) == ("echo", "model")


def test_completions_and_embeddings(script: Script) -> None:
    """The other two endpoints; embeddings come as base64, which the SDK asks for and unpacks by itself."""
    seen = script("others.mjs")
    assert (seen["plain"]["object"], seen["plain"]["choices"][0]["finish_reason"]) == ("text_completion", "stop")
    text = seen["plain"]["choices"][0]["text"]
    assert "once upon" in text
    assert "".join(choice["text"] for chunk in seen["chunks"] for choice in chunk["choices"]) == text
    assert [one["index"] for one in seen["embeddings"]["data"]] == [0, 1]
    for one in seen["embeddings"]["data"]:
        assert abs(sum(x * x for x in one["embedding"]) - 1) < 1e-4
    assert seen["embeddings"]["data"] != seen["embeddings"]["data"][::-1]


def test_pages_hold_each_object_once(mesh: Mesh, script: Script) -> None:
    """`for await` over lists goes through every object of the same second once, newest first, or oldest where asked."""
    made = [mesh.create([chat_row("a")]) for _ in range(40)]
    seen = script("pages.mjs")
    batches = [batch["id"] for batch in reversed(made)]
    assert seen["batches"][:40] == batches
    assert len(set(seen["batches"])) == len(seen["batches"])
    files = [batch["input_file_id"] for batch in made]
    assert seen["files"]["asc"][-40:] == files
    assert seen["files"]["desc"] == seen["files"]["asc"][::-1]
    assert seen["pages"] == [batches[:2], batches[2:4]]


def test_errors_are_typed(script: Script) -> None:
    """Each error arrives as the SDK's own class with status, code, param and request id."""
    seen = script("errors.mjs")
    assert {name: error and (error["kind"], error["status"], error["code"]) for name, error in seen.items()} == {
        "model": ("NotFoundError", 404, "model_not_found"),
        "parameter": ("BadRequestError", 400, "unsupported_parameter"),
        "row": ("InternalServerError", 500, "engine_error"),
        "streamed": ("NotFoundError", 404, "model_not_found"),
        "window": ("BadRequestError", 400, "invalid_value"),
        "endpoint": ("BadRequestError", 400, "invalid_value"),
        "batch": ("NotFoundError", 404, None),
        "cancel": ("NotFoundError", 404, None),
        "file": ("NotFoundError", 404, None),
        "content": ("NotFoundError", 404, None),
        "upload": ("BadRequestError", 400, "invalid_value"),
        "cursor": ("BadRequestError", 400, "invalid_value"),
        "limit": ("BadRequestError", 400, "integer_above_max_value"),
        "route": ("NotFoundError", 404, None),
        "method": ("APIError", 405, "method_not_supported"),
    }
    assert all(error["requestID"] and error["type"] and error["message"] for error in seen.values())
    assert (seen["window"]["param"], seen["endpoint"]["param"]) == ("completion_window", "endpoint")

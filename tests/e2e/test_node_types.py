"""What the mesh answers, held against the types of the official Node SDK by the TypeScript compiler: nothing is coerced."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mesh import Mesh, chat_row
from npm import NODE, environment, installed

SDK = Path(__file__).parent / "node"
HEAD = """import type OpenAI from "openai";
type Loose<T> = T extends (infer U)[] ? Loose<U>[]
  : T extends object ? { [K in keyof T]: Loose<T[K]> } & { [more: string]: unknown }
  : T;
declare function fits<T>(value: Loose<T>): void;
"""
"""members that the types lack are fine, at any depth; a member that is missing or of another type isn't"""
OPTIONS = [
    "--noEmit", "--strict", "--strictNullChecks", "false", "--skipLibCheck", "--module", "nodenext",
    "--moduleResolution", "nodenext", "--target", "es2022", "--lib", "es2023,dom",
]  # fmt: skip
"""The types call `undefined` what OpenAI answers as null, as we do: null is let through."""


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with the echo engine."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo")


def answers(mesh: Mesh) -> Iterator[tuple[str, Any]]:
    """Ask for everything that has a type, in every state that is had quickly."""
    client = mesh.client
    created = mesh.create([chat_row("a"), chat_row("b", messages=[{"rolez": "user"}])], metadata={"team": "search"})
    yield "Batches.Batch", created
    completed = mesh.wait(created["id"])
    yield "Batches.Batch", completed
    yield "Batches.Batch", mesh.wait(mesh.create([chat_row("a"), chat_row("a"), {}])["id"])
    many = mesh.create([chat_row(f"c{number}") for number in range(2_000)])
    yield "Batches.Batch", client.post(f"/v1/batches/{many['id']}/cancel").json()
    yield "Batches.Batch", mesh.wait(many["id"])
    for file_id in (created["input_file_id"], completed["output_file_id"], completed["error_file_id"]):
        yield "FileObject", client.get(f"/v1/files/{file_id}").json()
    yield "FileDeleted", client.delete(f"/v1/files/{created['input_file_id']}").json()
    upload = client.post(
        "/v1/uploads", json={"filename": "a", "purpose": "user_data", "bytes": 1, "mime_type": "text/plain"}
    ).json()
    yield "Upload", upload
    part = client.post(f"/v1/uploads/{upload['id']}/parts", files={"data": ("a", b"a")}).json()
    yield "Uploads.UploadPart", part
    yield "Upload", client.post(f"/v1/uploads/{upload['id']}/complete", json={"part_ids": [part["id"]]}).json()
    yield "Model", client.get("/v1/models/echo").json()
    chat = chat_row("a", "one two", n=2)["body"]
    yield "ChatCompletion", client.post("/v1/chat/completions", json=chat).json()
    streamed = client.post("/v1/chat/completions", json=chat | {"stream": True, "stream_options": {"include_usage": True}})
    for event in streamed.text.split("\n\n")[:-2]:
        yield "ChatCompletionChunk", json.loads(event.removeprefix("data: "))
    yield "Completion", client.post("/v1/completions", json={"model": "echo", "prompt": ["one", "two"]}).json()
    yield "CreateEmbeddingResponse", client.post("/v1/embeddings", json={"model": "echo", "input": "one"}).json()


def compiled(folder: Path, lines: list[str]) -> str:
    """Check lines of TypeScript; what the compiler says."""
    (folder / "node_modules").symlink_to(installed(SDK) / "node_modules")
    (folder / "answers.ts").write_text(HEAD + "\n".join(lines), "utf-8")
    compiler = folder / "node_modules" / "typescript" / "bin" / "tsc"
    words = [str(NODE), str(compiler), *OPTIONS, "answers.ts"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=180, check=False, env=environment())
    return done.stdout + done.stderr


def test_answers_have_the_sdk_s_types(mesh: Mesh, tmp_path: Path) -> None:
    """Batches in five states, files, uploads, models, completions, chunks and embeddings are what the SDK's types say."""
    lines = [f"fits<OpenAI.{kind}>({json.dumps(value)});" for kind, value in answers(mesh)]
    assert len(lines) > 15
    batch = mesh.client.get("/v1/batches?limit=1").json()["data"][0]
    for change in ({"created_at": "1"}, {"status": "done"}, {"request_counts": {"total": 1}}, {"errors": []}, {"object": "file"}):
        lines += ["// @ts-expect-error: the compiler looks", f"fits<OpenAI.Batches.Batch>({json.dumps(batch | change)});"]
    assert compiled(tmp_path, lines) == ""

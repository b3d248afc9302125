"""The official openai client's uploads against the whole mesh, and the files that batches share."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, jsonl, until


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh whose echo engine takes its time when asked to."""
    with Mesh(haywain) as running:
        sets = ("batches.completion_windows=any", "engine.echo.slots=4", "engine.echo.ms_per_row=50")
        yield running.start("--engine", "echo", *(word for one in sets for word in ("--set", one)))


@pytest.fixture
def client(mesh: Mesh) -> Iterator[openai.OpenAI]:
    """The official client; retries off, so that each answer is seen."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{mesh.port}/v1", api_key="any", max_retries=0) as made:
        yield made


def test_a_batch_of_a_chunked_upload(mesh: Mesh, client: openai.OpenAI, tmp_path: Path) -> None:
    """upload_file_chunked makes a file of a path, cut in mid-line, and a batch runs it whole."""
    rows = [chat_row(f"row-{n}", f"text {n} é 😀") for n in range(12)]
    path = tmp_path / "requests.jsonl"
    path.write_bytes(jsonl(rows))
    md5 = hashlib.md5(path.read_bytes()).hexdigest()  # noqa: S324 - what the API takes
    upload = client.uploads.upload_file_chunked(file=path, mime_type="application/jsonl", purpose="batch", part_size=333, md5=md5)
    assert (upload.status, upload.bytes, upload.filename) == ("completed", path.stat().st_size, "requests.jsonl")
    assert upload.expires_at == upload.created_at + 3_600
    assert upload.file is not None
    assert client.files.retrieve(upload.file.id) == upload.file
    assert client.files.content(upload.file.id).read() == path.read_bytes()
    batch = client.batches.create(input_file_id=upload.file.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert_conserved(mesh.client, mesh.wait(batch.id), [row["custom_id"] for row in rows])


def test_bytes_in_memory(client: openai.OpenAI) -> None:
    """upload_file_chunked takes bytes as well, of the default part size, and nothing at all."""
    data = b"0123456789abcdef" * 100_000
    upload = client.uploads.upload_file_chunked(
        file=data, filename="a.bin", bytes=len(data), mime_type="application/octet-stream", purpose="user_data"
    )
    assert upload.file is not None
    assert client.files.content(upload.file.id).read() == data
    empty = client.uploads.upload_file_chunked(file=b"", filename="e", bytes=0, mime_type="text/plain", purpose="user_data")
    assert empty.file is not None
    assert empty.file.bytes == 0


async def test_parts_in_parallel(mesh: Mesh) -> None:
    """Parts sent at once, the last first, become the file in the order of part_ids."""
    pieces = [bytes([65 + number]) * 300_000 for number in range(12)]
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{mesh.port}/v1", api_key="any", max_retries=0) as client:
        upload = await client.uploads.create(
            bytes=sum(map(len, pieces)), filename="big.bin", mime_type="application/octet-stream", purpose="user_data"
        )
        assert (upload.status, upload.file) == ("pending", None)
        sent = [client.uploads.parts.create(upload.id, data=piece) for piece in reversed(pieces)]
        parts = list(reversed(await asyncio.gather(*sent)))
        assert {part.upload_id for part in parts} == {upload.id}
        completed = await client.uploads.complete(upload.id, part_ids=[part.id for part in parts])
        assert completed.file is not None
        assert (await client.files.content(completed.file.id)).read() == b"".join(pieces)


def test_errors_have_their_class(client: openai.OpenAI) -> None:
    """What is wrong with an upload is raised as the client's own exceptions, and a cancelled one stays cancelled."""
    upload = client.uploads.create(bytes=5, filename="a.jsonl", mime_type="text/plain", purpose="batch")
    part = client.uploads.parts.create(upload.id, data=b"{}\n")
    with pytest.raises(openai.BadRequestError, match=r"5 bytes.*3 bytes"):
        client.uploads.complete(upload.id, part_ids=[part.id])
    assert client.uploads.cancel(upload.id).status == "cancelled"
    with pytest.raises(openai.ConflictError, match="cancelled"):
        client.uploads.complete(upload.id, part_ids=[part.id])
    with pytest.raises(openai.NotFoundError):
        client.uploads.parts.create("upload_none", data=b"x")
    with pytest.raises(openai.APIStatusError, match="209715201 bytes") as large:
        client.uploads.create(bytes=209_715_201, filename="a.jsonl", mime_type="text/plain", purpose="batch")
    assert large.value.status_code == 413


def test_one_input_of_two_batches_one_of_which_expires(mesh: Mesh, client: openai.OpenAI) -> None:
    """Two batches share an input that is deleted meanwhile; one expires, and the other runs to its end."""
    rows = [chat_row(f"row-{n}") for n in range(300)]
    ids = [row["custom_id"] for row in rows]
    file = client.files.create(file=("in.jsonl", jsonl(rows)), purpose="batch")
    fields: Any = {"input_file_id": file.id, "endpoint": "/v1/chat/completions"}
    short, long = (client.batches.create(**fields, completion_window=window) for window in ("1s", "24h"))
    client.files.delete(file.id)
    expired, completed = mesh.wait(short.id), mesh.wait(long.id)
    assert (expired["status"], completed["status"]) == ("expired", "completed")
    for batch in (expired, completed):
        assert_conserved(mesh.client, batch, ids)
    blobs = mesh.data / "blobs"
    until("the input's bytes went", lambda: not any(blobs.glob(f"*/input-{file.id}")), timeout=10)


def test_uploads_outlive_kills(mesh: Mesh, client: openai.OpenAI) -> None:
    """When the Files service is killed while an upload is completed, completing it again answers its file, once."""
    patient = client.with_options(max_retries=5)
    data = b"x" * 3_000_000
    upload = client.uploads.create(bytes=len(data), filename="k.bin", mime_type="text/plain", purpose="user_data")
    parts = [client.uploads.parts.create(upload.id, data=data[at : at + 500_000]).id for at in range(0, len(data), 500_000)]
    killing = threading.Thread(target=mesh.kill, args=["files"])
    killing.start()
    first = patient.uploads.complete(upload.id, part_ids=parts)
    killing.join()
    again = patient.uploads.complete(upload.id, part_ids=parts)
    assert first.file is not None
    assert first == again
    assert patient.files.content(first.file.id).read() == data

"""More of the official openai client against the whole mesh: async, pages, raw responses, cancelling, deleting, streaming."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, jsonl, until

COUNT = 250


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with an echo engine."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo", "--set", "engine.echo.fail_containing=please fail")


@pytest.fixture
def client(mesh: Mesh) -> Iterator[openai.OpenAI]:
    """The official client; retries off, so that each answer is seen."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{mesh.port}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture
async def asynchronous(mesh: Mesh) -> AsyncIterator[openai.AsyncOpenAI]:
    """Its asynchronous twin."""
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{mesh.port}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def many(mesh: Mesh) -> list[str]:
    """The ids of 250 batches on one file, as they were answered; made by the asynchronous client, 16 at a time."""

    async def make() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{mesh.port}/v1", api_key="any", max_retries=0) as client:
            file = await client.files.create(file=("a.jsonl", jsonl([chat_row("a")])), purpose="batch")
            room = asyncio.Semaphore(16)

            async def create(n: int) -> str:
                async with room:
                    made = await client.batches.create(
                        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"n": str(n)}
                    )
                return made.id

            async with asyncio.TaskGroup() as group:
                creating = [group.create_task(create(n)) for n in range(COUNT)]
            return [one.result() for one in creating]

    return asyncio.run(make())


@pytest.mark.parametrize("limit", [1, 20, 100])
def test_pages_of_batches_made_together(client: openai.OpenAI, many: list[str], limit: int) -> None:
    """A loop over all pages sees each of 250 batches, most of them of the same second, once, whatever the pages' size."""
    seen = list(client.batches.list(limit=limit))
    assert sorted(batch.id for batch in seen) == sorted(many)
    assert [batch.created_at for batch in seen] == sorted((batch.created_at for batch in seen), reverse=True)
    assert len({batch.created_at for batch in seen}) < COUNT / 5
    assert sorted(int((batch.metadata or {})["n"]) for batch in seen) == list(range(COUNT))


async def test_pages_asynchronously(asynchronous: openai.AsyncOpenAI, many: list[str]) -> None:
    """`async for` sees the same."""
    seen = [batch.id async for batch in asynchronous.batches.list(limit=33)]
    assert sorted(seen) == sorted(many)


def test_pages_stand_still_while_batches_are_made(client: openai.OpenAI, many: list[str]) -> None:
    """Batches made while somebody turns the pages are newer: no page shifts, nothing is seen twice."""
    file_id = client.batches.retrieve(many[0]).input_file_id
    seen: list[str] = []
    extra: list[str] = []
    for batch in client.batches.list(limit=50):
        seen.append(batch.id)
        if len(seen) % 50 == 1:
            made = client.batches.create(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h")
            extra.append(made.id)
    assert len(seen) == len(set(seen))
    assert set(many) <= set(seen)
    assert not set(extra) & set(seen)
    for batch_id in extra:
        assert until("it ends", lambda batch_id=batch_id: client.batches.retrieve(batch_id).status == "completed")


def test_pages_of_files(client: openai.OpenAI) -> None:
    """Files go both ways, and by purpose."""
    made = [client.files.create(file=(f"{n}.jsonl", jsonl([chat_row("a")])), purpose="evals").id for n in range(30)]
    assert [file.id for file in client.files.list(limit=7, purpose="evals", order="asc")] == made
    assert [file.id for file in client.files.list(limit=7, purpose="evals", order="desc")] == made[::-1]
    assert {file.purpose for file in client.files.list(limit=7, purpose="evals")} == {"evals"}


async def test_main_job_asynchronously(mesh: Mesh, asynchronous: openai.AsyncOpenAI) -> None:
    """Upload, wait for processing, create, poll, content, several at a time."""

    async def one(tag: str) -> None:
        rows = [chat_row(f"{tag}-{n}", "please fail" if n == 2 else f"text {n}") for n in range(25)]
        file = await asynchronous.files.create(file=("in.jsonl", jsonl(rows)), purpose="batch")
        assert (await asynchronous.files.wait_for_processing(file.id)).status == "processed"
        batch = await asynchronous.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            await asyncio.sleep(0.05)
            batch = await asynchronous.batches.retrieve(batch.id)
        assert batch.status == "completed"
        assert batch.output_file_id is not None
        text = (await asynchronous.files.content(batch.output_file_id)).text
        assert [json.loads(line)["custom_id"] for line in text.splitlines()] == [f"{tag}-{n}" for n in range(25) if n != 2]
        ended = await asyncio.to_thread(mesh.wait, batch.id)
        await asyncio.to_thread(assert_conserved, mesh.client, ended, [row["custom_id"] for row in rows])

    async with asyncio.TaskGroup() as group:
        for tag in ("a", "b", "c"):
            group.create_task(one(tag))


async def test_chat_streamed_asynchronously(asynchronous: openai.AsyncOpenAI) -> None:
    """Eight streams at once, each with its own text."""

    async def one(n: int) -> None:
        text = f"say {n} " * 5
        parts: list[str] = []
        stream = await asynchronous.chat.completions.create(
            model="echo", messages=[{"role": "user", "content": text}], stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            parts += [choice.delta.content or "" for choice in chunk.choices]
            usage = chunk.usage
        assert text.strip() in "".join(parts)
        assert usage is not None
        assert usage.completion_tokens > 0

    async with asyncio.TaskGroup() as group:
        for n in range(8):
            group.create_task(one(n))


def test_raw_responses(client: openai.OpenAI) -> None:
    """Every answer, good or bad, has a request id of its own, and says what it is."""
    uploaded = client.files.with_raw_response.create(file=("a.jsonl", jsonl([chat_row("a")])), purpose="batch")
    file = uploaded.parse()
    listed = client.batches.with_raw_response.list(limit=1)
    content = client.files.with_raw_response.content(file.id)
    chat = client.chat.completions.with_raw_response.create(model="echo", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.NotFoundError) as missing:
        client.batches.with_raw_response.retrieve("batch_none")
    answers = [uploaded, listed, content, chat, missing.value.response]
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 404]
    kinds = ["application/json", "application/json", "application/octet-stream", "application/json", "application/json"]
    assert [answer.headers["content-type"] for answer in answers] == kinds
    assert int(content.headers["content-length"]) == file.bytes
    assert content.headers["etag"] == f'"{(file.model_extra or {})["checksum"].removeprefix("sha256:")}"'
    assert missing.value.request_id == missing.value.response.headers["x-request-id"]


def test_cancel(mesh: Mesh, client: openai.OpenAI) -> None:
    """Cancelling answers `cancelling` or, if that was quicker, the end; again it is the same; a completed one refuses."""
    rows = [chat_row(f"row-{n}") for n in range(5000)]
    batch = mesh.create(rows)
    cancelling = client.batches.cancel(batch["id"])
    assert cancelling.status in ("cancelling", "cancelled")
    assert cancelling.cancelling_at is not None
    ended = until("it is cancelled", lambda: (b := client.batches.retrieve(batch["id"])).status == "cancelled" and b)
    assert ended.cancelled_at >= ended.cancelling_at
    assert client.batches.cancel(batch["id"]) == ended
    if (ended.request_counts.total or 0) > 0:  # else it was stopped before it was validated
        assert_conserved(mesh.client, mesh.batch(batch["id"]), [row["custom_id"] for row in rows])
    done = mesh.wait(mesh.create([chat_row("a")])["id"])
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'completed'"):
        client.batches.cancel(done["id"])
    with pytest.raises(openai.NotFoundError, match="No batch found with id 'batch_none'"):
        client.batches.cancel("batch_none")


def test_delete(mesh: Mesh, client: openai.OpenAI) -> None:
    """A deleted file answers 404 for its content and is out of the list; the batch that was made of it goes on."""
    rows = [chat_row(f"row-{n}") for n in range(1000)]
    batch = mesh.create(rows)
    file_id = batch["input_file_id"]
    deleted = client.files.delete(file_id)
    assert (deleted.id, deleted.deleted, deleted.object) == (file_id, True, "file")
    with pytest.raises(openai.NotFoundError) as gone:
        client.files.content(file_id)
    assert gone.value.code == "file_deleted"
    assert file_id not in [file.id for file in client.files.list(limit=10_000)]
    ended = mesh.wait(batch["id"])
    assert ended["status"] == "completed", ended
    assert_conserved(mesh.client, ended, [row["custom_id"] for row in rows])
    client.files.delete(ended["output_file_id"])
    with pytest.raises(openai.NotFoundError):
        client.files.content(ended["output_file_id"])


def test_content_streamed_to_a_file(client: openai.OpenAI, tmp_path: Path) -> None:
    """Ten megabytes stream into a file, byte for byte."""
    content = jsonl(chat_row(f"row-{n}", "é" * 500) for n in range(3000))
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert file.bytes == len(content)
    with client.files.with_streaming_response.content(file.id) as response:
        response.stream_to_file(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    client.files.content(file.id).write_to_file(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == content


def test_lines_as_they_stream(client: openai.OpenAI) -> None:
    """A result is read line by line by a client that splits on every Unicode line end, and each line is whole."""
    file = client.files.create(
        file=("in.jsonl", jsonl(chat_row(f"row-{n}", "a\u2028b\u0085c") for n in range(50))), purpose="batch"
    )
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    ended = until("it ends", lambda: (b := client.batches.retrieve(batch.id)).status == "completed" and b)
    with client.files.with_streaming_response.content(ended.output_file_id) as response:
        lines = [json.loads(line) for line in response.iter_lines()]
    assert [line["custom_id"] for line in lines] == [f"row-{n}" for n in range(50)]
    assert "a\u2028b\u0085c" in lines[0]["response"]["body"]["choices"][0]["message"]["content"]

"""The upstream backend against a server that does everything that servers do: what becomes of rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from upstream_running import CHAT, scripted, started
from upstream_server import Request, Upstream, chat_body, reply, upstream

from haywain.engine.v1 import engine_pb2 as pb


@pytest.fixture
async def server() -> AsyncIterator[Upstream]:
    """Give a server that answers well."""
    async with upstream() as running:
        yield running


async def test_a_row_is_relayed_byte_for_byte(server: Upstream, tmp_path: Path) -> None:
    """The upstream gets the request's bytes and our key; its answer's bytes come back, with the usage in them."""
    (tmp_path / "key").write_text("secret-1\n")
    body = json.dumps(chat_body("Grüße"), ensure_ascii=False, indent=1).encode()
    scripted(server, reply(200, body))
    async with started(server.url, key_file=str(tmp_path / "key")) as running:
        result = await running.chat("hello", temperature=0.5)
    assert (result.status_code, result.body) == (200, body)
    assert result.usage == pb.Usage(input_tokens=7, output_tokens=3, cached_tokens=2)
    (request,) = server.requests
    assert request.path == CHAT
    assert request.headers["authorization"] == "Bearer secret-1"
    assert request.body == b'{"model": "m", "messages": [{"role": "user", "content": "hello"}], "temperature": 0.5}'


async def test_the_models_are_found(server: Upstream) -> None:
    """What the upstream lists is described: id, context length, when it was made, endpoints; every field is passed on."""
    async with started(server.url) as running:
        (model,) = running.models
    assert (model.model, model.context_length, model.create_time.seconds, list(model.fields)) == ("m", 4096, 5, [])
    assert list(model.endpoints) == [CHAT, "/v1/completions", "/v1/embeddings"]
    assert model.digest == "upstream:m"


async def test_settings_narrow_what_is_served(server: Upstream) -> None:
    """Models, endpoints and fields can be named; the rest is refused by validation."""
    async with started(server.url, models=["m"], endpoints=[CHAT], fields=["temperature", "stop"]) as running:
        (model,) = running.models
    assert (list(model.endpoints), list(model.fields)) == ([CHAT], ["stop", "temperature"])


async def test_our_own_field_is_refused(server: Upstream) -> None:
    """max_context_length is Haywain's; no upstream honours it, so it is refused rather than ignored."""
    async with started(server.url) as running:
        result = await running.chat(max_context_length=100)
    assert (result.status_code, result.error.code, result.error.param) == (400, "unsupported_parameter", "max_context_length")
    assert not server.requests


async def test_a_stream_is_passed_on_chunk_by_chunk(server: Upstream) -> None:
    """Chunks arrive one by one; line separators inside JSON, comments, CRLF and events cut across packets change nothing."""
    chunks = [
        b'{"choices":[{"delta":{"content":"a\xe2\x80\xa8b"}}]}',
        b'{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}',
    ]
    stream = b": hello\r\n\r\n" + b"".join(b"data: %b\r\n\r\n" % chunk for chunk in chunks) + b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(stream)

    async def answer(request: Request) -> bytes:
        whole = head + stream
        for begin in range(len(whole) - 1):
            request.writer.write(whole[begin : begin + 1])
            await request.writer.drain()
        return whole[-1:]

    server.answer = answer
    async with started(server.url) as running:
        result = await running.chat(stream=True)
        assert running.results.deltas == chunks
    assert (result.status_code, result.usage.input_tokens, result.usage.output_tokens) == (200, 4, 2)


@pytest.mark.parametrize(
    ("stream", "type_", "words"),
    [
        (b"data: {}\n\n", "text/event-stream", "without [DONE]"),
        (b"<html></html>", "text/html", "text/html"),
        (b"data: {nonsense\n\ndata: [DONE]\n\n", "text/event-stream", "not one of events with JSON"),
    ],
    ids=["cut", "html", "nonsense"],
)
async def test_a_stream_that_is_none_fails(server: Upstream, stream: bytes, type_: str, words: str) -> None:
    """A stream that is cut, isn't one, or holds no JSON ends with an error that says so, and isn't tried elsewhere."""
    scripted(server, reply(200, stream, type_))
    async with started(server.url) as running:
        result = await running.chat(stream=True)
    assert (result.status_code, result.error.code, result.retryable) == (500, "engine_error", False)
    assert words in result.error.message


async def test_a_cancelled_row_leaves_the_upstream(server: Upstream) -> None:
    """A cancel closes the request's connection, so that the upstream can stop, and the row ends as cancelled."""
    began = asyncio.Event()

    async def answer(request: Request) -> bytes:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    server.answer = answer
    async with started(server.url) as running:
        number = running.begin()
        await asyncio.wait_for(began.wait(), 10)
        running.backend.cancel([number, 99])
        result = await asyncio.wait_for(running.results.of(number), 10)
        await asyncio.wait_for(server.gone.wait(), 10)
        at_once = running.begin()
        running.backend.cancel([at_once])  # before it did anything
        second = await asyncio.wait_for(running.results.of(at_once), 10)
    assert (result.status_code, result.error.code) == (second.status_code, second.error.code) == (499, "cancelled")


# -- the row's fault --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (
            400,
            {"error": {"message": "bad n", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}},
            "invalid_value",
            "bad n",
        ),
        (
            400,
            {"object": "error", "message": "This model's maximum context length is 10 tokens", "code": 400},
            "context_length_exceeded",
            "10 tokens",
        ),
        (
            400,
            {"error": {"message": "too long", "type": "exceed_context_size_error", "code": 400}},
            "context_length_exceeded",
            "too long",
        ),
        (404, {"error": {"message": "no such model", "code": None}}, "model_not_found", "no such model"),
        (422, {"error": "Input validation error", "error_type": "validation"}, "invalid_request", "Input validation error"),
        (422, {"detail": [{"loc": ["body"], "msg": "x"}]}, "invalid_request", '"loc":["body"]'),
        (413, b"<html>too big</html>", "invalid_request", "20 bytes"),
    ],
    ids=["openai", "vllm", "llama-server", "404", "tgi", "fastapi", "html"],
)
async def test_a_refusal_is_the_rows(server: Upstream, status: int, body: Any, code: str, message: str) -> None:
    """A 4xx is the row's own error, with the upstream's words, in whichever envelope they came; it isn't tried again."""
    scripted(server, reply(status, body))
    async with started(server.url) as running:
        result = await running.chat()
        after = await running.chat()
    assert (result.status_code, result.error.code, result.retryable) == (status, code, False)
    assert message in result.error.message
    assert json.loads(result.body)["error"]["message"] == result.error.message
    assert (after.status_code, len(server.requests)) == (status, 2)


@pytest.mark.parametrize("content", [b"<html>hello</html>", b"[1]", b"", b"\xff"], ids=["html", "list", "empty", "bytes"])
async def test_an_answer_that_is_no_json_object_fails_the_row(server: Upstream, content: bytes) -> None:
    """A 200 with HTML, with another kind of JSON or with nothing is an error that tells what came."""
    scripted(server, reply(200, content, "text/html"))
    async with started(server.url) as running:
        result = await running.chat()
    assert (result.status_code, result.error.code, result.retryable) == (500, "engine_error", False)
    assert f"text/html ({len(content)} bytes)" in result.error.message


async def test_json_by_another_name_is_an_answer(server: Upstream) -> None:
    """What is a JSON object counts as one, whatever its content type says."""
    scripted(server, reply(200, chat_body(), "text/plain"))
    async with started(server.url) as running:
        assert (await running.chat()).status_code == 200


async def test_a_redirect_is_an_error_that_says_where_to(server: Upstream) -> None:
    """Rows aren't sent to where the upstream points, and the error names it."""
    scripted(server, reply(307, b"", location="https://elsewhere/v1/chat/completions"))
    async with started(server.url) as running:
        result = await running.chat()
    assert (result.status_code, result.error.code, result.retryable) == (500, "engine_error", False)
    assert "answered 307" in result.error.message
    assert "it is at 'https://elsewhere/v1/chat/completions'" in result.error.message


async def test_an_answer_that_cannot_be_unpacked_fails_the_row(server: Upstream) -> None:
    """What says that it is packed and isn't is an error of this row."""
    scripted(server, reply(200, b"not gzip", content_encoding="gzip"))
    async with started(server.url) as running:
        result = await running.chat()
    assert (result.error.code, result.retryable) == ("engine_error", False)
    assert "can't be unpacked" in result.error.message


# -- sizes ------------------------------------------------------------------------------------------------------------------------


def _chunked(*parts: bytes, kind: str = "application/json") -> bytes:
    """Write a reply that doesn't say how long it is."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % kind.encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_a_large_answer_fails_its_row_alone(server: Upstream, chunked: bool) -> None:
    """An answer of more than `answer_bytes` isn't read: the row fails, isn't tried again, and the next one is answered."""
    large = json.dumps(chat_body("x" * 5_000)).encode()
    scripted(server, _chunked(large[:1_000], large[1_000:]) if chunked else reply(200, large), reply(200, chat_body()))
    async with started(server.url, answer_bytes=4_096) as running:
        result = await running.chat()
        assert (result.status_code, result.error.code, result.retryable) == (500, "engine_error", False)
        assert "larger than 4096 bytes (engine.upstream.answer_bytes)" in result.error.message
        assert (await running.chat()).status_code == 200


@pytest.mark.parametrize(
    "parts",
    [
        [b"data: " + b"x" * 1_500, b"x" * 1_500, b"x" * 1_500 + b"\n\n"],
        [b": comment " + b"x" * 5_000],
        [b"data: xxx\n" * 250] * 8,
    ],
    ids=["line", "comment", "lines"],
)
async def test_a_large_event_ends_its_stream(server: Upstream, parts: list[bytes]) -> None:
    """A line, or an event of many lines, beyond `answer_bytes` ends the stream; as many small events as there may be don't."""
    chunk = b'{"choices":[{"delta":{"content":"a"}}]}'
    small = [b"data: %b\n\n" % chunk] * 200
    kind = "text/event-stream"
    scripted(server, _chunked(*small, b"data: [DONE]\n\n", kind=kind), _chunked(*small[:1], *parts, kind=kind))
    async with started(server.url, answer_bytes=4_096) as running:
        assert (await running.chat(stream=True)).status_code == 200
        assert len(running.results.deltas) == 200
        result = await running.chat(stream=True)
    assert (result.error.code, result.retryable) == ("engine_error", False)
    assert "larger than 4096 bytes" in result.error.message


async def test_a_large_error_is_shortened(server: Upstream) -> None:
    """Of an error's body the beginning is read, however large it is."""
    scripted(server, reply(400, b"x" * 300_000, "text/html"))
    async with started(server.url, answer_bytes=4_096) as running:
        result = await running.chat()
    assert (result.status_code, result.error.code) == (400, "invalid_request")
    assert "65536 bytes" in result.error.message


async def test_a_500_is_a_try_of_the_row(server: Upstream) -> None:
    """A 500 may be the row's doing or not: the scheduler tries it again, a bounded number of times."""
    scripted(server, reply(500, {"error": {"message": "boom"}}))
    async with started(server.url) as running:
        result = await running.chat()
    assert (result.status_code, result.error.code, result.retryable) == (500, "engine_error", True)
    assert "boom" in result.error.message

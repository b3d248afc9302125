"""An upstream that can't be used: one clear line at start."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from mesh import free_port
from upstream_running import started
from upstream_server import Request, Upstream, reply, upstream

from engine.upstream import connection
from haywain.errors import HaywainError, SettingsError, Unavailable
from haywain.openai import ENDPOINTS


@pytest.fixture
async def server() -> AsyncIterator[Upstream]:
    """Give a server that answers well."""
    async with upstream() as running:
        yield running


async def _refused(url: str, **settings: Any) -> HaywainError:
    with pytest.raises(HaywainError) as caught:
        async with started(url, start_seconds=0.2, **settings):
            pass
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": "ftp://x"}, "expected http:// or https://"),
        ({"url": "127.0.0.1:8000"}, "expected http:// or https://"),
        ({"url": "http://x:port"}, "engine.upstream.url"),
        ({"slots": 0}, "engine.upstream.slots is 0"),
        ({"endpoints": ["/v1/chat"]}, "'/v1/chat' is none of"),
        ({"answer_bytes": 10}, "engine.upstream.answer_bytes is 10, expected 1024 to 50331648"),
        ({"key_file": "/nowhere/key"}, "engine.upstream.key_file"),
        ({"ca_file": "/nowhere/ca"}, "engine.upstream.ca_file"),
    ],
)
async def test_a_setting_that_cannot_work_is_named(given: dict[str, Any], words: str) -> None:
    """Each setting that can't be used ends the start in one line that names it."""
    error = await _refused(**({"url": "http://127.0.0.1:1/v1"} | given))
    assert isinstance(error, SettingsError)
    assert words in error.message


@pytest.mark.parametrize("address", ["ftp://me:secret@x", "http://me:secret@127.0.0.1:1/v1", "{server}"])
async def test_a_password_in_the_address_is_told_to_nobody(server: Upstream, address: str) -> None:
    """What is wrong with an address is told without the password in it: logs have it, and errors of rows."""

    async def models(request: Request) -> bytes:
        return reply(500, {})

    server.models = models
    url = address.replace("{server}", server.url.replace("://", "://me:secret@"))
    assert "secret" not in (await _refused(url)).message


async def test_an_empty_key_is_refused(tmp_path: Path) -> None:
    """A key file without a key says so, and not with the key's bytes."""
    (tmp_path / "key").write_text("\n")
    assert "one line of printable ASCII" in (await _refused("http://127.0.0.1:1/v1", key_file=str(tmp_path / "key"))).message


@pytest.mark.parametrize(
    ("status", "body", "type_", "words"),
    [
        (401, b"{}", "application/json", "answered 401: no key was sent (engine.upstream.key_file)"),
        (403, b"{}", "application/json", "answered 403: no key was sent (engine.upstream.key_file)"),
        (404, b"{}", "application/json", "does the address end in /v1?"),
        (307, b"", "text/html", "answered 307 to /v1/models: it is at 'another address'"),
        (200, b"<html></html>", "text/html", "answered text/html (13 bytes), expected a list of models as JSON"),
        (200, b"", "application/json", "answered application/json (0 bytes), expected a list of models as JSON"),
        (200, b'{"data":', "application/json", "answered application/json (8 bytes), expected a list of models as JSON"),
        (200, b"\xff\xfe", "application/octet-stream", "expected a list of models as JSON"),
        (200, b'{"models":[]}', "application/json", "expected a list of models as JSON"),
        (200, b'{"data":[{"id":7}]}', "application/json", "expected a list of models as JSON"),
        (200, b" " * (16 * 2**20 + 1), "application/json", "answered more than 16 MiB"),
    ],
    ids=["no key", "wrong key", "404", "redirect", "html", "empty", "half", "bytes", "other json", "numbers", "large"],
)
async def test_a_wrong_address_is_told(server: Upstream, status: int, body: bytes, type_: str, words: str) -> None:
    """A server that isn't one of OpenAI's kind, or doesn't know us, is told in one line and not asked again."""

    async def models(request: Request) -> bytes:
        return reply(status, body, type_)

    server.models = models
    error = await _refused(server.url)
    assert isinstance(error, SettingsError)
    assert words in error.message
    assert server.probes == 1


async def test_a_model_that_is_not_there_is_told_with_those_that_are(server: Upstream) -> None:
    """The line names the model that is missing, and the ones that could be meant."""
    assert "has no model nope (engine.upstream.models); it has: m" in (await _refused(server.url, models=["nope"])).message


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_an_upstream_that_is_not_ready_is_waited_for(server: Upstream, status: int) -> None:
    """A server that starts up is asked again; when it stays away that is Unavailable, which a later start may cure."""
    good = server.models

    async def models(request: Request) -> bytes:
        return reply(status, {}) if server.probes < 3 else await good(request)

    server.models = models
    async with started(server.url) as running:
        assert [model.model for model in running.models] == ["m"]
    server.probes = -1_000
    assert isinstance(await _refused(server.url), Unavailable)


@pytest.mark.parametrize(
    ("statuses", "served"),
    [
        ((400, 400, 501), ["/v1/chat/completions", "/v1/completions"]),
        ((501, 501, 400), ["/v1/embeddings"]),
        ((422, 405, 404), ["/v1/chat/completions"]),
        ((500, 403, 404), ["/v1/chat/completions"]),
        ((429, 503, 400), ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]),
    ],
)
async def test_what_it_serves_is_asked(server: Upstream, statuses: tuple[int, ...], served: list[str]) -> None:
    """Endpoints that the upstream doesn't have, or not for our key, aren't described; nobody could run what they are asked."""

    async def half(request: Request) -> bytes:
        return reply(statuses[ENDPOINTS.index(request.path)], {})

    server.half = half
    async with started(server.url) as running:
        assert [list(model.endpoints) for model in running.models] == [served]
    assert sorted(server.halves) == sorted(ENDPOINTS)
    assert not server.requests


async def test_what_settings_say_is_not_asked(server: Upstream) -> None:
    """Where the endpoints are named, the upstream gets no such request."""
    async with started(server.url, endpoints=["/v1/embeddings"]) as running:
        assert list(running.models[0].endpoints) == ["/v1/embeddings"]
    assert not server.halves


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (404, "has no endpoint that is known here: it answers /v1/chat/completions 404, /v1/completions 404, /v1/embeddings 404"),
        (401, "refuses every endpoint (/v1/chat/completions 401, /v1/completions 401, /v1/embeddings 401): no key was sent"),
    ],
)
async def test_an_upstream_that_serves_nothing_is_told(server: Upstream, status: int, words: str) -> None:
    """One whose models everybody may list, and that has no endpoint or refuses the key, ends the start in one line."""

    async def half(request: Request) -> bytes:
        return reply(status, {})

    server.half = half
    error = await _refused(server.url)
    assert isinstance(error, SettingsError)
    assert words in error.message


async def test_who_says_nothing_to_that_may_have_it(server: Upstream) -> None:
    """A connection that breaks says nothing about an endpoint: it is described, and rows will tell."""

    async def half(request: Request) -> None:
        return None

    server.half = half
    async with started(server.url) as running:
        assert len(running.models[0].endpoints) == 3


async def test_a_server_that_never_answers_is_told(server: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes the connection and says nothing is Unavailable after a bounded time, and no start hangs."""
    monkeypatch.setattr(connection, "_CONNECT_SECONDS", 0.2)

    async def hang(request: Request) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    server.models = hang
    error = await _refused(server.url)
    assert isinstance(error, Unavailable)
    assert "doesn't answer within 0.2 s" in error.message


async def test_a_server_that_never_ends_its_answer_is_told(server: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of models that comes byte by byte, without an end, is Unavailable after a bounded time, too."""
    monkeypatch.setattr(connection, "_LIST_SECONDS", 0.3)

    async def drip(request: Request) -> bytes:
        request.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n")
        while True:
            request.writer.write(b" ")
            await asyncio.sleep(0.02)

    server.models = drip
    error = await _refused(server.url)
    assert isinstance(error, Unavailable)
    assert "lists no models within 0.3 s" in error.message


async def test_nobody_there_is_unavailable() -> None:
    """A port where nobody listens is named, and may be cured by a later start."""
    url = f"http://127.0.0.1:{free_port()}/v1"
    error = await _refused(url)
    assert isinstance(error, Unavailable)
    assert url in error.message


async def test_tls_is_checked(tmp_path: Path) -> None:
    """A named authority is trusted, an unknown one refused in one line; so are http:// to TLS and https:// to a server without."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with upstream(context) as server:
        async with started(server.url, ca_file=str(tmp_path / "ca.pem")) as running:
            assert (await running.chat()).status_code == 200
        unknown = await _refused(server.url)
        plain = await _refused(server.url.replace("https", "http"))
    async with upstream() as server:
        none = await _refused(server.url.replace("http", "https"))
        async with upstream(context) as other:
            foreign = await _refused(other.url.replace("127.0.0.1", "localhost"), ca_file=str(tmp_path / "ca.pem"))
    assert all(isinstance(error, SettingsError) for error in (unknown, plain, none, foreign))
    assert "certificate isn't trusted" in unknown.message
    assert "CERTIFICATE_VERIFY_FAILED" in unknown.message
    assert "speaks TLS; write https://" in plain.message
    assert "TLS failed" in none.message
    assert "write http://" in none.message
    assert "certificate isn't trusted" in foreign.message
    assert "localhost" in foreign.message

"""An upstream that is busy, or away, or dies under a row."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from upstream_running import scripted, started
from upstream_server import Request, Upstream, chat_body, reply, upstream

from haywain.engine.v1 import engine_pb2 as pb


@pytest.fixture
async def server() -> AsyncIterator[Upstream]:
    """Give a server that answers well."""
    async with upstream() as running:
        yield running


@pytest.mark.parametrize("status", [408, 425, 429, 503, 529])
async def test_busy_is_not_the_rows_fault(server: Upstream, status: int) -> None:
    """A busy upstream gets the row again a little later, and fewer requests at a time."""
    scripted(server, reply(status, {"error": {"message": "slow down"}}), reply(200, chat_body()))
    async with started(server.url) as running:
        places = running.backend._places.limit
        result = await running.chat()
        assert running.backend._places.limit < places
    assert (result.status_code, len(server.requests)) == (200, 2)


async def test_retry_after_is_honoured(server: Upstream) -> None:
    """The row comes again no sooner than the upstream asked for."""
    times: list[float] = []

    async def answer(request: Request) -> bytes:
        times.append(time.monotonic())
        return reply(200, chat_body()) if len(times) > 1 else reply(429, {}, retry_after="1")

    server.answer = answer
    async with started(server.url) as running:
        assert (await running.chat()).status_code == 200
    assert times[1] - times[0] >= 1


async def test_who_is_busy_for_too_long_gives_the_row_back(server: Upstream) -> None:
    """After `hold_seconds` the row goes back as never run: no try is counted; a Retry-After beyond that isn't waited for."""
    scripted(server, reply(429, {"error": {"message": "later"}}, retry_after="100"))
    async with started(server.url) as running:
        result = await running.chat()
    assert (result.status_code, result.error.code, result.retryable) == (503, "engine_unavailable", True)
    assert "429: later" in result.error.message
    assert len(server.requests) == 1


async def test_a_synchronous_request_is_told_soon(server: Upstream) -> None:
    """Someone who waits is told within seconds that the upstream is busy, whatever `hold_seconds` is."""
    scripted(server, reply(503, {}, retry_after="3"))
    async with started(server.url, hold_seconds=1_000) as running:
        result = await running.chat(lane=pb.LANE_INTERACTIVE)
    assert (result.status_code, result.retryable) == (503, True)


async def test_an_upstream_that_restarts_costs_no_row(server: Upstream) -> None:
    """Rows at an upstream that dies wait until it is back, by a probe and not by their own, and are answered then."""
    held = asyncio.Event()

    async def hang(request: Request) -> bytes:
        held.set()
        await asyncio.Event().wait()
        raise AssertionError

    good, server.answer = server.answer, hang
    async with started(server.url) as running:
        first = running.begin()
        await asyncio.wait_for(held.wait(), 10)
        await server.die()
        later = [running.begin(f"row {number}") for number in range(8)]
        async with asyncio.timeout(10):
            while not running.backend._presence.reason:  # noqa: ASYNC110 - the backend has no event for it
                await asyncio.sleep(0.01)
        seen, server.answer = len(server.requests), good
        await server.listen()
        results = [await asyncio.wait_for(running.results.of(number), 20) for number in (first, *later)]
        assert not running.backend._presence.reason
    assert [result.status_code for result in results] == [200] * 9
    assert len(server.requests) == seen + 9
    assert server.probes >= 2


async def test_a_row_that_kills_the_upstream_is_found(server: Upstream) -> None:
    """A request that the upstream dropped its connection under twice goes back as a try that failed: it isn't sent for ever."""
    scripted(server, None)
    async with started(server.url) as running:
        result = await running.chat()
    assert (result.status_code, result.error.code, result.retryable) == (500, "engine_error", True)
    assert len(server.requests) == 2


async def test_a_gateway_before_a_dead_upstream_is_no_reason_to_send_more(server: Upstream) -> None:
    """After a 502 nothing is sent until GET /models answers; rows that come meanwhile go back uncounted."""

    async def bad_gateway(request: Request) -> bytes:
        return reply(502, b"<html>502</html>", "text/html")

    good_models, good = server.models, server.answer
    server.answer = bad_gateway
    async with started(server.url, hold_seconds=1.5) as running:
        server.models = bad_gateway
        first = await running.chat()
        second = await running.chat()
        assert (first.error.code, second.error.code) == ("engine_error", "engine_unavailable")
        assert len(server.requests) == 1
        server.models, server.answer = good_models, good
        assert (await running.chat()).status_code == 200


async def test_a_refused_key_stops_the_sending(server: Upstream) -> None:
    """A key that is refused while rows run isn't the rows' fault: they go back uncounted, and only the probe asks on."""
    refused = reply(401, {"error": {"message": "bad key"}})
    scripted(server, refused)

    async def models(request: Request) -> bytes:
        return refused

    async with started(server.url, hold_seconds=1) as running:
        server.models = models
        result = await running.chat()
    assert (result.error.code, result.retryable, len(server.requests)) == ("engine_unavailable", True, 1)


async def test_an_upstream_that_only_lists_its_models_is_away_once(server: Upstream) -> None:
    """However often rows are refused while GET /models answers, the log has one line; and one more when a row is answered."""
    refused = reply(402, {"error": {"message": "pay first"}})
    scripted(server, refused, refused, refused, reply(200, chat_body()))
    with capture_logs() as said:
        async with started(server.url) as running:
            assert (await running.chat()).status_code == 200
    assert [line["event"] for line in said] == ["upstream.found", "upstream.away", "upstream.back"]


async def test_a_silent_upstream_times_out(server: Upstream) -> None:
    """A request that gets nothing for `timeout_seconds` ends as a try that failed; the message names the setting."""

    async def hang(request: Request) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    server.answer = hang
    async with started(server.url, timeout_seconds=0.2) as running:
        result = await running.chat()
    assert (result.error.code, result.retryable) == ("engine_error", True)
    assert "0.2 s (engine.upstream.timeout_seconds)" in result.error.message


async def test_a_frozen_upstream_is_away_and_goes_on(server: Upstream) -> None:
    """A process that is stopped takes connections and answers nothing: what waits goes back, and what it has is answered later."""
    program = Path(__file__).parent.parent / "upstream_server.py"
    frozen = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=asyncio.subprocess.PIPE)
    assert frozen.stdout is not None
    try:
        url = (await asyncio.wait_for(frozen.stdout.readline(), 60)).decode().strip()
        async with started(url, slots=1, hold_seconds=1.0, probe_seconds=2.0) as running:
            assert (await running.chat("before")).status_code == 200
            frozen.send_signal(signal.SIGSTOP)
            held, waits = running.begin("held"), running.begin("waits for its place")
            async with asyncio.timeout(60):
                while not running.backend._presence.reason:  # noqa: ASYNC110 - the backend has no event for it
                    await asyncio.sleep(0.01)
            assert "said nothing for 2 s" in running.backend._presence.reason
            for result in (await asyncio.wait_for(running.results.of(waits), 20), await running.chat("refused")):
                assert (result.error.code, result.retryable) == ("engine_unavailable", True)
            assert not running.results.of(held).done()
            frozen.send_signal(signal.SIGCONT)
            assert (await asyncio.wait_for(running.results.of(held), 60)).status_code == 200
            async with asyncio.timeout(60):
                while (await running.chat("after")).status_code != 200:
                    continue
    finally:
        frozen.kill()
        await frozen.wait()


async def test_an_upstream_that_thinks_for_long_is_not_away(server: Upstream) -> None:
    """While a row takes its time and the models are listed, or anything is answered at all, nothing is away."""
    go = asyncio.Event()
    looked = asyncio.Event()

    async def slowly(request: Request) -> bytes:
        await go.wait()
        return reply(200, chat_body())

    async def broken(request: Request) -> bytes:
        looked.set()
        return reply(500, {})

    server.answer = slowly
    async with started(server.url, probe_seconds=4.0) as running:
        server.models = broken
        number = running.begin()
        await asyncio.wait_for(looked.wait(), 30)
        go.set()
        assert (await asyncio.wait_for(running.results.of(number), 20)).status_code == 200
        assert not running.backend._presence.reason


async def test_slow_answers_make_fewer_requests(server: Upstream) -> None:
    """With `latency_seconds`, an answer that took longer takes places away."""

    async def slowly(request: Request) -> bytes:
        await asyncio.sleep(0.05)
        return reply(200, chat_body())

    server.answer = slowly
    async with started(server.url, latency_seconds=0.01) as running:
        assert (await running.chat()).status_code == 200
        assert running.backend._places.limit < 16

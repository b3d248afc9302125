"""Engines that send rubbish, or refuse without end: what they do to a row is told in its line, and to no other row."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from scheduler_mesh import EchoEngine, answer, eventually, lines_of, mesh, quick, with_engine

from haywain import rpc
from haywain.engine.v1 import engine_pb2
from haywain.errors import InvalidRequest
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings

Result = engine_pb2.SequenceResult
RUBBISH: list[dict[str, Any]] = [
    {"status_code": 200, "body": b""},
    {"status_code": 200, "body": b"\xff\xfe not JSON"},
    {"status_code": 200, "body": b'{"half":'},
    {"status_code": 200, "body": b"[1, 2]"},
    {"status_code": 200, "body": b'{"a":1}\n{"b":2}'},
    {"status_code": 200, "body": b"[" * 100_000},
    {"status_code": 0},
    {"status_code": -7, "body": b"{}"},
    {"status_code": 302, "body": b"<html>"},
    {"status_code": 2**31 - 1},
    {"status_code": 500, "error": {"code": 'quote"\n\\', "message": "line\nfeed \u2028 \U0001f4a5"}},
    {"status_code": 400, "body": b'{"error":\xff}', "error": {"code": "x" * 10_000}},
]
GOOD: list[dict[str, Any]] = [
    {"status_code": 200, "body": b'{\n "a": "\xc3\xa9\xe2\x80\xa8"\r\n}'},
    {"status_code": 200, "body": b"{}", "queue_ms": -5, "run_ms": 2**31 - 1},
    {"status_code": 200, "body": b"{}", "usage": {"input_tokens": -1, "output_tokens": 2**31 - 1}},
]


async def test_rubbish_is_one_row_s_error(settings: Settings) -> None:
    """Whatever an engine calls an answer: rows with an object are good, each other one is an error line, and the stream goes on."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running, slots=32)
        sends = [*RUBBISH, *GOOD]

        def respond(sequence: engine_pb2.Sequence) -> Result:
            number = int(sequence.request.split(b"row ")[1].split(b'"')[0])
            return Result(sequence_id=sequence.sequence_id, **sends[number]) if number < len(sends) else answer(sequence)

        engine.respond = respond
        batch_id = await running.submit(lines_of(len(sends) + 5))
        await running.ended(batch_id)
        output, failed = await running.sealed(batch_id)
        assert [line["custom_id"] for line in failed] == [f"c{n}" for n in range(len(RUBBISH))]
        assert all(400 <= line["response"]["status_code"] <= 599 and line["error"]["code"] for line in failed)
        assert len(output) == len(GOOD) + 5
        assert engine.streams == 1


async def test_a_stream_of_no_messages_is_broken_off(settings: Settings) -> None:
    """An engine whose stream can't be read is reported and dialled again; its rows run elsewhere."""
    async with mesh(quick(settings)) as running:
        dialled = []

        async def run(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            dialled.append(context)
            yield engine_pb2.RunResponse(credits=8).SerializeToString()
            async for _ in requests:
                yield b"\xff" * 40

        handler = grpc.stream_stream_rpc_method_handler(run)  # bytes as they are
        server = grpc.aio.server(options=rpc.OPTIONS)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("haywain.engine.v1.EngineService", {"Run": handler})])
        good = await with_engine(running)
        address = f"unix:{settings.data}/run/liar.sock"
        server.add_insecure_port(address)
        await server.start()
        liar = engine_pb2.Engine()
        liar.CopyFrom(good.description)
        liar.engine_id, liar.address = "liar", address
        await rpc.call(running.stub.RegisterEngine, pb.RegisterEngineRequest(engine=liar))
        good.respond = lambda sequence: None
        batch_id = await running.submit(lines_of(30))
        await eventually(lambda: len(dialled), lambda times: times > 1)
        good.respond = answer
        good.release()
        progress = await running.ended(batch_id)
        assert progress.counts.completed == 30
        await server.stop(0)


class Ending(EchoEngine):
    """An engine whose first streams end soon, by an error if there is one."""

    error: Exception | None = None
    ending = 3

    async def Run(self, requests: AsyncIterator[engine_pb2.RunRequest], context: Any) -> AsyncIterator[engine_pb2.RunResponse]:
        """Grant a credit and end, or do as others do."""
        async for response in super().Run(requests, context):
            yield response
            if self.streams <= self.ending:
                if self.error is not None:
                    raise self.error
                return


@pytest.mark.parametrize("error", [None, ValueError("a bug"), InvalidRequest("no credit")], ids=["ended", "failed", "refused"])
async def test_a_living_engine_is_dialled_again(settings: Settings, error: Exception | None) -> None:
    """A stream that ends, in order or not, while its engine goes on beating is opened again, as often as it ends."""
    async with mesh(quick(settings)) as running:
        engine = Ending(settings.data)
        engine.error = error
        await engine.start(running.stub)
        running.engines.append(engine)
        batch_id = await running.submit(lines_of(20))
        progress = await running.ended(batch_id)
        assert progress.counts.completed == 20
        assert engine.streams == 4


async def test_tries_are_bounded_and_spread(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that engines refuse as retryable is tried as often as is set, after longer and longer pauses with jitter, and fails."""
    jitter: list[float] = []
    uniform = random.uniform
    monkeypatch.setattr("services.scheduler.returns.random.uniform", lambda a, b: jitter.append(uniform(a, b)) or jitter[-1])
    async with mesh(quick(settings, max_attempts=4)) as running:
        engine = await with_engine(running)
        times: dict[str, list[float]] = {}
        clock = asyncio.get_running_loop().time

        def respond(sequence: engine_pb2.Sequence) -> Result:
            times.setdefault(sequence.request.decode(), []).append(clock())
            error = engine_pb2.SequenceError(code="overloaded", message="busy")
            return Result(sequence_id=sequence.sequence_id, status_code=503, retryable=True, error=error)

        engine.respond = respond
        batch_id = await running.submit(lines_of(3))
        await running.ended(batch_id)
        output, failed = await running.sealed(batch_id)
        assert output == []
        assert Counter(line["error"]["code"] for line in failed) == {"engine_error": 3}
        assert [len(tries) for tries in times.values()] == [4, 4, 4]
        for first, second, third, fourth in times.values():
            assert second - first >= 0.1
            assert third - second >= 0.2
            assert fourth - third >= 0.4
        rows = [one for one in jitter if 0.5 <= one <= 1.5]
        assert len(set(rows)) >= 9


async def test_an_engine_that_is_always_away_is_asked_less_and_less(settings: Settings) -> None:
    """One that gives rows back at once, uncounted, because what it wraps is away, gets them after longer and longer pauses."""
    async with mesh(quick(settings, max_attempts=2)) as running:
        engine = await with_engine(running)
        times: list[float] = []

        def respond(sequence: engine_pb2.Sequence) -> Result:
            times.append(asyncio.get_running_loop().time())
            if len(times) > 4:
                return answer(sequence)
            error = engine_pb2.SequenceError(code="engine_unavailable", message="away")
            return Result(sequence_id=sequence.sequence_id, status_code=503, retryable=True, error=error)

        engine.respond = respond
        assert (await running.ended(await running.submit(lines_of(1)))).counts.completed == 1
        pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
        assert all(pause >= least for pause, least in zip(pauses, (0.1, 0.2, 0.4, 0.8), strict=True))


async def test_a_timeout_of_many_rows_frees_their_slots(settings: Settings) -> None:
    """Rows that hang are given up, in however many rounds, and no more rows are at the engine than it has slots."""
    async with mesh(quick(settings, row_timeout_seconds=0.2)) as running:
        engine = await with_engine(running, slots=4)
        engine.respond = lambda sequence: None if b"row 1" in sequence.request else answer(sequence)
        batch_id = await running.submit(lines_of(20))
        async with asyncio.timeout(20):
            await running.ended(batch_id)
        _, failed = await running.sealed(batch_id)
        assert {line["custom_id"] for line in failed} == {"c1", *(f"c{n}" for n in range(10, 20))}
        assert {line["error"]["code"] for line in failed} == {"row_timeout"}
        assert engine.most <= 4
        with contextlib.suppress(TimeoutError):
            await eventually(lambda: running.scheduler.dispatcher.links.active, lambda active: active == 0)
        assert running.scheduler.dispatcher.links.active == 0

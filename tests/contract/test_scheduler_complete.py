"""Interactive requests through the scheduler."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from scheduler_mesh import CHAT, EchoEngine, answer, eventually, lines_of, mesh, quick

from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings


def request(content: str = "hello", *, model: str = "echo", stream: bool = False) -> pb.CompleteRequest:
    """Make a request."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": content}]}).encode()
    return pb.CompleteRequest(tenant="default", endpoint=CHAT, model=model, request=body, stream=stream)


async def test_a_request_is_answered(settings: Settings) -> None:
    """The engine's answer comes back as it is, in the interactive lane."""
    async with mesh(quick(settings)) as running:
        engine = EchoEngine(settings.data)
        await engine.start(running.stub)
        running.engines.append(engine)
        await eventually(lambda: running.scheduler.engines.entries()[0].state, lambda state: state == 2)
        [event] = [event async for event in rpc.stream(running.stub.Complete, request())]
        assert json.loads(event.result.body)["choices"][0]["message"]["content"] == "hello"
        assert engine.sequences[0].lane == engine_pb2.LANE_INTERACTIVE


async def test_chunks_are_streamed_before_the_result(settings: Settings) -> None:
    """Chunks arrive in order, then the result, and the stream ends."""
    async with mesh(quick(settings)) as running:
        engine = EchoEngine(settings.data)
        engine.respond = lambda _: None
        await engine.start(running.stub)
        running.engines.append(engine)
        await eventually(lambda: running.scheduler.engines.entries()[0].state, lambda state: state == 2)
        events = rpc.stream(running.stub.Complete, request(stream=True))
        first = running.loop.create_task(anext(events))
        await eventually(lambda: engine.held, bool)
        [sequence] = engine.held.values()
        assert sequence.stream
        for body in (b'{"n":1}', b'{"n":2}'):
            delta = engine_pb2.SequenceDelta(sequence_id=sequence.sequence_id, body=body)
            engine.out.put_nowait(engine_pb2.RunResponse(deltas=[delta]))
        assert (await first).delta.body == b'{"n":1}'
        engine.release()
        rest = [event async for event in events]
        assert [event.WhichOneof("event") for event in rest] == ["delta", "result"]


async def test_a_caller_that_leaves_frees_its_slot(settings: Settings) -> None:
    """When the caller goes away the sequence is cancelled at the engine."""
    async with mesh(quick(settings)) as running:
        engine = EchoEngine(settings.data)
        engine.respond = lambda _: None
        await engine.start(running.stub)
        running.engines.append(engine)
        await eventually(lambda: running.scheduler.engines.entries()[0].state, lambda state: state == 2)
        events = rpc.stream(running.stub.Complete, request(stream=True))
        waiting = running.loop.create_task(anext(events))
        await eventually(lambda: engine.held, bool)
        waiting.cancel()
        await eventually(lambda: engine.cancelled, bool)
        await eventually(lambda: running.scheduler.dispatcher.links.active, lambda active: active == 0)


async def test_the_next_free_slot_is_the_callers(settings: Settings) -> None:
    """A request takes the first slot that falls free, before any row of the batch that filled all of them."""
    async with mesh(quick(settings)) as running:
        engine = EchoEngine(settings.data, slots=2)
        engine.respond = lambda _: None
        await engine.start(running.stub)
        running.engines.append(engine)
        await running.submit(lines_of(10))
        await eventually(lambda: len(engine.held), lambda held: held == 2)
        events = rpc.stream(running.stub.Complete, request())
        waiting = running.loop.create_task(anext(events))
        await eventually(running.scheduler.dispatcher.calls.wanted, bool)
        engine.release()
        await eventually(lambda: len(engine.sequences), lambda sent: sent == 4)
        assert engine.sequences[2].lane == engine_pb2.LANE_INTERACTIVE
        engine.release()
        assert (await waiting).HasField("result")
        await events.aclose()


async def test_models_that_are_not_served_are_refused(settings: Settings) -> None:
    """An unknown model is ModelMissing, an endpoint that the model lacks InvalidRequest, a lost engine Unavailable."""
    async with mesh(quick(settings)) as running:
        with pytest.raises(errors.ModelMissing):
            await anext(rpc.stream(running.stub.Complete, request()))
        engine = EchoEngine(settings.data)
        engine.respond = lambda _: None
        await engine.start(running.stub)
        await eventually(lambda: running.scheduler.engines.entries()[0].state, lambda state: state == 2)
        other = request()
        other.endpoint = "/v1/embeddings"
        with pytest.raises(errors.InvalidRequest):
            await anext(rpc.stream(running.stub.Complete, other))
        waiting = running.loop.create_task(anext(rpc.stream(running.stub.Complete, request())))
        await eventually(lambda: engine.held, bool)
        await engine.kill()
        with pytest.raises(errors.Unavailable):
            await waiting
        with pytest.raises(errors.Unavailable):
            await anext(rpc.stream(running.stub.Complete, request()))


async def test_a_retryable_refusal_is_tried_again(settings: Settings) -> None:
    """A request that an engine refuses as its own fault is tried again, a bounded number of times."""
    async with mesh(quick(settings, max_attempts=3)) as running:
        engine = EchoEngine(settings.data)
        error = engine_pb2.SequenceError(code="overloaded", message="busy")
        refuse = True

        def respond(sequence: engine_pb2.Sequence) -> engine_pb2.SequenceResult:
            if refuse or sequence.attempt < 3:
                return engine_pb2.SequenceResult(sequence_id=sequence.sequence_id, status_code=503, error=error, retryable=True)
            return answer(sequence)

        engine.respond = respond
        await engine.start(running.stub)
        running.engines.append(engine)
        await eventually(lambda: running.scheduler.engines.entries()[0].state, lambda state: state == 2)
        [event] = [event async for event in rpc.stream(running.stub.Complete, request())]
        assert (event.result.status_code, len(engine.sequences)) == (503, 3)
        refuse = False
        [event] = [event async for event in rpc.stream(running.stub.Complete, request())]
        assert event.result.status_code == 200


async def test_no_call_waits_for_the_database(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it goes away once a new batch's first rows are claimed, they are sent all the same, and so are calls to their engine."""
    async with mesh(quick(settings)) as running:
        engine = EchoEngine(settings.data)
        await engine.start(running.stub)
        running.engines.append(engine)
        await eventually(lambda: running.scheduler.engines.entries()[0].state, lambda state: state == 2)
        leases, database = running.scheduler._leases, running.scheduler._database
        claim, write, gone, back = leases.claim, database.write, asyncio.Event(), asyncio.Event()

        async def claim_and_lose(wants: Any) -> Any:
            claimed = await claim(wants)
            if any(claimed):
                gone.set()
            return claimed

        async def write_unless_gone(work: Any) -> Any:
            if gone.is_set():
                await back.wait()
            return await write(work)

        monkeypatch.setattr(leases, "claim", claim_and_lose)
        monkeypatch.setattr(database, "write", write_unless_gone)
        batch_id = await running.submit(lines_of(5))
        await eventually(lambda: len(engine.sequences), lambda count: count == 5)
        [event] = [event async for event in rpc.stream(running.stub.Complete, request())]
        assert event.result.status_code == 200
        assert (await running.progress(batch_id)).start_time.seconds
        back.set()
        await running.ended(batch_id)

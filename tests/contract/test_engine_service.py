"""The Engine service over a real socket with the echo backend: credits, ids, lanes, deadlines, cancels, broken streams."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from engine_running import CHAT, engine_with, sequence

from engine import service, stream
from haywain import clock, errors, rpc
from haywain.engine.v1 import engine_pb2 as pb


async def test_describe_engine_says_what_is_served(data_dir: Path) -> None:
    """The description has the backend, its slots, models, endpoints and fields, and an incarnation."""
    async with engine_with(data_dir, slots=3) as engine:
        described = (await rpc.call(engine.stub.DescribeEngine, pb.DescribeEngineRequest())).engine
    assert (described.backend, described.slots, described.engine_id) == ("echo", 3, "engine-0")
    assert described.incarnation
    assert described.address.startswith("unix:")
    (model,) = described.models
    assert (model.model, model.digest) == ("echo", "echo-1")
    assert CHAT in model.endpoints
    assert "temperature" in model.fields
    assert "logprobs" not in model.fields


async def test_a_row_is_answered_with_a_whole_chat_completion(data_dir: Path) -> None:
    """The body is what the synchronous endpoint returns, usage counts words, and the credit comes back with it."""
    async with engine_with(data_dir, slots=2) as engine:
        caller = await engine.open()
        assert caller.credits == 4
        caller.send(sequence(7, "one two  three"))
        (result,) = await caller.ended(7)
    body = json.loads(result.body)
    assert result.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "one two  three", "reasoning_content": None, "refusal": None},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ]
    assert (result.usage.input_tokens, result.usage.output_tokens) == (3, 3)
    assert body["usage"]["total_tokens"] == 6
    assert caller.credits == 5
    assert not result.HasField("error")


async def test_credits_are_never_exceeded(data_dir: Path) -> None:
    """What is sent without a credit is refused as retryable, costs no credit, and the rest runs."""
    async with engine_with(data_dir, slots=2, ms_per_row=20) as engine:
        caller = await engine.open()
        caller.send(*(sequence(number) for number in range(10)))
        results = await caller.ended(*range(10))
    assert [result.status_code for result in results] == [200] * 4 + [503] * 6
    assert all(result.retryable for result in results[4:])
    assert not any(result.retryable for result in results[:4])
    assert caller.credits == 4 + 4


async def test_slots_are_never_exceeded(data_dir: Path) -> None:
    """With 2 slots and 40 ms a row, 4 rows on 2 streams take two rounds: later ones have waited."""
    async with engine_with(data_dir, slots=2, ms_per_row=40) as engine:
        one, two = await engine.open(), await engine.open()
        began = time.monotonic()
        one.send(sequence(1), sequence(2))
        await asyncio.sleep(0)
        two.send(sequence(1), sequence(2))
        await asyncio.gather(one.ended(1, 2), two.ended(1, 2))
        assert time.monotonic() - began >= 0.08
    waited = sorted(result.queue_ms for caller in (one, two) for result in caller.results.values())
    assert waited[:2] == [0, 0]
    assert waited[2] >= 30


async def test_interactive_rows_take_the_next_free_slot(data_dir: Path) -> None:
    """Among rows that wait, interactive ones go first, expedited ones before standard ones."""
    async with engine_with(data_dir, slots=3, hang_containing="never") as engine:
        caller = await engine.open()
        caller.send(*(sequence(number, "never") for number in (1, 2, 3)))
        caller.send(sequence(4), sequence(5, lane=pb.LANE_EXPEDITED), sequence(6, lane=pb.LANE_INTERACTIVE))
        caller.send(cancel=(1,))
        await caller.ended(1, 4, 5, 6)
    assert caller.order == [1, 6, 5, 4]


async def test_cancel_by_id(data_dir: Path) -> None:
    """A cancelled row ends with 499 whether it ran or waited, frees its slot, and unknown ids are ignored."""
    async with engine_with(data_dir, slots=1, hang_containing="hang") as engine:
        caller = await engine.open()
        caller.send(sequence(1, "hang"), sequence(2, "waits"))
        caller.send(cancel=(2, 99))
        (waited,) = await caller.ended(2)
        caller.send(cancel=(1, 1))
        (ran,) = await caller.ended(1)
        caller.send(sequence(3))
        (after,) = await caller.ended(3)
    for result in (waited, ran):
        assert (result.status_code, result.error.code, result.retryable) == (499, "cancelled", False)
    assert after.status_code == 200


async def test_a_broken_stream_cancels_its_sequences(data_dir: Path) -> None:
    """When a stream breaks, its slots are free for others."""
    async with engine_with(data_dir, slots=1, hang_containing="hang") as engine:
        broken, other = await engine.open(), await engine.open()
        broken.send(sequence(1, "hang"), sequence(2, "hang"))
        other.send(sequence(1, "waits"))
        broken.calling.cancel()
        (result,) = await other.ended(1)
    assert result.status_code == 200


async def test_closing_the_callers_side_lets_rows_end(data_dir: Path) -> None:
    """A caller that has sent everything gets every result and then the end of the stream."""
    async with engine_with(data_dir, slots=2, ms_per_row=5) as engine:
        caller = await engine.open()
        caller.send(sequence(1), sequence(2), sequence(3))
        caller.close()
        await caller.ended(1, 2, 3)
        assert await caller.next() is None
        assert (await caller.calling.code()).name == "OK"


async def test_a_deadline_ends_rows_that_wait_and_rows_that_run(data_dir: Path) -> None:
    """Past its deadline a row ends with row_timeout, not retryable, and its slot goes to the next one."""
    async with engine_with(data_dir, slots=1, hang_containing="hang") as engine:
        caller, other = await engine.open(), await engine.open()
        soon = clock.timestamp(time.time() + 0.05)
        caller.send(sequence(1, "hang", deadline=soon), sequence(2, "waits", deadline=clock.timestamp(time.time() - 1)))
        other.send(sequence(1, "in time", deadline=clock.timestamp(time.time() + 60)))
        results = await caller.ended(1, 2)
        (in_time,) = await other.ended(1)
    for result in results:
        assert (result.status_code, result.error.code, result.retryable) == (504, "row_timeout", False)
    assert in_time.status_code == 200


async def test_chunks_come_in_order_and_before_the_result(data_dir: Path) -> None:
    """A streamed row's chunks are the role, a word each, the finish reason and the usage; then its result."""
    async with engine_with(data_dir, slots=2, ms_per_token=3) as engine:
        caller = await engine.open()
        body = {"stream": True, "stream_options": {"include_usage": True}}
        caller.send(sequence(1, "one  two three", stream=True, body=body))
        (result,) = await caller.ended(1)
    chunks = [json.loads(delta.body) for message in caller.messages for delta in message.deltas]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:4]] == ["one", "  two", " three"]
    assert chunks[4]["choices"][0]["finish_reason"] == "stop"
    assert chunks[5]["choices"] == []
    assert chunks[5]["usage"]["completion_tokens"] == 3
    assert json.loads(result.body)["choices"][0]["message"]["content"] == "one  two three"
    assert result.run_ms >= 8
    assert sum(1 for message in caller.messages if message.deltas) >= 3, "words come as their time comes"


async def test_results_of_one_pass_share_a_message(data_dir: Path) -> None:
    """A message of rows that need no time is answered by one message, and by several where 512 rows don't hold it."""
    async with engine_with(data_dir, slots=400) as engine:
        caller = await engine.open()
        caller.send(*(sequence(number) for number in range(100)))
        await caller.ended(*range(100))
        assert len(caller.messages) == 2
        caller.send(*(sequence(number) for number in range(100, 700)))
        await caller.ended(*range(100, 700))
    assert [len(message.results) for message in caller.messages] == [0, 100, 512, 88]
    assert caller.credits == 800 + 700


async def test_large_results_are_cut_into_messages_by_size(data_dir: Path) -> None:
    """A message holds at most 1 MiB of bodies, unless one alone is larger."""
    async with engine_with(data_dir, slots=8) as engine:
        caller = await engine.open()
        sizes = (400_000, 400_000, 400_000, 1_500_000, 10)
        caller.send(*(sequence(number, "x" * size) for number, size in enumerate(sizes)))
        await caller.ended(*range(5))
    assert [len(message.results) for message in caller.messages] == [0, 2, 1, 1, 1]


async def test_an_answer_too_large_to_send_fails_its_row_alone(data_dir: Path) -> None:
    """An answer past what a message can hold becomes an engine_error with both numbers; the stream goes on."""
    async with engine_with(data_dir, slots=2) as engine:
        caller = await engine.open()
        caller.send(sequence(1, "x" * 300_000, body={"n": 128}), sequence(2))
        large, other = await caller.ended(1, 2)
    assert (large.status_code, large.error.code, large.retryable) == (500, "engine_error", False)
    assert "33554432" in large.error.message
    assert other.status_code == 200


async def test_ids_are_the_streams_own(data_dir: Path) -> None:
    """Two streams may use the same ids at the same time, each gets its own answers; one stream may not."""
    async with engine_with(data_dir, slots=4, ms_per_row=10) as engine:
        one, two = await engine.open(), await engine.open()
        one.send(sequence(1, "from one"))
        two.send(sequence(1, "from two"))
        await asyncio.gather(one.ended(1), two.ended(1))
        assert b"from one" in one.results[1].body
        assert b"from two" in two.results[1].body
        one.send(sequence(2), sequence(2))
        with pytest.raises(rpc.grpc.aio.AioRpcError) as caught:
            await one.next()
    error = rpc.error_of(caught.value)
    assert isinstance(error, errors.InvalidRequest)
    assert "in use" in error.message


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "other"}, 404, "model_not_found", "model"),
        ({"endpoint": "/v1/responses"}, 400, "invalid_url", "url"),
        ({"body": {"temperature": 3}}, 400, "invalid_value", "temperature"),
        ({"body": {"logprobs": True}}, 400, "unsupported_parameter", "logprobs"),
    ],
)
async def test_a_bad_row_is_a_result_and_not_an_error(
    data_dir: Path, fields: dict[str, Any], status: int, code: str, param: str
) -> None:
    """What can't be run is answered with its status, an OpenAI envelope, and the stream goes on."""
    async with engine_with(data_dir, slots=1) as engine:
        caller = await engine.open()
        caller.send(sequence(1, **fields), sequence(2))
        bad, good = await caller.ended(1, 2)
    assert (bad.status_code, bad.error.code, bad.error.param, bad.retryable) == (status, code, param, False)
    envelope = json.loads(bad.body)["error"]
    assert (envelope["code"], envelope["param"], envelope["type"]) == (code, param, "invalid_request_error")
    assert good.status_code == 200


async def test_a_caller_that_floods_and_does_not_read_is_not_read(data_dir: Path) -> None:
    """Refusals that nobody reads don't pile up: the engine stops reading, and goes on when the caller does."""
    async with engine_with(data_dir, slots=1, hang_containing="hang") as engine:
        caller = await engine.open()
        caller.send(*(sequence(number, "hang") for number in range(2)))
        for start in range(2, 4_002, 100):
            caller.send(*(sequence(number) for number in range(start, start + 100)))
        results = await caller.ended(*range(2, 4_002))
        caller.send(cancel=(0, 1))
        await caller.ended(0, 1)
    assert {result.status_code for result in results} == {503}


async def test_stopping_refuses_what_waits_and_lets_what_runs_end(data_dir: Path) -> None:
    """On a stop, running rows get their answer, waiting and new ones are refused as retryable, and the process ends."""
    async with engine_with(data_dir, slots=1, ms_per_token=20) as engine:
        caller = await engine.open()
        caller.send(sequence(1, "a b c d", stream=True), sequence(2))
        await caller.until(lambda: any(message.deltas for message in caller.messages))
        engine.stopping.set()
        runs, waits = await caller.ended(1, 2)
        assert await caller.next() is None
        await engine.serving
    assert runs.status_code == 200
    assert (waits.status_code, waits.retryable, waits.error.code) == (503, True, "engine_unavailable"), "not a try of the row"
    assert caller.credits == 2, "no credit is given back by an engine that stops"


async def test_stopping_breaks_off_what_does_not_end(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that doesn't end in time gets no result, so that it runs elsewhere; the stream ends well, for it killed nobody."""
    monkeypatch.setattr(service, "_DRAIN_SECONDS", 0.05)
    async with engine_with(data_dir, slots=2, hang_containing="hang") as engine:
        caller = await engine.open()
        caller.send(sequence(1, "hang"), sequence(2))
        await caller.ended(2)
        engine.stopping.set()
        assert await caller.next() is None
        await engine.serving
    assert set(caller.results) == {2}


async def test_a_caller_that_leaves_chunks_unread_is_broken_off(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that nobody reads are kept up to a limit; past it the stream breaks, and others go on."""
    monkeypatch.setattr(stream, "_UNREAD_BYTES", 100_000)
    async with engine_with(data_dir, slots=2) as engine:
        lazy, other = await engine.open(), await engine.open()
        lazy.send(sequence(1, "word " * 20_000, stream=True))
        other.send(sequence(1))
        await other.ended(1)
        with pytest.raises(rpc.grpc.aio.AioRpcError) as caught:
            await lazy.until(lambda: False)
    assert caught.value.code() is rpc.grpc.StatusCode.RESOURCE_EXHAUSTED

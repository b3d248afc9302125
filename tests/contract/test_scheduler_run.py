"""A batch from submit to sealed, on a real scheduler and a real engine stream."""

from __future__ import annotations

import json

import pytest
from scheduler_mesh import EchoEngine, answer, eventually, lines_of, mesh, quick, with_engine

from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings


def refusal(status: int, code: str, *, retryable: bool = False, body: bytes = b"") -> EchoEngine.Respond:
    """Answer with an error."""

    def respond(sequence: engine_pb2.Sequence) -> engine_pb2.SequenceResult:
        error = engine_pb2.SequenceError(code=code, message="no: 2 of 1")
        return engine_pb2.SequenceResult(
            sequence_id=sequence.sequence_id, status_code=status, error=error, retryable=retryable, body=body
        )

    return respond


async def test_rows_run_and_are_sealed_in_input_order(settings: Settings) -> None:
    """Every row of a batch is recorded once and sealed in the order of the input, by the shape of the contract."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        batch_id = await running.submit(lines_of(35))
        progress = await running.ended(batch_id)
        assert (progress.counts.completed, progress.counts.failed) == (35, 0)
        assert (progress.usage.input_tokens, progress.usage.output_tokens) == (105, 70)
        assert progress.start_time.seconds
        output, error = await running.sealed(batch_id)
        assert [line["custom_id"] for line in output] == [f"c{number}" for number in range(35)]
        assert not error
        first = output[0]
        assert list(first) == ["id", "custom_id", "response", "error"]
        assert first["id"] == f"batch_req_{batch_id.removeprefix('batch_')}_00000000"
        assert first["response"]["body"]["choices"][0]["message"]["content"] == "row 0"
        assert first["response"]["x_provenance"] == {
            "engine": "e0", "backend": "echo", "model_digest": "sha256:0", "seed": None, "prompt_cached_tokens": 0,
            "queue_ms": 1, "run_ms": 2, "attempt": 1,
        }  # fmt: skip
        assert (await running.progress(batch_id)).state == pb.Progress.STATE_SEALED
        assert len(engine.sequences) == 35


async def test_credit_is_never_exceeded(settings: Settings) -> None:
    """An engine never has more sequences than it granted credits, and the slots of the settings bound all engines together."""
    async with mesh(quick(settings, slots=7)) as running:
        first, second = await with_engine(running, slots=5), await with_engine(running, engine_id="e1", slots=5)
        batch_id = await running.submit(lines_of(200), shard_rows=30)
        await running.ended(batch_id)
        assert max(first.most, second.most) <= 5
        assert len(first.sequences) + len(second.sequences) == 200
        for engine in (first, second):
            engine.respond = lambda _: None
        await running.submit(lines_of(50))
        await eventually(lambda: len(first.held) + len(second.held), lambda held: held >= 7)
        await rpc.call(running.stub.ListEngines, pb.ListEnginesRequest())
        assert len(first.held) + len(second.held) == 7


async def test_mixed_models_come_back_in_line_order(settings: Settings) -> None:
    """A file of several models is cut by model and sealed by line."""
    async with mesh(quick(settings)) as running:
        await with_engine(running, models=("a", "b"))
        lines = [line for number in range(20) for line in lines_of(1, model="ba"[number % 2], first=number)]
        batch_id = await running.submit(lines, shard_rows=7)
        await running.ended(batch_id)
        output, _ = await running.sealed(batch_id)
        assert [line["custom_id"] for line in output] == [f"c{number}" for number in range(20)]
        assert [line["response"]["body"]["model"] for line in output] == ["b", "a"] * 10


async def test_defaults_fill_what_a_body_lacks(settings: Settings) -> None:
    """A batch's defaults are added to bodies without them and never replace what a row says."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        body = {"model": "echo", "messages": [{"content": "x"}], "temperature": 1.5, "max_completion_tokens": 9}
        line = json.dumps({"custom_id": "own", "body": body}).encode()
        defaults = b'{"temperature":0.5,"top_p":0.9,"max_tokens":7}'
        await running.ended(await running.submit([*lines_of(1), line], body_defaults=defaults))
        plain, own = (json.loads(sequence.request) for sequence in engine.sequences)
        assert (plain["temperature"], plain["top_p"], plain["max_tokens"]) == (0.5, 0.9, 7)
        assert (own["temperature"], own["top_p"], own["max_completion_tokens"], "max_tokens" in own) == (1.5, 0.9, 9, False)


async def test_failed_rows_are_data(settings: Settings) -> None:
    """A row that an engine refuses becomes an error line with both the response and the error, its line number included."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        bad = refusal(400, "context_length_exceeded", body=b'{"error":\n{"message":"no","code":"x"}}')
        engine.respond = lambda sequence: bad(sequence) if b"row 3" in sequence.request else answer(sequence)
        batch_id = await running.submit(lines_of(6))
        progress = await running.ended(batch_id)
        assert (progress.counts.completed, progress.counts.failed) == (5, 1)
        _, [error] = await running.sealed(batch_id)
        assert error["custom_id"] == "c3"
        assert error["response"]["status_code"] == 400
        assert error["response"]["body"] == {"error": {"message": "no", "code": "x"}}
        assert error["error"] == {"code": "context_length_exceeded", "message": "no: 2 of 1", "line": 4}


@pytest.mark.parametrize("body", [b"", b"nope", b'{"a":', b"[1]", b'{"a":"\xff"}', b'"text"'])
async def test_an_answer_that_is_no_json_object_fails_its_row(settings: Settings, body: bytes) -> None:
    """Whatever an engine sends as a body, the files stay valid: the row fails as engine_error."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        engine.respond = lambda sequence: engine_pb2.SequenceResult(
            sequence_id=sequence.sequence_id, status_code=200, body=body, usage=engine_pb2.Usage(output_tokens=-5)
        )
        batch_id = await running.submit(lines_of(2))
        progress = await running.ended(batch_id)
        assert progress.usage.output_tokens == 0
        output, error = await running.sealed(batch_id)
        assert not output
        assert {line["error"]["code"] for line in error} == {"engine_error"}


async def test_absurd_token_counts_harm_nothing(settings: Settings) -> None:
    """Counts near the end of int64 are cut, and the batch goes on."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)

        def lie(sequence: engine_pb2.Sequence) -> engine_pb2.SequenceResult:
            result = answer(sequence)
            result.usage.output_tokens = (1 << 63) - 1
            return result

        engine.respond = lie
        batch_id = await running.submit(lines_of(8))
        await running.ended(batch_id)
        await running.sealed(batch_id)


async def test_retryable_failures_are_tried_again_a_bounded_number_of_times(settings: Settings) -> None:
    """A row that engines refuse as their own fault is tried again, and fails as engine_error in the end."""
    async with mesh(quick(settings, max_attempts=3)) as running:
        engine = await with_engine(running)
        busy = refusal(503, "overloaded", retryable=True)
        engine.respond = lambda sequence: (
            busy(sequence) if b"row 0" in sequence.request or sequence.attempt == 1 else answer(sequence)
        )
        batch_id = await running.submit(lines_of(4))
        await running.ended(batch_id)
        output, [error] = await running.sealed(batch_id)
        assert [line["response"]["x_provenance"]["attempt"] for line in output] == [2, 2, 2]
        assert (error["custom_id"], error["error"]["code"]) == ("c0", "engine_error")
        assert sum(b"row 0" in sequence.request for sequence in engine.sequences) == 3


async def test_a_stream_that_ended_in_good_order_is_no_refusal(settings: Settings) -> None:
    """A row that engines took and gave back unanswered, as often as it may be, has all of its tries left."""
    async with mesh(quick(settings, max_attempts=2, max_losses=1)) as running:
        engine = await with_engine(running)
        engine.respond = lambda _: None
        batch_id = await running.submit(lines_of(1))
        for streams in (1, 2, 3):
            await eventually(lambda streams=streams: (engine.streams, len(engine.held)), lambda found, n=streams: found == (n, 1))
            if streams == 3:
                break
            engine.held.clear()
            engine.out.put_nowait(None)
        busy = refusal(503, "overloaded", retryable=True)
        engine.respond = answer
        engine.release(busy)
        assert (await running.ended(batch_id)).counts.completed == 1
        assert [sequence.attempt for sequence in engine.sequences] == [1, 2, 3, 4]


async def test_submit_is_idempotent(settings: Settings) -> None:
    """Submitting a batch again changes nothing; submitting nonsense is refused."""
    async with mesh(quick(settings)) as running:
        await with_engine(running)
        batch_id = await running.submit(lines_of(3))
        await running.submit(lines_of(3), batch_id=batch_id)
        await running.ended(batch_id)
        await running.submit(lines_of(3), batch_id=batch_id)
        assert (await running.progress(batch_id)).counts.completed == 3
        for terms in ({"batch_id": "not.an.id"}, {"row_count": 5}, {"body_defaults": b"[]"}):
            with pytest.raises(errors.InvalidRequest):
                await running.submit(lines_of(3), **terms)


async def test_an_empty_batch_ends_at_once(settings: Settings) -> None:
    """A batch without rows can be sealed at once, into nothing."""
    async with mesh(quick(settings)) as running:
        batch_id = await running.submit([])
        assert (await running.ended(batch_id)).state == pb.Progress.STATE_ENDED
        assert await running.sealed(batch_id) == ([], [])


async def test_sealing_twice_gives_the_same(settings: Settings) -> None:
    """Sealing may be repeated, together or after the blobs were lost, and gives the same bytes."""
    async with mesh(quick(settings)) as running:
        await with_engine(running)
        batch_id = await running.submit(lines_of(12))
        other = await running.submit(lines_of(1, model="none"))
        with pytest.raises(errors.Conflict):
            await rpc.call(running.stub.SealBatch, pb.SealBatchRequest(batch_id=other))
        await running.ended(batch_id)
        seal = pb.SealBatchRequest(batch_id=batch_id)
        calls = [rpc.call(running.stub.SealBatch, seal, timeout=60) for _ in range(3)]
        first = await calls[0]
        assert [await call for call in calls[1:]] == [first, first]
        (running.settings.data / "blobs").joinpath(next(iter(running.blobs(f"output-{batch_id}")))).unlink()
        assert await rpc.call(running.stub.SealBatch, seal, timeout=60) == first
        with pytest.raises(errors.BatchMissing):
            await rpc.call(running.stub.SealBatch, pb.SealBatchRequest(batch_id="batch_none"))


async def test_the_sealing_process_may_die(settings: Settings) -> None:
    """A sealing process that was killed is replaced and the seal goes on."""
    async with mesh(quick(settings)) as running:
        await with_engine(running)
        batch_id = await running.submit(lines_of(1_001))
        await running.ended(batch_id)
        await running.sealed(batch_id)
        pool = running.scheduler._sealing._sealer._processes
        assert pool is not None
        for child in pool._processes.values():
            child.kill()
            child.join()
        other = await running.submit(lines_of(1_001))
        await running.ended(other)
        await running.sealed(other)


async def test_lanes_and_tenants_share_as_the_policy_says(settings: Settings) -> None:
    """Expedited rows go first; then tenants take turns, whoever came first."""
    async with mesh(quick(settings)) as running:
        batches = [
            await running.submit(lines_of(40), tenant="a"),
            await running.submit(lines_of(40, first=100), tenant="b"),
            await running.submit(lines_of(12, first=200), tenant="a", lane=engine_pb2.LANE_EXPEDITED),
        ]
        engine = await with_engine(running, slots=4)
        for batch_id in batches:
            await running.ended(batch_id)
        numbers = [int(json.loads(sequence.request)["messages"][0]["content"][4:]) for sequence in engine.sequences]
        assert all(number >= 200 for number in numbers[:12])
        assert {number // 100 for number in numbers[12:32]} == {0, 1}


async def test_rows_go_only_where_what_they_need_is_promised(settings: Settings) -> None:
    """A deterministic batch waits for an engine that promises it; an alias of a model is as good as its id.

    What the batch asks for is told with each of its rows.
    """
    async with mesh(quick(settings)) as running:
        plain = await with_engine(running)
        batch_id = await running.submit(lines_of(3, model="also-echo"), deterministic=True, pack=True)
        waiting = pb.Progress.WAITING_REASON_MODEL_NOT_AVAILABLE
        await eventually(lambda: running.scheduler.engines.entries()[0].state, lambda state: state == pb.EngineStatus.STATE_READY)
        assert (await running.progress(batch_id)).waiting_reason == waiting
        able = EchoEngine(settings.data, "e1")
        able.description.models[0].aliases.append("also-echo")
        able.description.models[0].deterministic = True
        await able.start(running.stub)
        running.engines.append(able)
        await running.ended(batch_id)
        assert (len(plain.sequences), len(able.sequences)) == (0, 3)
        assert all(sequence.deterministic and sequence.pack for sequence in able.sequences)

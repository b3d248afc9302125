"""When Triton is full, away, slow or wrong: what becomes of the rows."""

from __future__ import annotations

import asyncio
import signal
import time

from triton_fixture import TritonServer
from triton_running import COMPLETIONS, Running, seen, settings, started

from haywain.engine.v1 import engine_pb2 as pb
from haywain.settings import TritonContractSettings


async def test_a_full_queue_is_backpressure_and_no_failure(triton: TritonServer) -> None:
    """A model that queues one request and is sent twelve answers all twelve."""
    async with started(settings(triton, "narrow", slots=12, hold_seconds=300)) as running:
        numbers = [running.submit(COMPLETIONS, prompt=f"[ms=30] omicron {n}") for n in range(12)]
        results = [await running.end(number) for number in numbers]
    assert [result.status_code for result in results] == [200] * 12


async def test_a_row_that_waits_too_long_for_a_full_model_goes_back(triton: TritonServer) -> None:
    """After hold_seconds a row that was refused ends as engine_unavailable, which the scheduler doesn't count as a try."""
    async with started(settings(triton, "narrow", slots=6, hold_seconds=0.1)) as running:
        numbers = [running.submit(COMPLETIONS, prompt=f"[ms=1500] pi {n}", n=2) for n in range(3)]
        results = [await running.end(number) for number in numbers]
    gone = [result for result in results if result.status_code != 200]
    assert gone
    assert {(result.error.code, result.retryable) for result in gone} == {("engine_unavailable", True)}


async def test_errors_are_the_rows_or_the_engines(triton: TritonServer) -> None:
    """What the model calls an invalid argument is the row's fault; any other failure may be tried elsewhere."""
    async with started(settings(triton, "vllm_mock")) as running:
        refused = await running.refused(COMPLETIONS, prompt="[fail=INVALID_ARG] rho")
        assert (refused.status_code, refused.error.code, refused.retryable) == (400, "invalid_request", False)
        failed = await running.refused(COMPLETIONS, prompt="[fail=INTERNAL] rho")
        assert (failed.status_code, failed.error.code, failed.retryable) == (500, "engine_error", True)
        assert "The mock was told to fail: café" in failed.error.message


async def test_a_cancellation_that_nobody_asked_for_is_tried_again(triton: TritonServer) -> None:
    """A request that Triton cancels by itself is sent again, five times in all; then it fails as the engine's fault."""
    async with started(settings(triton, "vllm_mock")) as running:
        failed = await running.refused(COMPLETIONS, prompt="[fail=CANCELLED] sigma")
        assert (failed.error.code, failed.retryable) == ("engine_error", True)
    await seen(triton, "sigma", 5)
    assert len(triton.requests("sigma")) == 5


async def test_cancelling_stops_the_model(triton: TritonServer) -> None:
    """A cancelled sequence ends at once with 499, and the model sees that it was cancelled."""
    async with started(settings(triton, "vllm_mock")) as running:
        number = running.submit(COMPLETIONS, prompt="[ms=50] tau " + "word " * 200, max_tokens=200, stream=True)
        async with asyncio.timeout(20):
            await running.results.spoke.wait()
        running.backend.cancel([number])
        assert (await running.end(number, 1)).error.code == "cancelled"
    assert (await seen(triton, "tau"))["outcome"].startswith("cancelled after")


async def test_a_deadline_reaches_triton(triton: TritonServer) -> None:
    """A sequence that isn't done by its deadline is cancelled in the model and ends as row_timeout."""
    async with started(settings(triton, "vllm_mock")) as running:
        sequence = pb.Sequence(sequence_id=900, model="vllm_mock", endpoint=COMPLETIONS)
        sequence.request = b'{"model":"vllm_mock","prompt":"[hang] upsilon"}'
        sequence.deadline.FromNanoseconds(int((time.time() + 0.3) * 1e9))
        running.backend.submit([sequence])
        assert (await running.end(900)).error.code == "row_timeout"
    assert (await seen(triton, "upsilon"))["outcome"].startswith("cancelled")


async def test_a_request_without_an_answer_is_tried_again_and_then_fails(triton: TritonServer) -> None:
    """After request_seconds it is stopped and sent again, the last time with nothing beside it; then it is the row's failure."""
    async with started(settings(triton, "vllm_mock", request_seconds=0.3)) as running:
        number = running.submit(COMPLETIONS, prompt="[hang] phi")
        others = [running.submit(COMPLETIONS, prompt=f"phi2 {n}") for n in range(10)]
        failed = await running.end(number)
        assert (failed.error.code, failed.retryable) == ("engine_error", True)
        assert "lost 3 times" in failed.error.message
        assert all([(await running.end(other)).status_code == 200 for other in others])
    await seen(triton, "[hang] phi", 3)
    assert len(triton.requests("[hang] phi")) == 3


async def test_a_frozen_server_is_away_and_goes_on(triton: TritonServer) -> None:
    """A process that is stopped is found by a look: who waits for an answer is told, rows of batches wait, and go on with it."""
    assert triton.process is not None
    async with started(settings(triton, "vllm_mock", hold_seconds=300, probe_seconds=3.0)) as running:
        await _answers(running, "omega")
        triton.process.send_signal(signal.SIGSTOP)
        try:
            waiting = [running.submit(COMPLETIONS, prompt=f"omega {n}") for n in range(3)]
            told = await running.end(running.submit(COMPLETIONS, pb.LANE_INTERACTIVE, prompt="omega now"), 60)
            assert (told.error.code, told.retryable) == ("engine_unavailable", True)
        finally:
            triton.process.send_signal(signal.SIGCONT)
        assert [(await running.end(number, 60)).status_code for number in waiting] == [200] * 3


async def _answers(running: Running, prompt: str) -> None:
    result = await running.end(running.submit(COMPLETIONS, prompt=prompt), 60)
    assert result.status_code == 200, result


async def test_a_model_that_is_unloaded_and_loaded_again_goes_on(triton: TritonServer) -> None:
    """Rows wait while their model isn't loaded, and run when it is; a synchronous request is told within seconds."""
    async with started(settings(triton, "ensemble_old", hold_seconds=300)) as running:
        await _answers(running, "chi")
        await asyncio.to_thread(triton.unload, "ensemble_old")
        waiting = [running.submit(COMPLETIONS, prompt=f"chi {n}") for n in range(10)]
        await running.away()
        assert not any(running.results.of(number).done() for number in waiting)
        await asyncio.to_thread(triton.load, "ensemble_old")
        assert [(await running.end(number, 60)).status_code for number in waiting] == [200] * 10


async def test_a_model_that_comes_back_with_other_tensors_ends_the_engine(triton: TritonServer) -> None:
    """It is started again, and describes what is there then."""
    config = triton.folder / "models" / "ensemble_old" / "config.pbtxt"
    before = config.read_text("utf-8")
    async with started(settings(triton, "ensemble_old", hold_seconds=300)) as running:
        await asyncio.to_thread(triton.unload, "ensemble_old")
        running.submit(COMPLETIONS, prompt="omega")
        config.write_text(before.replace('name: "random_seed"', 'name: "other_seed"'), "utf-8")
        try:
            await asyncio.to_thread(triton.load, "ensemble_old")
            async with asyncio.timeout(30):
                assert "other tensors" in await running.results.death
        finally:
            await asyncio.to_thread(triton.unload, "ensemble_old")
            config.write_text(before, "utf-8")
            await asyncio.to_thread(triton.load, "ensemble_old")


async def test_a_dead_model_process_burns_no_rows(own_triton: TritonServer) -> None:
    """Triton calls a model ready whose process died: what ran and what waits is kept, and runs once it is loaded again."""
    await asyncio.to_thread(own_triton.start, "vllm_mock")
    async with started(settings(own_triton, "vllm_mock", slots=4, hold_seconds=300)) as running:
        await _answers(running, "first")
        deadly = running.submit(COMPLETIONS, prompt="[die]")
        numbers = [running.submit(COMPLETIONS, prompt=f"[ms=300] alive {n}") for n in range(3)]
        numbers += [running.submit(COMPLETIONS, prompt=f"later {n}") for n in range(5)]
        await running.away()
        assert not any(running.results.of(number).done() for number in numbers)
        running.backend.cancel([deadly])
        await asyncio.to_thread(own_triton.unload, "vllm_mock")
        await asyncio.to_thread(own_triton.load, "vllm_mock")
        assert [(await running.end(number, 60)).status_code for number in numbers] == [200] * 8


async def test_a_row_that_kills_its_model_again_and_again_fails_alone(own_triton: TritonServer) -> None:
    """The third time, with nothing beside it, the row is told what it does; all others are answered."""
    await asyncio.to_thread(own_triton.start, "custom")
    contract = TritonContractSettings(prompt="QUESTION", text="ANSWER")
    async with started(settings(own_triton, "custom", slots=2, hold_seconds=300, contract=contract)) as running:
        deadly = running.submit(COMPLETIONS, prompt="[die]")
        others = [running.submit(COMPLETIONS, prompt=f"other {n}") for n in range(6)]
        for _ in range(3):
            await running.away()
            await asyncio.to_thread(own_triton.unload, "custom")
            await asyncio.to_thread(own_triton.load, "custom")
        failed = await running.end(deadly)
        assert (failed.error.code, "lost 3 times" in failed.error.message) == ("engine_error", True)
        assert [(await running.end(other, 60)).status_code for other in others] == [200] * 6

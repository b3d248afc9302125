"""Everything at once, by a seed: whatever happens, every row is recorded once, and what is recorded stays."""

from __future__ import annotations

import asyncio
import random

import pytest
from scheduler_mesh import EchoEngine, Mesh, answer, lines_of, mesh, quick

from haywain import rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings

ROWS = 300


def unreliable(chance: random.Random, engine: EchoEngine) -> EchoEngine.Respond:
    """Answer well, badly, twice, later, or not at all."""

    def respond(sequence: engine_pb2.Sequence) -> engine_pb2.SequenceResult | None:
        what = chance.random()
        result = answer(sequence)
        if what < 0.02:
            return None
        if what < 0.05:
            error = engine_pb2.SequenceError(code="overloaded", message="busy")
            return engine_pb2.SequenceResult(sequence_id=sequence.sequence_id, status_code=503, error=error, retryable=True)
        if what < 0.08:
            engine.out.put_nowait(engine_pb2.RunResponse(results=[result]))
        if what < 0.10:
            engine.out.put_nowait(engine_pb2.RunResponse(results=[engine_pb2.SequenceResult(sequence_id=7777, status_code=200)]))
        return result

    return respond


async def trouble(running: Mesh, chance: random.Random, batch_id: str) -> None:
    """Kill and revive engines until the batch ends or some time is over."""
    for _ in range(chance.randint(1, 4)):
        await asyncio.sleep(chance.random() * 0.15)
        if (await running.progress(batch_id)).state != pb.Progress.STATE_ACTIVE:
            return
        await chance.choice(running.engines).revive(running.stub)


@pytest.mark.parametrize("seed", range(4))
async def test_every_row_is_recorded_once(settings: Settings, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that die, lie and hang, rows that run twice, and restarts, neither lose, repeat nor change a recorded row."""
    monkeypatch.setattr("services.scheduler.returns._COMPARE_SECONDS", 0.0)
    chance = random.Random(seed)
    late = {"straggler_seconds": 0.05, "straggler_factor": 0.01}
    chosen = quick(settings, row_timeout_seconds=0.5, max_attempts=50, max_losses=50, slots=40, **late)
    batch_id = f"batch_{seed:032x}"
    journal = settings.data / "incremental" / f"{batch_id}.jsonl"
    before = b""
    for life in range(4):
        async with mesh(chosen) as running:
            for name in ("e0", "e1"):
                engine = EchoEngine(settings.data, name, slots=chance.randint(1, 30))
                engine.respond = unreliable(chance, engine) if life < 3 else answer
                await engine.start(running.stub)
                running.engines.append(engine)
            await running.submit(lines_of(ROWS), batch_id=batch_id, shard_rows=40)
            if life < 3:
                await trouble(running, chance, batch_id)
            elif seed % 2:
                stop = pb.StopBatchRequest(batch_id=batch_id, reason=pb.StopBatchRequest.REASON_CANCELLED)
                await rpc.call(running.stub.StopBatch, stop)
            else:
                await running.ended(batch_id)
            if life == 3:
                output, error = await running.sealed(batch_id)
                assert [line["custom_id"] for line in output] == sorted(
                    (line["custom_id"] for line in output), key=lambda name: int(name[1:])
                )
                assert {line["custom_id"] for line in output + error} == {f"c{number}" for number in range(ROWS)}
                allowed = {"row_timeout", "batch_cancelled"} if seed % 2 else {"row_timeout"}
                assert {line["error"]["code"] for line in error} <= allowed
        after = journal.read_bytes() if journal.exists() else b""
        assert after.startswith(before)
        before = after
    names = [line.split(b'"custom_id":')[1].split(b",")[0] for line in before.splitlines()]
    assert len(names) == len(set(names))

"""A batch from submit to sealed, on a real scheduler and a real engine stream."""

from __future__ import annotations

import json
from typing import Any

from scheduler_engine import EchoEngine, answer, eventually, lines_of, mesh, quick

from haywain import rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings


async def test_rows_run_and_are_sealed_in_input_order(settings: Settings) -> None:
    """Every row of a batch is recorded once and sealed in the order of the input, by the shape of the contract."""
    async with mesh(quick(settings)) as running:
        engine = EchoEngine(settings.data)
        await engine.start(running.stub)
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
        await engine.kill()

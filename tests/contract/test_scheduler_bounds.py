"""What bounds the scheduler's memory, and its engines'."""

from __future__ import annotations

import json

from scheduler_mesh import answer, eventually, lines_of, mesh, quick, with_engine

from haywain.settings import Settings


async def test_lines_out_at_an_engine_are_bounded_in_bytes(settings: Settings) -> None:
    """However many credits an engine grants, lines of 64 MiB at most are sent ahead of its answers; the rest follows them."""
    lines = []
    for line in lines_of(70):
        record = json.loads(line)
        record["body"]["user"] = "x" * 1_000_000
        lines.append(json.dumps(record).encode())
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running, slots=100)
        engine.respond = lambda sequence: None
        batch_id = await running.submit(lines, shard_rows=100)
        progress = await eventually(lambda: running.progress(batch_id), lambda progress: progress.running > 60)
        assert progress.queued > 0
        assert sum(len(sequence.request) for sequence in engine.sequences) <= 64 * 1024 * 1024 + 1_000_000
        engine.respond = answer
        engine.release()
        await running.ended(batch_id)
        output, error = await running.sealed(batch_id)
        assert (len(output), len(error)) == (70, 0)
        assert running.scheduler.dispatcher.links.active == 0

"""Rows that begin alike arrive at an engine that reuses prefixes one after another, and at one engine."""

from __future__ import annotations

import json

from scheduler_mesh import CHAT, EchoEngine, Mesh, answer, eventually, mesh, quick

from haywain.settings import Settings


def in_turns(rows: int, groups: int) -> list[bytes]:
    """Make lines whose system prompts come in turns."""
    return [
        json.dumps(
            {
                "custom_id": f"c{row}", "method": "POST", "url": CHAT,
                "body": {
                    "model": "echo", "seed": row,
                    "messages": [
                        {"role": "system", "content": f"{row % groups} is the number of these rules, which are many. " * 8},
                        {"role": "user", "content": f"row {row}"},
                    ],
                },
            }
        ).encode()
        for row in range(rows)
    ]  # fmt: skip


async def sharing(running: Mesh, engine_id: str, slots: int = 4) -> EchoEngine:
    """Start an engine that reuses prefixes, and wait until rows may go there."""
    engine = EchoEngine(running.settings.data, engine_id, slots=slots)
    engine.description.models[0].reuses_prefixes = True
    await engine.start(running.stub)
    running.engines.append(engine)
    links = running.scheduler.dispatcher.links
    await eventually(lambda: [link.credits for link in links if link.engine.engine_id == engine_id], [slots].__eq__)
    return engine


def rows_at(engine: EchoEngine) -> list[int]:
    """Tell which rows an engine was sent, in order."""
    return [json.loads(sequence.request)["seed"] for sequence in engine.sequences]


def runs(rows: list[int], groups: int) -> list[int]:
    """Tell the groups of rows, each once for all neighbours of the same."""
    found = [row % groups for row in rows]
    return [group for at, group in enumerate(found) if at == 0 or found[at - 1] != group]


async def test_groups_that_come_in_turns_arrive_together_each_at_one_engine(settings: Settings) -> None:
    """Two groups whose rows come in turns go to two engines, each group whole to one, though every row could go to either."""
    async with mesh(quick(settings)) as running:
        engines = [await sharing(running, name) for name in ("e0", "e1")]
        for engine in engines:
            engine.respond = lambda sequence: None
        batch_id = await running.submit(in_turns(40, 2), shard_rows=40)
        for sent in range(4, 21, 4):
            await eventually(lambda: [len(engine.sequences) for engine in engines], [sent, sent].__eq__)
            for engine in engines:
                engine.release()
        assert (await running.ended(batch_id)).counts.completed == 40
        await running.sealed(batch_id)
    assert sorted(runs(rows_at(engine), 2) for engine in engines) == [[0], [1]]


async def test_a_lost_engine_s_groups_go_on_at_the_other(settings: Settings) -> None:
    """When one of two engines is lost, the other runs what it had, and what was left for it: every row once, groups together."""
    async with mesh(quick(settings)) as running:
        kept, lost = await sharing(running, "e0"), await sharing(running, "e1")
        lost.respond = lambda sequence: None
        kept.respond = lambda sequence: None
        batch_id = await running.submit(in_turns(60, 3), shard_rows=60)
        await eventually(lambda: len(kept.sequences) + len(lost.sequences), (8).__eq__)
        had = set(rows_at(lost))
        await lost.kill()
        kept.respond = answer
        kept.release()
        assert (await running.ended(batch_id)).counts.completed == 60
        output, _ = await running.sealed(batch_id)
        assert [line["custom_id"] for line in output] == [f"c{row}" for row in range(60)]
    assert sorted(rows_at(kept)) == list(range(60))
    assert sorted(runs([row for row in rows_at(kept) if row not in had], 3)) == [0, 1, 2]


async def test_a_scheduler_that_starts_again_sends_the_rest_in_order(settings: Settings) -> None:
    """After a crash the rows that were not recorded are sent, put together again; those that were are not."""
    async with mesh(quick(settings)) as running:
        engine = await sharing(running, "e0")
        engine.respond = lambda sequence: answer(sequence) if len(engine.sequences) <= 16 else None
        batch_id = await running.submit(in_turns(60, 3), shard_rows=30)
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == 16)
    recorded = set(rows_at(engine)[:16])
    async with mesh(quick(settings)) as running:
        engine = await sharing(running, "e1", slots=1)
        assert (await running.ended(batch_id)).counts.completed == 60
        await running.sealed(batch_id)
    rows = rows_at(engine)
    assert sorted(rows) == sorted(set(range(60)) - recorded)
    for shard in (range(30), range(30, 60)):
        assert len(runs([row for row in rows if row in shard], 3)) <= 3


async def test_an_engine_that_reuses_nothing_gets_rows_as_they_are(settings: Settings) -> None:
    """Rows go to an engine that doesn't say that it reuses prefixes in the order of the input."""
    async with mesh(quick(settings)) as running:
        engine = EchoEngine(settings.data)
        await engine.start(running.stub)
        running.engines.append(engine)
        batch_id = await running.submit(in_turns(60, 3), shard_rows=60)
        await running.ended(batch_id)
    assert rows_at(engine) == list(range(60))

"""A scheduler that ends, or is killed, and another one on the same data folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from scheduler_mesh import EchoEngine, Mesh, answer, eventually, lines_of, mesh, quick

from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.scheduler.v1 import scheduler_pb2_grpc
from haywain.settings import Settings

_SERVER = """
import asyncio, sys
from haywain import rpc, settings
from services.scheduler import service
chosen = settings.load(sets=sys.argv[1:])
rpc.run(lambda stopping: service.serve(chosen, stopping))
"""


def journal_of(settings: Settings, batch_id: str) -> Path:
    """Tell where a batch's journal is."""
    return settings.data / "incremental" / f"{batch_id}.jsonl"


def names_in(path: Path) -> list[str]:
    """List the custom ids in a journal."""
    return [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()]


async def half_done(running: Mesh, rows: int, done: int, *, few: bool = False) -> tuple[EchoEngine, str]:
    """Run a batch until `done` rows are recorded; the others hang."""
    engine = EchoEngine(running.settings.data)
    engine.respond = lambda sequence: answer(sequence) if len(engine.sequences) <= done else None
    await engine.start(running.stub)
    running.engines.append(engine)
    batch_id = await running.submit(lines_of(rows), few=few)
    await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == done)
    return engine, batch_id


async def test_a_restart_goes_on_where_it_was(settings: Settings) -> None:
    """After a restart no recorded row runs again, counts and tokens are right, and the batch completes by itself."""
    async with mesh(quick(settings)) as running:
        _, batch_id = await half_done(running, 40, 13)
        started = (await running.progress(batch_id)).start_time
    async with mesh(quick(settings)) as running:
        progress = await running.progress(batch_id)
        assert (progress.counts.completed, progress.usage.input_tokens, progress.start_time) == (13, 39, started)
        engine = EchoEngine(settings.data)
        await engine.start(running.stub)
        running.engines.append(engine)
        progress = await running.ended(batch_id)
        assert (progress.counts.completed, progress.usage.output_tokens) == (40, 80)
        assert len(engine.sequences) == 27
        await running.sealed(batch_id)
    async with mesh(quick(settings)) as running:
        assert (await running.progress(batch_id)).state == pb.Progress.STATE_SEALED
        output, _ = await running.sealed(batch_id)
        assert len(output) == 40


async def test_an_index_that_came_with_its_batch_lasts(settings: Settings) -> None:
    """The rows run, and after a restart the others get error lines with their ids; one of a wrong length is refused."""
    async with mesh(quick(settings)) as running:
        _, batch_id = await half_done(running, 20, 13, few=True)
        with pytest.raises(errors.InvalidRequest):
            await running.submit(lines_of(3), few=True, row_count=2, batch_id="batch_x")
    async with mesh(quick(settings)) as running:
        await rpc.call(running.stub.StopBatch, pb.StopBatchRequest(batch_id=batch_id, reason=pb.StopBatchRequest.REASON_CANCELLED))
        output, error = await running.sealed(batch_id)
        assert len(output) == 13
        wanted = {json.loads(line)["custom_id"]: number for number, line in enumerate(lines_of(20), 1)}
        assert {line["custom_id"]: line["error"]["line"] for line in error} == {
            name: number for name, number in wanted.items() if name not in {line["custom_id"] for line in output}
        }


async def test_a_torn_last_line_is_cut_and_its_row_runs_again(settings: Settings) -> None:
    """Bytes behind the last whole line, zeros or half a line, are no result."""
    for torn in (b'{"id":"batch_req_', b"\0" * 100, b"\0" * 10 + b"\n"):
        async with mesh(quick(settings)) as running:
            engine, batch_id = await half_done(running, 8, 5)
            await engine.kill()
        journal = journal_of(settings, batch_id)
        whole = journal.read_bytes()
        journal.write_bytes(whole + torn)
        async with mesh(quick(settings)) as running:
            assert (await running.progress(batch_id)).counts.completed == 5
            assert journal.read_bytes() == whole
            engine = EchoEngine(settings.data)
            await engine.start(running.stub)
            await running.ended(batch_id)
            output, error = await running.sealed(batch_id)
            assert (len(output), error) == (8, [])
            assert journal.read_bytes().startswith(whole + b'{"id":')
            await engine.kill()


async def test_lines_without_a_checkpoint_count(settings: Settings) -> None:
    """Rows that were synced but not committed in SQL are recorded, tokens included, over any number of restarts."""
    async with mesh(quick(settings, checkpoint_seconds=3600.0)) as running:
        _, batch_id = await half_done(running, 25, 13)
    for _ in range(3):
        async with mesh(quick(settings)) as running:
            progress = await running.progress(batch_id)
            assert (progress.counts.completed, progress.usage.input_tokens) == (13, 39)


async def test_a_stop_survives_a_restart(settings: Settings) -> None:
    """A stopped batch stays stopped, and is sealed by its first reason."""
    async with mesh(quick(settings)) as running:
        _, batch_id = await half_done(running, 20, 4)
        stop = pb.StopBatchRequest(batch_id=batch_id, reason=pb.StopBatchRequest.REASON_EXPIRED)
        await rpc.call(running.stub.StopBatch, stop)
    async with mesh(quick(settings)) as running:
        engine = EchoEngine(settings.data)
        await engine.start(running.stub)
        running.engines.append(engine)
        assert (await running.progress(batch_id)).state == pb.Progress.STATE_ENDED
        output, error = await running.sealed(batch_id)
        assert len(output) == 4
        assert {line["error"]["code"] for line in error} == {"batch_expired"}
        assert not engine.sequences


async def test_one_scheduler_a_data_folder(settings: Settings) -> None:
    """A second scheduler on the same data folder ends with one clear line."""
    async with mesh(quick(settings)):
        with pytest.raises(errors.SettingsError, match="another scheduler"):
            async with mesh(quick(settings)):
                pass


async def test_models_stay_known_over_a_restart(settings: Settings) -> None:
    """Right after a restart, before its engines registered again, a scheduler still knows their models."""
    async with mesh(quick(settings)) as running:
        engine = EchoEngine(settings.data)
        await engine.start(running.stub)
        await engine.kill()
    async with mesh(quick(settings)) as running:
        models = (await rpc.call(running.stub.ListModels, pb.ListModelsRequest())).models
        assert [model.model for model in models] == ["echo"]


async def serving(sets: list[str]) -> asyncio.subprocess.Process:
    """Start a scheduler process; returns when it says that it serves, however long the machine takes to load it."""
    pipe, both = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _SERVER, *sets, stdout=pipe, stderr=both)
    assert process.stdout is not None
    said: list[bytes] = []
    while not said or b"scheduler.serving" not in said[-1]:
        said.append(await process.stdout.readline())
        assert said[-1], b"".join(said).decode()
    return process


async def test_kill_9_loses_and_repeats_nothing(settings: Settings) -> None:
    """A scheduler process killed at any instant loses no recorded row and runs none again."""
    engine = EchoEngine(settings.data, slots=16)
    sets = [f"data_dir={settings.data_dir}", "scheduler.heartbeat_ms=300", "scheduler.checkpoint_seconds=0.1"]
    address = settings.address("scheduler")
    pending = asyncio.Event()
    before: set[str] = set()
    after: list[str] = []
    repeated: list[str] = []

    def respond(sequence: engine_pb2.Sequence) -> engine_pb2.SequenceResult:
        name = json.loads(sequence.request)["messages"][0]["content"].replace("row ", "c")
        repeated.extend({name} & before)
        after.append(name)
        if len(after) > 150:
            pending.set()
        return answer(sequence)

    engine.respond = respond
    async with rpc.channel(address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        client = Mesh(settings, None, stub)  # type: ignore[arg-type]
        batch_id = ""
        for _ in range(4):
            process = await serving(sets)
            await (engine.start(stub) if not batch_id else eventually(lambda: engine.streams, lambda streams: streams > 1))
            if not batch_id:
                batch_id = await client.submit(lines_of(1500), shard_rows=200)
            await pending.wait()
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
            engine.streams = 1
            journal = journal_of(settings, batch_id).read_bytes()
            before.update(json.loads(line)["custom_id"] for line in journal.splitlines(keepends=True) if line.endswith(b"\n"))
            after.clear()
            pending.clear()
        process = await serving(sets)
        await client.ended(batch_id)
        output, error = await client.sealed(batch_id)
        assert (len(output), error, repeated) == (1500, [], [])
        assert sorted(names_in(journal_of(settings, batch_id))) == sorted({f"c{number}" for number in range(1500)})
        process.terminate()
        await process.communicate()
        assert process.returncode == 0
        await engine.kill()

"""What one scheduler leaves, and another takes up: shards, turns to seal, results, whole data folders."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from postgres_fixture import PostgresServer
from scheduler_mesh import Mesh, answer, eventually, lines_of, mesh, quick, with_engine
from scheduler_pair import Ahead, lines_read, pair, replica

from haywain import errors, rpc
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import DatabaseSettings, Settings
from services.scheduler.scheduler import Scheduler
from services.scheduler.shared import Shared


@pytest.fixture
def shared_settings(settings: Settings, postgres: PostgresServer) -> Settings:
    """Give settings on an empty database."""
    return msgspec.structs.replace(settings, db=DatabaseSettings(url=postgres.database()))


async def leave_half(running: Mesh, rows: int, done: int) -> str:
    """Run a batch until `done` rows are recorded; its others hang."""
    engine = await with_engine(running)
    engine.respond = lambda sequence: answer(sequence) if len(engine.sequences) <= done else None
    batch_id = await running.submit(lines_of(rows))
    await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == done)
    return batch_id


async def test_the_next_owner_runs_only_the_rest(shared_settings: Settings) -> None:
    """A scheduler that died is replaced when its leases expire: what it committed stays, and only the rest is run."""
    async with mesh(replica(shared_settings, 1)) as running:
        batch_id = await leave_half(running, 40, 13)
        before = await lines_read(running, batch_id)
    async with mesh(replica(shared_settings, 2), Ahead(100.0)) as running:
        assert (await running.progress(batch_id)).counts.completed == 13
        assert await lines_read(running, batch_id) == before
        engine = await with_engine(running)
        ended = await running.ended(batch_id)
        assert (ended.counts.completed, ended.usage.input_tokens, len(engine.sequences)) == (40, 120, 27)
        assert (await lines_read(running, batch_id)).startswith(before)
        output, _ = await running.sealed(batch_id)
        assert all(json.loads(line) in output for line in before.splitlines())


async def test_lost_results_of_one_batch_hold_up_no_other(shared_settings: Settings) -> None:
    """A shard whose results are there and can't be read is left to its lease's end; those claimed with it are run at once."""
    async with mesh(replica(shared_settings, 1)) as running:
        lost = await leave_half(running, 10, 3)
        other = await running.submit(lines_of(5))
    for file in (shared_settings.data / "incremental" / lost).iterdir():
        file.unlink()
        file.mkdir()
    async with mesh(replica(shared_settings, 2), Ahead(100.0)) as running:
        await with_engine(running)
        assert (await running.ended(other)).counts.completed == 5
        assert (await running.progress(lost)).counts.completed == 3


async def test_rows_whose_results_are_lost_run_again(shared_settings: Settings) -> None:
    """What was committed and is gone when its shard is claimed is forgotten, and its rows run; the others' results stay."""
    async with mesh(replica(shared_settings, 1)) as running:
        engine = await with_engine(running)
        engine.respond = lambda sequence: answer(sequence) if len(engine.sequences) <= 14 else None
        batch_id = await running.submit(lines_of(30), shard_rows=10)
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == 14)
    (shared_settings.data / "incremental" / batch_id / "1-1.jsonl").unlink()
    async with mesh(replica(shared_settings, 2), Ahead(100.0)) as running:
        engine = await with_engine(running)
        ended = await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == 30)
        assert (ended.usage.input_tokens, len(engine.sequences)) == (90, 20)
        output, error = await running.sealed(batch_id)
        assert (len(output), error) == (30, [])


@pytest.mark.parametrize("torn", [False, True])
async def test_results_that_are_lost_before_sealing(shared_settings: Settings, torn: bool) -> None:
    """Sealing says so, once; both schedulers open the shards again, whichever was asked, and their rows run again."""
    async with pair(shared_settings, shared_settings.db.url) as both:
        batch_id = await both.a.submit(lines_of(40), shard_rows=10)
        await both.b.ended(batch_id)
        before = len(both.rows_sent())
        for file in sorted((shared_settings.data / "incremental" / batch_id).glob("[12]-*.jsonl")):
            file.write_bytes(file.read_bytes()[:-7]) if torn else file.unlink()
        whole = await lines_read(both.a, batch_id)
        assert whole.count(b"\n") == len(whole.splitlines()) == (38 if torn else 20)
        with pytest.raises(errors.Conflict, match="lost"):
            await rpc.call(both.b.stub.SealBatch, pb.SealBatchRequest(batch_id=batch_id))
        for running in (both.a, both.b):
            ended = await running.ended(batch_id)
            assert (ended.counts.completed, ended.usage.output_tokens) == (40, 80)
        assert len(both.rows_sent()) == before + 20
        output, error = await both.a.sealed(batch_id)
        assert (len(output), error) == (40, [])


async def test_results_of_a_stopped_batch_that_are_lost(shared_settings: Settings) -> None:
    """Nothing of it runs again: its rows without a result get an error line, which says that they may have had one."""
    async with mesh(replica(shared_settings, 1)) as running:
        batch_id = await leave_half(running, 20, 4)
        await rpc.call(running.stub.StopBatch, pb.StopBatchRequest(batch_id=batch_id, reason=pb.StopBatchRequest.REASON_CANCELLED))
        for file in (shared_settings.data / "incremental" / batch_id).glob("*.jsonl"):
            file.unlink()
        output, error = await running.sealed(batch_id)
        assert (output, len(error)) == ([], 20)
        assert {line["error"]["code"] for line in error} == {"batch_cancelled"}
        assert all("lost from the disk" in line["error"]["message"] for line in error)


async def test_both_go_and_come_back(shared_settings: Settings) -> None:
    """Schedulers that are killed and started again have their leases back at once."""
    async with mesh(replica(shared_settings, 1)) as a, mesh(replica(shared_settings, 2)):
        batch_id = await leave_half(a, 40, 13)
    async with mesh(replica(shared_settings, 1)) as a, mesh(replica(shared_settings, 2)) as b:
        engine = await with_engine(a)
        assert (await b.ended(batch_id)).counts.completed == 40
        assert len(engine.sequences) == 27
        await b.sealed(batch_id)


async def test_results_outlive_their_batch(shared_settings: Settings) -> None:
    """After a batch is forgotten both can still be asked for its results, until they are swept away."""
    async with pair(shared_settings, shared_settings.db.url) as both:
        batch_id = await both.a.submit(lines_of(12), shard_rows=3)
        await both.a.ended(batch_id)
        await both.b.sealed(batch_id)
        results = await lines_read(both.a, batch_id)
        assert results.count(b"\n") == 12
        known = both.a.scheduler.intake.get(batch_id)
        await rpc.call(both.b.stub.ForgetBatch, pb.ForgetBatchRequest(batch_id=batch_id))
        assert await lines_read(both.a, batch_id) == await lines_read(both.b, batch_id) == results
        assert batch_id not in both.a.scheduler.intake.batches
        assert await lines_read(both.a, batch_id, 5) == b"".join(results.splitlines(keepends=True)[5:])
        await both.a.scheduler._ledger.forget(known)  # as if it had been asked at the same time
        assert await lines_read(both.a, batch_id) == results
        running = await both.a.submit(lines_of(2))
        await both.b.ended(running)
        folder = both.a.settings.data / "incremental"
        await both.b.scheduler.intake.sweep((folder / batch_id).stat().st_mtime + 60)
        assert [path.name for path in folder.iterdir()] == [running]
        with pytest.raises(errors.BatchMissing):
            await lines_read(both.a, batch_id)


async def test_one_seals_at_a_time(shared_settings: Settings) -> None:
    """While one has the turn the other waits; whoever lost the turn changes nothing of what its successor sealed."""
    async with pair(shared_settings, shared_settings.db.url) as both:
        batch_id = await both.a.submit(lines_of(5))
        await both.a.ended(batch_id)
        database, clock = both.a.scheduler._database, both.a.scheduler._clock
        slow = Shared(database, "slow", 1.0, clock)
        turn, _ = await slow.take_turn(batch_id, "")
        sealing = asyncio.create_task(both.b.sealed(batch_id))
        assert (await slow.take_turn(batch_id, ""))[0] == 0
        output, _ = await sealing
        assert turn == 1
        remembered = await slow.seal(batch_id, turn, "mine")
        assert msgspec.json.decode(remembered)["turn"] == 2
        assert (await slow.take_turn(batch_id, "")) == (0, remembered)
        again, _ = await both.a.sealed(batch_id)
        assert again == output


async def test_one_scheduler_finishes_what_several_began(shared_settings: Settings) -> None:
    """A scheduler that is alone goes on with batches of several, and runs no recorded row again."""
    async with mesh(replica(shared_settings, 2)) as running:
        batch_id = await leave_half(running, 40, 13)
    async with mesh(quick(shared_settings)) as running:
        engine = await with_engine(running)
        assert (await running.ended(batch_id)).counts.completed == 40
        assert len(engine.sequences) == 27
        await running.sealed(batch_id)


async def test_several_do_not_take_over_from_one(shared_settings: Settings) -> None:
    """Several refuse to start while a batch is open whose results only a scheduler that is alone can record."""
    async with mesh(quick(shared_settings)) as running:
        await running.submit(lines_of(3))
    with pytest.raises(errors.SettingsError, match=r"start with scheduler.replicas=1 until"):
        await Scheduler.open(replica(shared_settings, 1))


async def test_who_may_run_together(shared_settings: Settings) -> None:
    """Replicas share a data folder with each other, not with one of the same name, nor with a scheduler that is alone."""
    async with mesh(replica(shared_settings, 1)):
        with pytest.raises(errors.SettingsError, match="another scheduler is called scheduler"):
            await Scheduler.open(replica(shared_settings, 1))
        with pytest.raises(errors.SettingsError, match="another scheduler runs on this data folder"):
            await Scheduler.open(quick(shared_settings))
        async with mesh(replica(shared_settings, 2)):
            pass


async def test_a_turn_that_is_lost_until_the_batch_is_forgotten_leaves_nothing(shared_settings: Settings) -> None:
    """A scheduler that was paused while it sealed, and wakes up when all is over, takes its files away itself."""
    async with pair(shared_settings, shared_settings.db.url, Ahead(0.0)) as both:
        batch_id = await both.a.submit(lines_of(5))
        await both.a.ended(batch_id)
        paused = both.a.scheduler.intake.get(batch_id)
        turn = await both.a.scheduler._ledger.seal_turn(paused)
        clock = both.b.scheduler._clock
        assert isinstance(clock, Ahead)
        clock.seconds = 100.0
        await both.b.sealed(batch_id)
        await rpc.call(both.b.stub.ForgetBatch, pb.ForgetBatchRequest(batch_id=batch_id))
        with pytest.raises(errors.BatchMissing):
            await both.a.scheduler._sealing._seal_in_turn(paused, turn)
        assert (turn, both.a.blobs(f"output-{batch_id}"), len(both.a.blobs(f"output-{batch_id}-2"))) == (1, [], 1)

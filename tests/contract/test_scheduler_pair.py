"""Two schedulers on one database: they share batches, and one that lost its lease records nothing."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from postgres_fixture import PostgresServer
from scheduler_mesh import answer, eventually, lines_of
from scheduler_pair import Ahead, lines_read, pair

from haywain import rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """Give an empty database."""
    return postgres.database()


def journal_lines(settings: Settings, batch_id: str) -> list[bytes]:
    """Read every line that any scheduler ever wrote for a batch."""
    files = (settings.data / "incremental" / batch_id).glob("*.jsonl")
    return [line for file in files for line in file.read_bytes().splitlines()]


async def test_two_schedulers_share_a_batch(settings: Settings, url: str) -> None:
    """Both run rows of it, no row twice; both tell the same of it, and seal the same, once."""
    async with pair(settings, url, message_rows=4) as both:
        both.ea.respond = both.eb.respond = lambda _: None
        batch_id = await both.a.submit(lines_of(200), shard_rows=10)
        for engine in (both.ea, both.eb):
            await eventually(lambda engine=engine: len(engine.held), lambda count: count == 8)
            engine.respond = answer
        both.ea.release()
        both.eb.release()
        seen = 0
        while True:  # asked in turn, counts never go back
            for running in (both.a, both.b):
                progress = await running.progress(batch_id)
                assert progress.counts.completed >= seen
                seen = progress.counts.completed
            if progress.state != pb.Progress.STATE_ACTIVE:
                break
            await asyncio.sleep(0.01)
        assert min(len(both.ea.sequences), len(both.eb.sequences)) > 8
        assert sorted(both.rows_sent()) == sorted(f"row {row}" for row in range(200))
        output, error = await both.b.sealed(batch_id)
        assert ([line["custom_id"] for line in output], error) == ([f"c{row}" for row in range(200)], [])
        assert (await both.a.progress(batch_id)).state == pb.Progress.STATE_SEALED
        again, _ = await both.a.sealed(batch_id)
        assert again == output
        assert len(list(both.a.blobs(f"output-{batch_id}*"))) == 1


async def test_a_batch_is_known_to_both(settings: Settings, url: str) -> None:
    """What one was given the other can be asked, told to stop, and told to forget, at once."""
    async with pair(settings, url) as both:
        both.ea.respond = both.eb.respond = lambda _: None
        batch_id = await both.a.submit(lines_of(20))
        assert (await both.b.progress(batch_id)).counts.total == 20
        await rpc.call(both.b.stub.StopBatch, pb.StopBatchRequest(batch_id=batch_id, reason=pb.StopBatchRequest.REASON_CANCELLED))
        assert (await both.a.progress(batch_id)).state == pb.Progress.STATE_ENDED
        output, error = await both.a.sealed(batch_id)
        assert (output, {line["error"]["code"] for line in error}) == ([], {"batch_cancelled"})
        await rpc.call(both.b.stub.ForgetBatch, pb.ForgetBatchRequest(batch_id=batch_id))
        answer = await rpc.call(both.a.stub.GetProgress, pb.GetProgressRequest(batch_ids=[batch_id]))
        assert not answer.progress
        assert not both.a.scheduler.intake.batches


async def test_a_stop_at_one_stops_the_other(settings: Settings, url: str) -> None:
    """From the answer on nothing more is recorded, by whomever; what was recorded before stays."""
    async with pair(settings, url) as both:
        both.ea.respond = lambda sequence: answer(sequence) if len(both.ea.sequences) <= 5 else None
        both.eb.respond = lambda _: None
        batch_id = await both.a.submit(lines_of(40), shard_rows=10)
        await eventually(lambda: both.b.progress(batch_id), lambda progress: progress.counts.completed == 5)
        await eventually(lambda: len(both.ea.held), lambda count: count > 0)
        request = pb.StopBatchRequest(batch_id=batch_id, reason=pb.StopBatchRequest.REASON_CANCELLED)
        stopped = (await rpc.call(both.b.stub.StopBatch, request)).progress
        assert stopped.counts.completed == 5
        both.ea.release()  # answers that come too late
        output, error = await both.b.sealed(batch_id)
        assert (len(output), len(error)) == (5, 35)
        await eventually(lambda: both.a.progress(batch_id), lambda progress: progress.running == 0)
        assert (await both.a.progress(batch_id)).counts.completed == 5


async def test_a_batch_without_engines_says_so_at_both(settings: Settings, url: str) -> None:
    """Without any engine each tells why nothing runs, whoever holds the shards; while rows run at the other, none does."""
    missing, none = pb.Progress.WAITING_REASON_MODEL_NOT_AVAILABLE, pb.Progress.WAITING_REASON_UNSPECIFIED
    async with pair(settings, url) as both:
        both.ea.respond = both.eb.respond = lambda _: None
        batch_id = await both.a.submit(lines_of(10), shard_rows=10)
        await eventually(lambda: len(both.ea.held), lambda held: held == 8)  # the only shard is a's, and b has an idle engine
        await eventually(lambda: both.b.progress(batch_id), lambda told: told.HasField("start_time"))
        for running in (both.a, both.b):
            assert (await running.progress(batch_id)).waiting_reason == none
        for engine in (both.ea, both.eb):
            await engine.kill()
        for running in (both.a, both.b):
            await eventually(lambda running=running: running.progress(batch_id), lambda told: told.waiting_reason == missing)
        assert both.b.scheduler.intake.batches[batch_id].elsewhere == 1


async def test_a_drained_engine_is_drained_at_both(settings: Settings, url: str) -> None:
    """One is told, and both send it nothing more; its next incarnation is another matter."""
    async with pair(settings, url) as both:
        await both.eb.register(both.a.stub)  # as real engines do
        state = pb.EngineStatus.STATE_DRAINING
        await rpc.call(both.a.stub.DrainEngine, pb.DrainEngineRequest(engine_id="eb"))
        engines = both.b.scheduler.engines
        await eventually(lambda: engines.status(engines.entries()[0]).state, lambda found: found == state)
        await both.eb.revive(both.b.stub)
        await eventually(lambda: engines.status(engines.entries()[0]).state, lambda found: found != state)


async def test_a_zombie_records_nothing(settings: Settings, url: str) -> None:
    """A scheduler whose leases another took, and that doesn't know it yet, writes to its files; nobody ever reads that."""
    async with pair(settings, url, Ahead(0.0), b_lease=1.5) as both:
        both.ea.respond = lambda sequence: answer(sequence) if len(both.ea.sequences) <= 3 else None
        both.eb.respond = lambda _: None
        batch_id = await both.a.submit(lines_of(16), shard_rows=8)
        await eventually(lambda: both.a.progress(batch_id), lambda progress: progress.counts.completed == 3)
        await eventually(lambda: len(both.ea.held), lambda count: count == 8)
        clock = both.b.scheduler._clock
        assert isinstance(clock, Ahead)
        clock.seconds = 100.0  # for b, a's leases have expired
        await eventually(lambda: len(both.eb.held), lambda count: count == 8)
        late = list(both.ea.held)
        both.ea.release(_too_late)
        await eventually(lambda: sum(b"too late" in line for line in journal_lines(settings, batch_id)), lambda n: n == len(late))
        both.eb.respond = answer
        both.eb.release()
        ended = await both.b.ended(batch_id)
        assert ended.counts.completed == 16
        output, error = await both.a.sealed(batch_id)
        assert (len(output), error) == (16, [])
        assert "too late" not in json.dumps(output)
        assert b"too late" not in await lines_read(both.a, batch_id)
        assert (await both.a.progress(batch_id)).running == 0
        assert [both.rows_sent().count(f"row {row}") for row in range(3)] == [1, 1, 1]


def _too_late(sequence: engine_pb2.Sequence) -> engine_pb2.SequenceResult:
    result = answer(sequence)
    result.body = re.sub(rb'"content": "row', b'"content": "too late row', result.body)
    return result

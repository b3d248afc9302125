"""Engines that are added, asked how they are, and removed: by one scheduler, over its restarts and theirs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from scheduler_mesh import EchoEngine, Mesh, answer, eventually, lines_of, mesh, quick, with_engine

from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings

LOST, READY, DRAINING = pb.EngineStatus.STATE_LOST, pb.EngineStatus.STATE_READY, pb.EngineStatus.STATE_DRAINING


@contextlib.asynccontextmanager
async def served(settings: Settings, engine_id: str = "far", **terms: Any) -> AsyncIterator[EchoEngine]:
    """Run an engine that doesn't register itself."""
    engine = EchoEngine(settings.data, engine_id, **terms)
    await engine.serve()
    try:
        yield engine
    finally:
        await engine.kill()


async def add(running: Mesh, address: str) -> pb.EngineStatus:
    """Add an engine."""
    status: pb.EngineStatus = (await rpc.call(running.stub.AddEngine, pb.AddEngineRequest(address=address))).engine
    return status


async def remove(running: Mesh, engine_id: str) -> pb.EngineStatus:
    """Remove an engine."""
    status: pb.EngineStatus = (await rpc.call(running.stub.RemoveEngine, pb.RemoveEngineRequest(engine_id=engine_id))).engine
    return status


async def listed(running: Mesh) -> dict[str, pb.EngineStatus]:
    """List the engines by id."""
    listing = await rpc.call(running.stub.ListEngines, pb.ListEnginesRequest())
    return {status.engine.engine_id: status for status in listing.engines}


async def is_(running: Mesh, engine_id: str, state: pb.EngineStatus.State) -> pb.EngineStatus:
    """Wait until an engine is in a state."""
    right: Callable[[Any], bool] = lambda found: engine_id in found and found[engine_id].state == state  # noqa: E731
    status: pb.EngineStatus = (await eventually(lambda: listed(running), right))[engine_id]
    return status


async def run(running: Mesh, rows: int = 20) -> set[str]:
    """Run a batch; the engines that its results name."""
    batch_id = await running.submit(lines_of(rows))
    assert (await running.ended(batch_id)).counts.completed == rows
    output, _ = await running.sealed(batch_id)
    return {line["response"]["x_provenance"]["engine"] for line in output}


async def test_an_added_engine_is_asked_how_it_is(settings: Settings) -> None:
    """It runs rows without ever registering; lost, it stays in the list, and a new incarnation at its address is known again."""
    async with mesh(quick(settings)) as running, served(settings) as engine:
        added = await add(running, engine.address)
        assert (added.engine.engine_id, added.engine.address, added.standing) == ("far", engine.address, True)
        await is_(running, "far", READY)
        assert await run(running) == {"far"}
        assert (await add(running, engine.address)).ended == 20  # adding it again changes nothing
        await engine.kill()
        await is_(running, "far", LOST)
        engine.description.incarnation = "2"
        await engine.serve()
        assert (await is_(running, "far", READY)).engine.incarnation == "2"
        assert await run(running) == {"far"}


async def test_what_an_engine_says_of_its_load_is_listed(settings: Settings) -> None:
    """Asked or by itself, it tells it with each heartbeat: news of the same engine, whose stream goes on. A lost one has none."""
    async with mesh(quick(settings)) as running, served(settings) as engine:
        near = await with_engine(running)
        await add(running, engine.address)
        for engine_id in ("far", "e0"):
            await is_(running, engine_id, READY)
        for count in (3, 5):
            engine.load = near.load = engine_pb2.Load(running=count, kv_used=7, kv_capacity=9)
            told: Callable[[Any], bool] = lambda found, load=engine.load: all(one.load == load for one in found.values())  # noqa: E731
            assert len(await eventually(lambda: listed(running), told)) == 2
        assert (engine.streams, near.streams) == (1, 1)
        engine.describes.clear()
        assert not (await is_(running, "far", LOST)).HasField("load")


async def test_what_was_added_stays_so_over_restarts(settings: Settings) -> None:
    """The next scheduler on the same database asks it; what was removed it doesn't, until it is added anew."""
    async with served(settings) as engine:
        async with mesh(quick(settings)) as running:
            await add(running, engine.address)
        async with mesh(quick(settings)) as running:
            await is_(running, "far", READY)
            assert await run(running) == {"far"}
            assert (await remove(running, "far")).standing
            assert await listed(running) == {}
        async with mesh(quick(settings)) as running:
            assert await listed(running) == {}
            await remove(running, "far")  # repeating it changes nothing
            await add(running, engine.address)
            await is_(running, "far", READY)


async def test_an_engine_that_does_not_answer_is_lost(settings: Settings) -> None:
    """One that hangs when it is asked is lost like one that doesn't register, and found when it answers again."""
    async with mesh(quick(settings)) as running, served(settings) as engine:
        await add(running, engine.address)
        await is_(running, "far", READY)
        engine.describes.clear()
        await is_(running, "far", LOST)
        engine.describes.set()
        await is_(running, "far", READY)


async def test_another_engine_at_its_address_is_not_taken_for_it(settings: Settings) -> None:
    """What answers with another id is not the engine that was added: that one is lost."""
    async with mesh(quick(settings)) as running, served(settings) as engine:
        await add(running, engine.address)
        await is_(running, "far", READY)
        engine.description.engine_id = "stranger"
        await is_(running, "far", LOST)
        assert set(await listed(running)) == {"far"}


async def test_an_added_engine_that_talks_nonsense_harms_nobody(settings: Settings) -> None:
    """A description with a time that is none counts for nothing: the engine is lost until it makes sense again."""
    async with mesh(quick(settings)) as running, served(settings) as engine:
        await add(running, engine.address)
        await is_(running, "far", READY)
        engine.description.models[0].create_time.seconds = 1 << 60
        await is_(running, "far", LOST)
        with pytest.raises(errors.InvalidRequest, match="has a model of no time: echo"):
            await engine.register(running.stub)
        engine.description.models[0].create_time.seconds = 1
        await is_(running, "far", READY)
        assert await run(running) == {"far"}


async def test_what_cannot_be_added_is_refused(settings: Settings) -> None:
    """Nobody there, no engine, one without models or slots, one that is there already, words that are no address."""
    async with mesh(quick(settings)) as running, served(settings) as engine:
        near = await with_engine(running, engine_id="near")
        await is_(running, "near", READY)
        said: dict[str, tuple[type[errors.HaywainError], str]] = {
            f"unix:{settings.data}/nobody.sock": (errors.Unavailable, "No engine answers at unix:"),
            settings.address("scheduler"): (errors.InvalidRequest, "is no engine: it has no haywain.engine.v1.EngineService."),
            "somewhere": (errors.InvalidRequest, "'somewhere' is no address of an engine: expected HOST:PORT or unix:/PATH"),
            "http://127.0.0.1:80": (errors.InvalidRequest, "is no address"),
            near.address: (errors.Conflict, f"The engine 'near' is there already: it registers itself at {near.address}."),
        }
        for address, (kind, words) in said.items():
            with pytest.raises(kind) as refused:
                await add(running, address)
            assert words in refused.value.message
        for broken in ("models", "slots", "engine_id"):
            whole = type(engine.description)()
            whole.CopyFrom(engine.description)
            engine.description.ClearField(broken)
            with pytest.raises(errors.InvalidRequest):
                await add(running, engine.address)
            engine.description.CopyFrom(whole)
        assert set(await listed(running)) == {"near"}
        with pytest.raises(errors.NotFound):
            await remove(running, "nobody")


async def test_a_removed_engine_finishes_what_it_runs_and_is_forgotten(settings: Settings) -> None:
    """Its rows end there, no more go to it; then it isn't listed, though it goes on registering. Its next life is listed."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        engine.respond = lambda _: None
        batch_id = await running.submit(lines_of(20))
        await eventually(lambda: len(engine.held), lambda held: held == 8)
        status = await remove(running, "e0")
        assert (status.state, status.active, status.standing) == (DRAINING, 8, False)
        assert set(await listed(running)) == {"e0"}
        engine.release()
        await eventually(lambda: listed(running), lambda found: not found)
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == 8)
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.waiting_reason == 2)
        await engine.register(running.stub)
        assert await listed(running) == {}
        assert len(engine.sequences) == 8
        engine.respond = answer
        await engine.revive(running.stub)
        assert (await running.ended(batch_id)).counts.completed == 20


async def test_a_removed_engine_may_describe_itself_anew(settings: Settings) -> None:
    """The same incarnation stays removed: what it ran waits for another engine."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        engine.respond = lambda _: None
        batch_id = await running.submit(lines_of(4))
        await eventually(lambda: len(engine.held), lambda held: held == 4)
        await remove(running, "e0")
        engine.description.version = "2"
        await engine.register(running.stub)
        await eventually(lambda: listed(running), lambda found: not found)
        await engine.register(running.stub)
        assert await listed(running) == {}
        await with_engine(running, engine_id="e1")
        assert (await running.ended(batch_id)).counts.completed == 4
        assert len(engine.sequences) == 4


async def test_an_added_engine_that_is_removed_ends_its_rows_first(settings: Settings) -> None:
    """While rows run there it is asked on, so it isn't lost meanwhile; then it is gone for good, also when it starts anew."""
    async with mesh(quick(settings)) as running, served(settings) as engine:
        await add(running, engine.address)
        engine.respond = lambda _: None
        batch_id = await running.submit(lines_of(4))
        await eventually(lambda: len(engine.held), lambda held: held == 4)
        heard: Callable[[], float] = lambda: max((one.seen for one in running.scheduler.engines.entries()), default=0.0)  # noqa: E731
        seen = heard()
        await remove(running, "far")
        await eventually(heard, lambda at: at > seen + 1.2)  # four heartbeats
        engine.release()
        assert (await running.ended(batch_id)).counts.completed == 4
        await eventually(lambda: listed(running), lambda found: not found)
        assert len(engine.sequences) == 4
        assert not running.scheduler.engines.standing


async def test_adding_a_drained_engine_again_sends_it_rows(settings: Settings) -> None:
    """An engine that was added has no start that could be seen to undo a drain; adding it does."""
    async with mesh(quick(settings)) as running, served(settings) as engine:
        await add(running, engine.address)
        await is_(running, "far", READY)
        await rpc.call(running.stub.DrainEngine, pb.DrainEngineRequest(engine_id="far"))
        await is_(running, "far", DRAINING)
        await add(running, engine.address)
        await is_(running, "far", READY)
        assert await run(running) == {"far"}


async def test_one_that_registers_as_well_is_one_engine(settings: Settings) -> None:
    """An added engine may register itself, too, by another address: nothing comes of that."""
    async with mesh(quick(settings)) as running, served(settings) as engine:
        await add(running, engine.address)
        await is_(running, "far", READY)
        other = pb.RegisterEngineRequest(engine=engine.description)
        other.engine.address = "127.0.0.1:9"
        other.engine.incarnation = "2"
        for _ in range(3):
            await rpc.call(running.stub.RegisterEngine, other)
        assert (await listed(running))["far"].engine.address == engine.address
        assert await run(running) == {"far"}
        assert engine.streams == 1


async def test_the_list_tells_how_fast_engines_are(settings: Settings) -> None:
    """Tokens a second over the last seconds: of prompts, of those the cached ones, and generated."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)

        def cached(sequence: Any) -> Any:
            result = answer(sequence)
            result.usage.cached_tokens = 1
            return result

        engine.respond = cached
        await running.ended(await running.submit(lines_of(60)))
        status = (await listed(running))["e0"]
        given, output = status.input_tokens_per_second, status.output_tokens_per_second
        assert 0 < output <= 120
        assert given == pytest.approx(1.5 * output)
        assert status.cached_tokens_per_second == pytest.approx(given / 3)

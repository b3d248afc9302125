"""What rows and requests ask for: models by the operator's aliases, and one digest for all rows of a batch."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scheduler_mesh import EchoEngine, Mesh, answer, eventually, lines_of, mesh, quick, with_engine

from haywain import errors, rpc
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings

CHAT = "/v1/chat/completions"


def aliased(settings: Settings, **aliases: str) -> Settings:
    """Give settings with aliases."""
    return quick(settings, aliases=aliases)


async def models(running: Mesh) -> dict[str, list[str]]:
    """List the models with their aliases."""
    listing = await rpc.call(running.stub.ListModels, pb.ListModelsRequest())
    return {model.model: [*model.aliases] for model in listing.models}


async def ask(running: Mesh, model: str) -> dict[str, Any]:
    """Run a request now; what its engine was asked."""
    body = {"messages": [{"role": "user", "content": "hi"}], "seed": 12345678901234567890, "model": model}
    request = pb.CompleteRequest(tenant="default", endpoint=CHAT, model=model, request=json.dumps(body).encode())
    events = [event async for event in rpc.stream(running.stub.Complete, request)]
    assert events[-1].result.status_code == 200
    answered: dict[str, Any] = json.loads(events[-1].result.body)
    return answered


async def ready(running: Mesh, count: int = 1) -> None:
    """Wait for engines."""
    states = lambda: [entry.state for entry in running.scheduler.engines.entries()]  # noqa: E731
    await eventually(states, lambda found: found == [pb.EngineStatus.STATE_READY] * count)


async def test_names_are_made_anew_when_engines_come_or_go(settings: Settings) -> None:
    """What each name means is not made out again for each row that asks, and is right after every change of an engine."""
    async with mesh(aliased(settings, gpt="echo")) as running:
        names = running.scheduler.model_leases.names
        assert names() == {}
        await with_engine(running, engine_id="one")
        found = names()
        assert found == {"echo": "echo", "gpt": "echo"}
        assert names() is found
        other = await with_engine(running, engine_id="two", models=("other",))
        assert names() == {"echo": "echo", "gpt": "echo", "other": "other"}
        other.description.models[0].aliases.append("else")
        await other.register(running.stub)
        assert names()["else"] == "other"
        await rpc.call(running.stub.DrainEngine, pb.DrainEngineRequest(engine_id="two"))
        assert names() == {"echo": "echo", "gpt": "echo"}


async def test_an_alias_means_its_model(settings: Settings) -> None:
    """Models are told with it; a call under it runs on the model, whose engine hears of that alone, and is answered as such."""
    async with mesh(aliased(settings, gpt="echo", tiny="small")) as running:
        engine = EchoEngine(settings.data, models=("echo", "small-1"))
        engine.description.models[1].aliases.append("small")
        await engine.start(running.stub)
        running.engines.append(engine)
        await ready(running)
        assert await models(running) == {"echo": ["gpt"], "small-1": ["small", "tiny"]}
        assert (await ask(running, "gpt"))["model"] == "echo"
        heard = engine.sequences[-1]
        assert heard.model == "echo"
        assert json.loads(heard.request) == {
            "messages": [{"role": "user", "content": "hi"}], "seed": 12345678901234567890, "model": "echo",
        }  # fmt: skip
        assert (await ask(running, "tiny"))["model"] == "small"  # an alias that the engine knows itself is its own affair


async def test_rows_under_an_alias_share_the_engines_of_its_model(settings: Settings) -> None:
    """They are rows of the model, whatever their bodies and the batch's defaults say; engines hear of the model alone."""
    async with mesh(aliased(settings, gpt="echo")) as running:
        engine = await with_engine(running)
        lines = [*lines_of(3), *lines_of(3, model="gpt", first=3), lines_of(1, first=6)[0].replace(b'"model": "echo", ', b"")]
        batch_id = await running.submit(lines, one_model="echo", body_defaults=b'{"model":"gpt"}')
        assert (await running.ended(batch_id)).counts.completed == 7
        assert [json.loads(sequence.request)["model"] for sequence in engine.sequences] == ["echo"] * 7
        assert {sequence.model for sequence in engine.sequences} == {"echo"}


async def test_a_model_of_that_name_wins(settings: Settings) -> None:
    """Where an engine serves a model under the name of an alias, that model is meant."""
    async with mesh(aliased(settings, gpt="echo")) as running:
        await with_engine(running, models=("echo", "gpt"))
        await ready(running)
        assert await models(running) == {"echo": [], "gpt": []}
        assert (await ask(running, "gpt"))["model"] == "gpt"


async def test_an_alias_of_what_nobody_serves_is_refused(settings: Settings) -> None:
    """Like an unknown model, and it is said what the alias stands for."""
    async with mesh(aliased(settings, gpt="nothing")) as running:
        await with_engine(running)
        await ready(running)
        assert await models(running) == {"echo": []}
        with pytest.raises(errors.ModelMissing, match="The model 'gpt' is an alias of 'nothing', which does not exist"):
            await ask(running, "gpt")


async def two(running: Mesh, **terms: Any) -> list[EchoEngine]:
    """Start two engines of one model with different digests."""
    engines = []
    for number in (1, 2):
        engine = EchoEngine(running.settings.data, f"e{number}", **terms)
        engine.description.models[0].digest = f"sha256:{number}"
        await engine.start(running.stub)
        running.engines.append(engine)
        engines.append(engine)
    await ready(running, 2)
    return engines


async def digests(running: Mesh, batch_id: str) -> set[str]:
    """Tell which digests a batch's results name."""
    output, _ = await running.sealed(batch_id)
    return {line["response"]["x_provenance"]["model_digest"] for line in output}


@pytest.mark.parametrize("pinned", [False, True])
async def test_a_batch_may_keep_to_one_digest(settings: Settings, pinned: bool) -> None:
    """With the setting all rows name one digest, though an engine of another has room; without it both are at work."""
    async with mesh(quick(settings, pin_batch_to_digest=pinned, message_rows=4)) as running:
        for engine in await two(running):
            engine.respond = lambda _: None
        batch_id = await running.submit(lines_of(40), shard_rows=10)
        held = lambda: [len(engine.held) for engine in running.engines]  # noqa: E731
        await eventually(held, lambda counts: sorted(counts) == ([0, 8] if pinned else [8, 8]))
        for engine in running.engines:
            engine.respond = answer
            engine.release()
        assert (await running.ended(batch_id)).counts.completed == 40
        assert len(await digests(running, batch_id)) == (1 if pinned else 2)
        other = await running.submit(lines_of(4))  # not bound by what the first one did
        assert (await running.ended(other)).counts.completed == 4


async def test_a_pin_holds_over_a_restart(settings: Settings) -> None:
    """The rest of a batch waits for an engine of its digest, though another is there: model_not_available."""
    settings = quick(settings, pin_batch_to_digest=True)
    async with mesh(settings) as running:
        first, second = await two(running)
        await rpc.call(running.stub.DrainEngine, pb.DrainEngineRequest(engine_id="e2"))
        first.respond = lambda sequence: answer(sequence) if len(first.sequences) <= 3 else None
        batch_id = await running.submit(lines_of(20))
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == 3)
    async with mesh(settings) as running:
        running.engines += [second]
        second.description.incarnation = "2"
        await second.start(running.stub)
        await eventually(lambda: running.scheduler.dispatcher.links.credits(("echo", CHAT, False, None)), bool)
        waiting = pb.Progress.WAITING_REASON_MODEL_NOT_AVAILABLE
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.waiting_reason == waiting)
        later = await running.submit(lines_of(2))
        assert (await running.ended(later)).counts.completed == 2
        assert len(second.sequences) == 2
        running.engines += [first]
        first.respond = answer
        first.description.incarnation = "2"
        await first.start(running.stub)
        assert (await running.ended(batch_id)).counts.completed == 20
        assert await digests(running, batch_id) == {"sha256:1"}
        assert await digests(running, later) == {"sha256:2"}

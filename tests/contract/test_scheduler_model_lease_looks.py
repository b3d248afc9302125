"""What a lease of a model costs: looks at batches."""

from __future__ import annotations

import pytest
from model_lease_calls import lease, release, served
from scheduler_mesh import EchoEngine, eventually, lines_of, mesh, quick

from haywain.settings import Settings
from services.scheduler.batch import Batch


async def test_a_lease_looks_at_the_batches_of_its_model_alone(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grant and its end look once at each open batch with rows of the model, by whatever name, and at no other."""
    async with mesh(quick(settings)) as running:
        engine = EchoEngine(settings.data, models=("echo", "other"))
        engine.description.models[0].aliases.append("parrot")
        engine.respond = lambda _: None
        await engine.start(running.stub)
        running.engines.append(engine)
        await served(running)
        batches = {name: [await running.submit(lines_of(20, model=name)) for _ in range(2)] for name in ("echo", "other", "parrot")}
        await eventually(lambda: len(engine.held), (8).__eq__)  # all that it takes
        dispatcher, looked = running.scheduler.dispatcher, []
        real = dispatcher.refresh

        def refresh(batch: Batch, model: str) -> None:
            looked.append((model, batch.batch_id))
            real(batch, model)

        lease_id = await lease(running, "other")  # a name that is new since the last change is looked at once
        await release(running, lease_id)
        monkeypatch.setattr(dispatcher, "refresh", refresh)
        lease_id = await lease(running)
        mine = sorted((name, batch_id) for name in ("echo", "parrot") for batch_id in batches[name])
        assert sorted(looked) == mine
        await release(running, lease_id)
        assert sorted(looked) == sorted(2 * mine)

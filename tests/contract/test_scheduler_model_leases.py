"""What a lease of a model means for rows and calls, while it lasts and when it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from model_lease_calls import LEASED, Offset, chat, hand, lease, release, served, state, waits
from scheduler_engine import CHAT
from scheduler_mesh import EchoEngine, answer, eventually, lines_of, mesh, quick, with_engine

from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import Settings


async def test_rows_wait_while_their_model_is_leased(settings: Settings) -> None:
    """What is at an engine ends there, nothing more is sent, and the batch says why; when the lease ends it goes on by itself."""
    async with mesh(quick(settings, message_rows=4)) as running:
        engine = await with_engine(running, slots=4)
        engine.respond = lambda _: None
        batch_id = await running.submit(lines_of(20))
        await eventually(lambda: len(engine.held), lambda held: held == 4)
        lease_id = await lease(running)
        other = await running.submit(lines_of(3, first=100))
        assert (await waits(running, other)).queued == 3
        engine.respond = answer
        engine.release()
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == 4)
        progress = await waits(running, batch_id)
        assert (progress.running, progress.queued) == (0, 16)
        assert len(engine.sequences) == 4
        await release(running, lease_id)
        for ended in (batch_id, other):
            await running.ended(ended)
        assert len((await running.sealed(batch_id))[0]) == 20
        assert len(engine.sequences) == 23


async def test_only_the_leased_model_waits(settings: Settings) -> None:
    """In a batch of several models the rows of the others run, and a batch that runs has no reason to wait."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running, models=("echo", "other"))
        await served(running)
        lease_id = await lease(running)
        batch_id = await running.submit(lines_of(3) + lines_of(4, model="other", first=10))
        await waits(running, batch_id)
        await eventually(lambda: running.progress(batch_id), lambda progress: progress.counts.completed == 4)
        assert {sequence.model for sequence in engine.sequences} == {"other"}
        assert await chat(running, model="other") == "hello"
        await release(running, lease_id)
        await running.ended(batch_id)


async def test_calls_name_the_lease(settings: Settings) -> None:
    """A request with the lease runs; one without, or with another, is refused at once with until when, by whatever name."""
    async with mesh(quick(settings)) as running:
        engine = EchoEngine(settings.data, models=("echo", "other"))
        engine.description.models[0].aliases.append("parrot")
        await engine.start(running.stub)
        running.engines.append(engine)
        await served(running)
        lease_id = await lease(running, "parrot", ttl_seconds=1000, holder="me")
        other = await lease(running, "other")
        for name in ("echo", "parrot"):
            assert await chat(running, lease_id, name) == "hello"
            for wrong in ("", "lease_nope", other):
                with pytest.raises(errors.LeaseUnavailable, match="leased by 'me' until 2") as refused:
                    await chat(running, wrong, name)
                assert 1 <= refused.value.retry_after <= 1000
        await release(running, lease_id)
        assert await chat(running, other) == "hello"
        with pytest.raises(errors.Conflict, match="was released"):
            await chat(running, lease_id)
        with pytest.raises(errors.LeaseMissing):
            await chat(running, "lease_nope")


async def test_calls_that_wait_are_refused_by_a_new_lease(settings: Settings) -> None:
    """A request that waits for a slot doesn't wait for somebody's lease: it is refused when the model is leased."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running, slots=1)
        engine.respond = lambda _: None
        await served(running)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(chat(running))
            await eventually(lambda: len(engine.held), lambda held: held == 1)
            second = group.create_task(refused(chat(running)))
            await eventually(lambda: len(running.scheduler.dispatcher.calls), lambda waiting: waiting == 1)
            lease_id = await lease(running)
            assert (await second).code == "lease_unavailable"
            engine.respond = answer
            engine.release()
            assert await first == "hello"
        assert await chat(running, lease_id) == "hello"
        assert len(running.scheduler.dispatcher.calls) == 0


async def refused(call: Any) -> errors.LeaseUnavailable:
    """Give what a call is refused with."""
    with pytest.raises(errors.LeaseUnavailable) as found:
        await call
    return found.value


async def test_the_batch_that_has_the_lease_runs(settings: Settings) -> None:
    """It runs while others wait, the holder may still call, and when it is sealed the lease is over and the others go on."""
    async with mesh(quick(settings)) as running:
        await with_engine(running)
        await served(running)
        lease_id = await lease(running)
        mine = await running.submit(lines_of(5))
        other = await running.submit(lines_of(5, first=10))
        await waits(running, mine)
        assert (await hand(running, lease_id, mine)).batch_id == mine
        await running.ended(mine)
        assert await chat(running, lease_id) == "hello"
        assert (await running.progress(other)).waiting_reason == LEASED
        await running.sealed(mine)
        assert await state(running, lease_id) == pb.ModelLease.STATE_RELEASED
        await running.ended(other)


async def test_a_lease_goes_to_a_batch_of_its_model(settings: Settings) -> None:
    """A batch without rows of the model left, or that has ended, gets no lease; one that isn't there yet does, and ends it."""
    async with mesh(quick(settings)) as running:
        await with_engine(running, models=("echo", "other"))
        await served(running)
        ended = await running.submit(lines_of(1))
        await running.ended(ended)
        lease_id = await lease(running)
        batch_id = await running.submit(lines_of(1))
        other = await lease(running, "other")
        with pytest.raises(errors.InvalidRequest, match=r"'other', but the batch .* is of 'echo'"):
            await hand(running, other, batch_id)
        with pytest.raises(errors.Conflict, match="no rows left"):
            await hand(running, lease_id, ended)
        with pytest.raises(errors.BatchMissing):
            await hand(running, lease_id, "no id")
        await hand(running, other, "batch_coming")
        later = await running.submit(lines_of(3, model="other"), batch_id="batch_coming")
        await running.ended(later)
        await hand(running, lease_id, "batch_never")
        await rpc.call(running.stub.ForgetBatch, pb.ForgetBatchRequest(batch_id="batch_never"))
        assert await state(running, lease_id) == pb.ModelLease.STATE_RELEASED
        await running.ended(batch_id)


async def test_a_lease_holds_over_a_restart(settings: Settings) -> None:
    """The next life of the scheduler knows the lease, its batch, and the aliases, before it sends anything."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        await served(running)
        lease_id = await lease(running)
        mine, other = await running.submit(lines_of(3)), await running.submit(lines_of(3, first=10))
        await waits(running, other)
        engine.respond = lambda _: None
        await hand(running, lease_id, mine)
        await eventually(lambda: len(engine.held), lambda held: held == 3)
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running)
        await running.ended(mine)
        assert {json.loads(sequence.request)["messages"][0]["content"] for sequence in engine.sequences} == {
            "row 0", "row 1", "row 2",
        }  # fmt: skip
        assert (await running.progress(other)).waiting_reason == LEASED
        assert (await refused(chat(running))).code == "lease_unavailable"
        assert await chat(running, lease_id) == "hello"
        await release(running, lease_id)
        await running.ended(other)


async def test_time_ends_a_lease_for_rows_and_calls(settings: Settings) -> None:
    """When nobody renews, everything goes on by itself: calls the same moment, rows the next."""
    clock = Offset()
    async with mesh(quick(settings), clock) as running:
        await with_engine(running)
        await served(running)
        lease_id = await lease(running, ttl_seconds=1000)
        batch_id = await running.submit(lines_of(5))
        await waits(running, batch_id)
        clock.seconds = 900
        await rpc.call(running.stub.RenewModelLease, pb.RenewModelLeaseRequest(lease_id=lease_id))
        clock.seconds = 1500
        assert (await refused(chat(running))).retry_after <= 400
        assert (await running.progress(batch_id)).waiting_reason == LEASED
        clock.seconds = 1950
        assert await chat(running) == "hello"
        with pytest.raises(errors.Conflict, match="has expired"):
            await chat(running, lease_id)
        await running.ended(batch_id)
        await lease(running)


async def test_rows_of_a_lost_engine_wait_as_well(settings: Settings) -> None:
    """Rows that were at an engine that was lost are under the lease like the others, and tried a few at a time when it ends."""
    async with mesh(quick(settings)) as running:
        engine = await with_engine(running, engine_id="e0")
        engine.respond = lambda _: None
        batch_id = await running.submit(lines_of(6))
        await eventually(lambda: len(engine.held), lambda held: held == 6)
        lease_id = await lease(running)
        await engine.kill()
        running.engines.remove(engine)
        heir = await with_engine(running, engine_id="e1")
        await waits(running, batch_id)
        assert await chat(running, lease_id) == "hello"
        assert [sequence.lane for sequence in heir.sequences] == [engine_pb2.LANE_INTERACTIVE]
        await release(running, lease_id)
        await running.ended(batch_id)
        assert len((await running.sealed(batch_id))[0]) == 6
        assert heir.most == 2


async def test_a_grant_of_which_nobody_heard_is_respected(settings: Settings) -> None:
    """When it isn't known what became of a grant, SQL is asked: the model is leased by whom it says, until the time is over."""
    async with mesh(quick(settings)) as running:
        await with_engine(running)
        await served(running)
        leases = running.scheduler.model_leases
        real = leases._store.acquire

        async def lost(wish: Any) -> Any:
            await real(wish)
            raise errors.Unavailable("The answer was lost.")

        leases._store.acquire = lost  # type: ignore[method-assign]
        with pytest.raises(errors.Unavailable):
            await lease(running, request_id="create_1")
        leases._store.acquire = real  # type: ignore[method-assign]
        await eventually(leases.active, bool)
        assert (await refused(chat(running))).code == "lease_unavailable"
        assert await lease(running, request_id="create_1") == leases.active()[0].lease_id


async def test_a_name_that_comes_later_is_the_model_s(settings: Settings) -> None:
    """An alias that an engine brings while the model is leased is under the lease from the first moment."""
    async with mesh(quick(settings)) as running:
        await with_engine(running)
        await served(running)
        await lease(running)
        other = EchoEngine(settings.data, "e1")
        other.description.models[0].aliases.append("parrot")
        await other.start(running.stub)
        running.engines.append(other)
        await eventually(lambda: running.scheduler.dispatcher.links.serves(("parrot", CHAT, False, None)), bool)
        assert (await refused(chat(running, model="parrot"))).code == "lease_unavailable"
        assert running.scheduler.model_leases.lets("batch_any", "other")
        assert not running.scheduler.model_leases.lets("batch_any", "parrot")


async def test_rows_that_were_chosen_are_kept_back(settings: Settings) -> None:
    """A row that was chosen before the lease, and is read when it is there, isn't sent."""
    async with mesh(quick(settings)) as running:
        await with_engine(running)
        await served(running)
        sender, read, gate = running.scheduler.dispatcher.sender, asyncio.Event(), asyncio.Event()
        real = sender._read

        async def slow(*terms: Any) -> Any:
            read.set()
            await gate.wait()
            return await real(*terms)

        sender._read = slow  # type: ignore[method-assign]
        batch_id = await running.submit(lines_of(4))
        await read.wait()
        lease_id = await lease(running)
        gate.set()
        assert (await waits(running, batch_id)).queued == 4
        await release(running, lease_id)
        await running.ended(batch_id)

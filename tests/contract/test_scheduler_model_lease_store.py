"""Model leases in SQL: one for each model, whoever asks, for as long as was said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from haywain import errors
from haywain.clock import FakeClock
from haywain.db import Database, open_database
from services.scheduler.model_lease_store import ModelLease, ModelLeaseStore, Wish
from services.scheduler.model_leases import VIEW_SECONDS, ModelLeases

_SQL = Path("services/scheduler/sql").absolute()


@pytest.fixture
async def database(database_url: str, data_dir: Path) -> AsyncIterator[Database]:
    """Give a database without leases."""
    opened = await open_database(database_url, _SQL, data_dir / "scheduler.db")
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that stands still."""
    return FakeClock()


@pytest.fixture
def store(database: Database, clock: FakeClock) -> ModelLeaseStore:
    """Give the leases as one scheduler has them."""
    return ModelLeaseStore(database, clock, "scheduler")


def wish(**terms: Any) -> Wish:
    """Ask for a minute of model m."""
    return Wish(**({"tenant": "t", "model": "m", "holder": "me", "metadata": {"a": "b"}, "ttl_seconds": 60} | terms))


async def granted(store: ModelLeaseStore, **terms: Any) -> ModelLease:
    """Lease a model that is free."""
    lease, replayed = await store.acquire(wish(**terms))
    assert not replayed
    return lease


async def test_a_lease_is_kept_as_it_was_asked_for(store: ModelLeaseStore, clock: FakeClock) -> None:
    """What is stored is what was wished, with NUL and all; its end is as far off as was said."""
    lease = await granted(store, holder="me \0 ü", metadata={"ключ": "\0"})
    assert (lease.model, lease.holder, lease.metadata, lease.ttl_seconds) == ("m", "me \0 ü", {"ключ": "\0"}, 60)
    assert (lease.create_time, lease.expire_time, lease.batch_id, lease.state(clock.now())) == (
        clock.now(), clock.now() + 60, "", "active",
    )  # fmt: skip
    assert await store.get("t", lease.lease_id) == lease
    with pytest.raises(errors.LeaseMissing):
        await store.get("other", lease.lease_id)


async def test_a_model_has_one_holder(store: ModelLeaseStore, database: Database, clock: FakeClock) -> None:
    """Of many that ask at the same time, at several schedulers, one gets the model; another model is another matter."""
    stores = [store, ModelLeaseStore(database, clock, "scheduler-2")]
    outcomes = await asyncio.gather(*(stores[at % 2].acquire(wish(holder=f"h{at}")) for at in range(8)), return_exceptions=True)
    good = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    bad = [outcome for outcome in outcomes if isinstance(outcome, errors.LeaseUnavailable)]
    assert (len(good), len(bad)) == (1, 7)
    assert {error.retry_after for error in bad} == {60}
    assert f"by '{good[0][0].holder}'" in bad[0].message
    await granted(store, model="n")
    assert {lease.model for lease in await store.live()} == {"m", "n"}


async def test_time_ends_a_lease(store: ModelLeaseStore, clock: FakeClock) -> None:
    """At its end, not before, a lease is over, and the model is anybody's; what is over can't be renewed or handed over."""
    lease = await granted(store)
    clock.advance(59.5)
    with pytest.raises(errors.LeaseUnavailable) as refused:
        await store.acquire(wish(tenant="other"))
    assert refused.value.retry_after == 1
    assert "'me'" not in refused.value.message
    clock.advance(0.5)
    assert await store.live() == []
    for change in (store.renew("t", lease.lease_id, 5), store.hand("t", lease.lease_id, "batch_a")):
        with pytest.raises(errors.Conflict, match="has expired") as over:
            await change
        assert over.value.code == "lease_expired"
    assert (await store.release("t", lease.lease_id)).state(clock.now()) == "expired"
    other = await granted(store, tenant="other")
    assert [one.lease_id for one in await store.live()] == [other.lease_id]
    assert (await store.get("t", lease.lease_id)).end_time == lease.expire_time


async def test_a_renewal_counts_from_now(store: ModelLeaseStore, clock: FakeClock) -> None:
    """A lease ends so long after its renewal as was said, else as it was granted for; it can be made shorter."""
    lease = await granted(store)
    clock.advance(30)
    assert (await store.renew("t", lease.lease_id, 0)).expire_time == clock.now() + 60
    assert (await store.renew("t", lease.lease_id, 7_000)).expire_time == clock.now() + 7_000
    shorter = await store.renew("t", lease.lease_id, 1)
    assert (shorter.expire_time, shorter.ttl_seconds) == (clock.now() + 1, 60)
    clock.advance(1)
    await granted(store)


async def test_a_release_is_final(store: ModelLeaseStore, clock: FakeClock) -> None:
    """Who releases a lease twice ends nobody else's, and it stays as it ended."""
    lease = await granted(store)
    clock.advance(1)
    released = await store.release("t", lease.lease_id)
    assert (released.ended, released.end_time) == ("released", clock.now())
    await granted(store)
    clock.advance(1)
    assert await store.release("t", lease.lease_id) == released
    assert len(await store.live()) == 1
    with pytest.raises(errors.Conflict, match="was released"):
        await store.renew("t", lease.lease_id, 0)


async def test_a_lease_goes_to_one_batch(store: ModelLeaseStore) -> None:
    """It can be handed to the same batch again, not to another."""
    lease = await granted(store)
    for _ in range(2):
        assert (await store.hand("t", lease.lease_id, "batch_a")).batch_id == "batch_a"
    with pytest.raises(errors.Conflict, match="'batch_a' already"):
        await store.hand("t", lease.lease_id, "batch_b")


async def test_the_same_request_is_granted_once(store: ModelLeaseStore, clock: FakeClock) -> None:
    """A caller's repeat gets the lease as it is; a client's key gets it as it was, for a day, whatever became of it."""
    lease = await granted(store, request_id="r", idempotency_key="k", fingerprint="f")
    assert await store.acquire(wish(request_id="r")) == (lease, False)
    await store.hand("t", lease.lease_id, "batch_a")
    await store.release("t", lease.lease_id)
    assert await store.acquire(wish(idempotency_key="k", fingerprint="f")) == (lease, True)
    assert (await store.acquire(wish(request_id="r")))[0].ended == "released"
    with pytest.raises(errors.KeyReused):
        await store.acquire(wish(idempotency_key="k", fingerprint="g"))
    await granted(store, tenant="other", idempotency_key="k", fingerprint="f")
    clock.advance(86_401)
    again = await granted(store, idempotency_key="k", fingerprint="f")
    assert again.lease_id != lease.lease_id


async def test_pages_go_through_all(store: ModelLeaseStore, clock: FakeClock) -> None:
    """Every lease of a tenant is on one page, newest first, also when they are of one moment."""
    made = [await granted(store, model=f"m{number}") for number in range(5)]
    await granted(store, model="x", tenant="other")
    found: list[ModelLease] = []
    while page := await store.page("t", after=found[-1].lease_id if found else "", size=2):
        found += page
    assert found == made[::-1]
    with pytest.raises(errors.NoSuchCursor):
        await store.page("t", after="lease_nope", size=2)


async def test_what_ended_long_ago_is_forgotten(store: ModelLeaseStore, clock: FakeClock) -> None:
    """The sweep writes down what has expired, and forgets it after a day, with who respected it; an active lease stays."""
    old = await granted(store)
    await store.see([old.lease_id, "lease_of_nobody"])
    assert await store.seen(old.lease_id) == {"scheduler"}
    clock.advance(60)
    await store.sweep()
    assert (await store.get("t", old.lease_id)).ended == "expired"
    lasting = await granted(store, ttl_seconds=200_000)
    clock.advance(86_400.5)
    await store.sweep()
    with pytest.raises(errors.LeaseMissing):
        await store.get("t", old.lease_id)
    assert await store.seen(old.lease_id) == set()
    assert await store.live() == [lasting]


async def test_what_was_held_back_during_a_look_goes_on_after_it(
    store: ModelLeaseStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were not sent since a look took long are looked at again when it is through, though no lease has changed."""
    leases, real = ModelLeases(store, clock, ("other",), alone=False), store.live
    await leases.look()
    asked: list[bool] = []
    leases.changed = lambda: asked.append(leases.lets("batch", "m"))

    async def live() -> list[ModelLease]:
        clock.advance(VIEW_SECONDS - 1)
        asked.append(leases.lets("batch", "m"))
        return await real()

    monkeypatch.setattr(store, "live", live)
    clock.advance(2)
    await leases.look()
    assert asked == [False, True]

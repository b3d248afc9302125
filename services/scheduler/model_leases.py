"""Model leases, and what they mean for rows and calls: while a model is leased, nothing runs on it but what the lease lets through.

    acquire ──▶ SQL ──▶ memory ──▶ `changed`: rows and calls of others wait or are refused      a call names the lease,
                          ▲                                                                     a batch has it in its hands
                          └── alone: the clock ends it; several schedulers: what SQL says, twice a second

A lease is of a model, by whatever name a request means it. What is at an engine already ends there.

With several schedulers a grant is answered only when each of them has said in SQL that it respects it, or after `VIEW_SECONDS`: one
that has not read SQL for so long sends no rows, and takes no calls before it has. What ends or changes hands is known everywhere
after one look, half a second. A lease whose time is over is over when SQL says so, since another scheduler may have renewed it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping

from haywain import crash, errors, ids, log
from haywain.clock import Clock
from haywain.db import Database
from haywain.settings import Settings
from services.scheduler.calls import Call
from services.scheduler.look import Look
from services.scheduler.model_lease_store import ModelLease, ModelLeaseStore, Wish, ended, unavailable

__all__ = ["VIEW_SECONDS", "ModelLeases"]

VIEW_SECONDS = 5.0
"""What a scheduler of several knows of leases may be so old, not older."""
_LOOK_SECONDS = 0.5
_TICK_SECONDS = 0.25
"""The wall clock may be set: its end is not slept towards in one go."""
_ASK_SECONDS = 0.1
_log = log.get()


class ModelLeases:
    """The active leases as this scheduler knows them."""

    def __init__(self, store: ModelLeaseStore, clock: Clock, others: Collection[str], *, alone: bool) -> None:
        """`others` are the names of the other schedulers; `alone`: there is nobody else who changes leases."""
        self._store = store
        self._clock = clock
        self._others = frozenset(others)
        self._alone = alone
        self._by_model: dict[str, ModelLease] = {}
        self._acknowledged: set[str] = set()
        self._looks = Look(self._look)
        self._looked_at = float("-inf")
        self._blind = 0
        """How often what was known had become too old."""
        self._doubtful = False
        """SQL may have something else: nobody knows what became of a change."""
        self._woken = asyncio.Event()
        self.names: Callable[[], Mapping[str, str]] = dict
        """Gives the ids of the models served, by every name of theirs."""
        self._ids: Mapping[str, str] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called when other rows and calls may run than before."""

    @classmethod
    def of(cls, settings: Settings, database: Database, clock: Clock, *, alone: bool) -> ModelLeases:
        """Make those of a scheduler with these settings; its database is open."""
        mine = settings.scheduler.replica
        others = {*settings.replicas("scheduler")} - {mine}
        return cls(ModelLeaseStore(database, clock, mine), clock, others, alone=alone)

    def state(self, lease: ModelLease) -> str:
        """Tell what a lease is by now: `active`, `expired`, `released`."""
        return lease.state(self._clock.now())

    def active(self) -> list[ModelLease]:
        """List the leases that are respected now."""
        return [lease for lease in self._by_model.values() if self._counts(lease)]

    # -- what may run -----------------------------------------------------------------------------------------------------------

    def lets(self, batch_id: str, model: str) -> bool:
        """Tell whether a batch's rows of a model may be sent."""
        if self.stale():
            return False
        return not self._by_model or (lease := self._of(model)) is None or lease.batch_id == batch_id

    def refusal(self, call: Call) -> errors.LeaseUnavailable | None:
        """Tell why a call may not run, None when it may."""
        lease = self._of(call.request.model) if self._by_model else None
        if lease is None or (lease.lease_id, lease.tenant) == (call.request.lease_id, call.request.tenant or "default"):
            return None
        return unavailable(lease, self._clock.now(), call.request.tenant or "default")

    def holder(self, model: str) -> object:
        """Tell who has a model: a lease, and the batch that it was handed to; another answer after a time when nobody knew."""
        lease = self._of(model) if self._by_model else None
        return self._blind, lease and (lease.lease_id, lease.batch_id)

    def stale(self) -> bool:
        """Tell whether others may have leased something that isn't known here."""
        return not self._alone and self._clock.monotonic() - self._looked_at > VIEW_SECONDS

    async def admit(self, call: Call) -> None:
        """See whether a call may run; what it names must be a lease that is active.

        Raises LeaseUnavailable, LeaseMissing, Conflict for one that is over, Unavailable when that can't be known.
        """
        if self.stale() or (not self._alone and self.refusal(call) is not None):
            await self.look()
        if (error := self.refusal(call)) is not None:
            raise error
        wanted, tenant = call.request.lease_id, call.request.tenant or "default"
        if wanted and all((lease.lease_id, lease.tenant) != (wanted, tenant) for lease in self.active()):
            lease = await self.get(tenant, wanted)
            if self.state(lease) != "active":
                raise ended(lease, self._clock.now())

    def _of(self, name: str) -> ModelLease | None:
        if name not in self._ids:
            self._ids = self.names()  # an engine may have brought it
        lease = self._by_model.get(self._ids.get(name, name))
        return lease if lease is not None and self._counts(lease) else None

    def _counts(self, lease: ModelLease) -> bool:
        return not self._alone or lease.expire_time > self._clock.now()

    # -- changes ----------------------------------------------------------------------------------------------------------------

    async def acquire(self, wish: Wish) -> tuple[ModelLease, bool]:
        """Lease a model; True with the lease when the same request got it before. Raises LeaseUnavailable, KeyReused."""
        async with self._changing():
            lease, replayed = await self._store.acquire(wish)
            crash.point("scheduler:model-lease-stored")
            stored_at = self._clock.monotonic()
            if not replayed and self.state(lease) == "active":
                self._hold(lease)
                _log.info("model.leased", lease_id=lease.lease_id, model=lease.model, ttl_seconds=lease.ttl_seconds)
        if self._others:
            await self._respected(lease.lease_id, stored_at + VIEW_SECONDS)
        return lease, replayed

    async def renew(self, tenant: str, lease_id: str, ttl_seconds: int) -> ModelLease:
        """Let a lease last so long from now on, 0 for as long as it was granted. Raises LeaseMissing, Conflict when it is over."""
        async with self._changing():
            lease = await self._store.renew(tenant, _checked(lease_id), ttl_seconds)
            self._hold(lease)
        return lease

    async def release(self, tenant: str, lease_id: str) -> ModelLease:
        """End a lease; one that is over stays as it is. Raises LeaseMissing."""
        async with self._changing():
            lease = await self._store.release(tenant, _checked(lease_id))
            self._let_go(lease)
        return lease

    async def hand(self, tenant: str, lease_id: str, batch_id: str, models: Collection[str]) -> ModelLease:
        """Hand a lease to a batch, which has rows of these models; none when it isn't known yet.

        Raises LeaseMissing, InvalidRequest when it has no rows of the lease's model, Conflict when the lease is over or another's.
        """
        lease = await self.get(tenant, lease_id)
        meant = self.names()
        if models and lease.model not in {meant.get(model, model) for model in models}:
            listed = ", ".join(f"'{model}'" for model in sorted(models)[:10])
            message = f"The lease '{lease_id}' is of the model '{lease.model}', but the batch '{batch_id}' is of {listed}."
            raise errors.InvalidRequest(message, code="mismatched_model", param="lease_id")
        async with self._changing():
            lease = await self._store.hand(tenant, lease_id, batch_id)
            self._hold(lease)
        _log.info("model.lease_handed", lease_id=lease_id, batch_id=batch_id)
        return lease

    async def batch_ended(self, batch_id: str) -> None:
        """End the leases that a batch has. Raises Unavailable."""
        if not self._alone:
            await self.look()
        for lease in list(self._by_model.values()):
            if lease.batch_id == batch_id:
                await self.release(lease.tenant, lease.lease_id)
                crash.point("scheduler:model-lease-ended")

    async def get(self, tenant: str, lease_id: str) -> ModelLease:
        """Describe a lease, also one that is over. Raises LeaseMissing."""
        return await self._store.get(tenant, _checked(lease_id))

    async def page(self, tenant: str, *, after: str, size: int) -> list[ModelLease]:
        """Read a page, newest first. Raises NoSuchCursor."""
        if after and not ids.is_one(after):
            raise errors.NoSuchCursor(f"No lease found with id '{after}'.", param="after")
        return await self._store.page(tenant, after=after, size=size)

    async def sweep(self) -> None:
        """Forget leases that ended long ago."""
        await self._store.sweep()

    @contextlib.asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Let SQL and memory change together, one change after the other."""
        async with self._looks.turn:
            try:
                yield
            except BaseException as error:
                if not isinstance(error, errors.HaywainError) or isinstance(error, errors.Unavailable):
                    self._doubtful = True
                    self._woken.set()
                raise

    def _hold(self, lease: ModelLease) -> None:
        before = self._by_model.get(lease.model)
        self._by_model[lease.model], self._ids = lease, self.names()
        self._woken.set()
        if before is None or (before.lease_id, before.batch_id) != (lease.lease_id, lease.batch_id):
            self.changed()

    def _let_go(self, lease: ModelLease) -> None:
        held = self._by_model.get(lease.model)
        if held is not None and held.lease_id == lease.lease_id:
            del self._by_model[lease.model]
            self.changed()

    # -- time, and other schedulers ---------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Know the leases of an earlier life. Raises Unavailable."""
        await self.look()

    async def run(self) -> None:
        """End leases whose time is over, and see what others did, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._woken.wait()
            self._woken.clear()
            if self._doubtful or not self._alone:
                with contextlib.suppress(errors.HaywainError):  # the next look will do; meanwhile `stale` says what that means
                    await self.look()
            self._ids = self.names() if self._by_model else {}
            for lease in [lease for lease in self._by_model.values() if not self._counts(lease)]:
                _log.info("model.lease_expired", lease_id=lease.lease_id, model=lease.model)
                self._let_go(lease)

    def _pause(self) -> float | None:
        """Tell how long nothing can happen that nobody says."""
        if not self._alone or self._doubtful:
            return _LOOK_SECONDS
        if not self._by_model:
            return None
        first = min(lease.expire_time for lease in self._by_model.values())
        return min(_TICK_SECONDS, max(0.001, first - self._clock.now()))

    async def look(self) -> None:
        """Know the leases as SQL has them by now. Raises Unavailable."""
        await self._looks()

    async def _look(self) -> None:
        began = self._clock.monotonic()
        found = {lease.model: lease for lease in await self._store.live()}
        was_stale, self._looked_at = self.stale(), began  # it may have become so while this one read
        self._blind += was_stale
        news = _rights(found) != _rights(self._by_model)
        self._by_model, self._doubtful, self._ids = found, False, self.names()
        if news or was_stale:
            self.changed()
        here = {lease.lease_id for lease in found.values()}
        if self._others and (new := here - self._acknowledged):
            await self._store.see(new)
        self._acknowledged = here

    async def _respected(self, lease_id: str, until: float) -> None:
        """Wait until every other scheduler respects a lease, or must do without its rows and calls."""
        while self._clock.monotonic() <= until:
            with contextlib.suppress(errors.HaywainError):
                if self._others <= await self._store.seen(lease_id):
                    return
            await asyncio.sleep(_ASK_SECONDS)


def _rights(leases: dict[str, ModelLease]) -> dict[str, tuple[str, str]]:
    return {model: (lease.lease_id, lease.batch_id) for model, lease in leases.items()}


def _checked(lease_id: str) -> str:
    if not ids.is_one(lease_id):
        raise errors.LeaseMissing(f"No lease found with id '{lease_id}'.", param="lease_id")
    return lease_id

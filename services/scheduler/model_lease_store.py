"""Model leases in SQL, which alone decides who has a model.

    acquire ──▶ active ──release──▶ released        a batch's end releases the lease that was handed to it
                 │  ▲ renew
                 └──┴── `expire_time` passed ──▶ expired

An active lease is a row with an empty `ended`; a unique index lets a model have one. One whose time has passed is over, whether or
not somebody has written that down: `acquire` does, and the sweep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from haywain import errors, ids
from haywain.clock import Clock
from haywain.db import Database, Row, Transaction

__all__ = ["ModelLease", "ModelLeaseStore", "Wish", "ended", "unavailable"]

KEPT_SECONDS = 86_400.0
"""An ended lease, and the answer under an idempotency key."""


class ModelLease(msgspec.Struct, frozen=True, kw_only=True):
    """The exclusive, expiring right to use a model."""

    lease_id: str
    tenant: str
    model: str
    """Its id, never an alias."""
    holder: str
    metadata: dict[str, str]
    ttl_seconds: int
    """As granted; renewals may differ."""
    create_time: float
    expire_time: float
    batch_id: str
    """The batch that it was handed to; empty for none."""
    ended: str
    """`released` or `expired`; empty while nobody has written it down."""
    end_time: float | None

    def state(self, now: float) -> str:
        """Tell what it is by now: `active`, `expired`, `released`."""
        return self.ended or ("expired" if self.expire_time <= now else "active")


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    tenant: str
    model: str
    holder: str
    metadata: dict[str, str]
    ttl_seconds: int
    request_id: str = ""
    """The caller's; the same again is the same request."""
    idempotency_key: str = ""
    """The client's."""
    fingerprint: str = ""


def unavailable(lease: ModelLease, now: float, tenant: str) -> errors.LeaseUnavailable:
    """Say that somebody else has a model, and until when."""
    left = max(1, math.ceil(lease.expire_time - now))
    until = _utc(lease.expire_time)
    whose = f" by '{lease.holder}'" if lease.holder and lease.tenant == tenant else ""
    message = f"The model '{lease.model}' is leased{whose} until {until}, for {left} more seconds if nobody renews or releases it."
    return errors.LeaseUnavailable(message, param="model", retry_after=left)


class ModelLeaseStore:
    """The leases of all tenants. A lease of another tenant is answered like one that never was."""

    def __init__(self, database: Database, clock: Clock, owner: str) -> None:
        """`owner` is the scheduler's name."""
        self._database = database
        self._clock = clock
        self._owner = owner

    async def acquire(self, wish: Wish) -> tuple[ModelLease, bool]:
        """Grant a lease; True with it when it was granted before, to the same request: then as it was granted.

        Raises LeaseUnavailable, KeyReused.
        """

        def acquire(tx: Transaction) -> tuple[ModelLease, bool]:
            now = self._clock.now()
            if earlier := _earlier(tx, wish, now):
                return earlier
            tx.execute("expire_model_leases", now=now)
            if row := tx.fetch_one("model_lease_of_model", model=wish.model):
                raise unavailable(_lease(row), now, wish.tenant)
            terms = msgspec.structs.asdict(wish)
            del terms["holder"], terms["metadata"]
            labels = msgspec.json.encode((wish.holder, wish.metadata)).decode()
            lease_id = ids.new("lease_")
            tx.execute("insert_model_lease", **terms, lease_id=lease_id, labels=labels, now=now, until=now + wish.ttl_seconds)
            return _of(tx, wish.tenant, lease_id), False

        return await self._database.write(acquire)

    async def get(self, tenant: str, lease_id: str) -> ModelLease:
        """Read one, also one that is over. Raises LeaseMissing."""
        return await self._database.read(lambda tx: _of(tx, tenant, lease_id))

    async def page(self, tenant: str, *, after: str, size: int) -> list[ModelLease]:
        """Read a page, newest first, behind the lease `after` (empty: from the start). Raises NoSuchCursor."""

        def page(tx: Transaction) -> list[ModelLease]:
            if not after:
                return [_lease(row) for row in tx.fetch("first_model_leases", tenant=tenant, size=size)]
            try:
                last = _of(tx, tenant, after)
            except errors.LeaseMissing as error:
                raise errors.NoSuchCursor(error.message, param="after") from None
            place = {"create_time": last.create_time, "lease_id": after}
            return [_lease(row) for row in tx.fetch("next_model_leases", tenant=tenant, size=size, **place)]

        return await self._database.read(page)

    async def live(self) -> list[ModelLease]:
        """Read those that are active."""
        now = self._clock.now()
        return [_lease(row) for row in await self._database.read(lambda tx: tx.fetch("live_model_leases", now=now))]

    async def renew(self, tenant: str, lease_id: str, ttl_seconds: int) -> ModelLease:
        """Let a lease last so long from now on; 0 for as long as it was granted. Raises LeaseMissing, Conflict when it is over."""

        def renew(tx: Transaction) -> ModelLease:
            now = self._clock.now()
            lease = _active(tx, tenant, lease_id, now)
            tx.execute("renew_model_lease", lease_id=lease_id, until=now + (ttl_seconds or lease.ttl_seconds))
            return _of(tx, tenant, lease_id)

        return await self._database.write(renew)

    async def release(self, tenant: str, lease_id: str) -> ModelLease:
        """End a lease; one that is over stays as it is. Raises LeaseMissing."""

        def release(tx: Transaction) -> ModelLease:
            now = self._clock.now()
            if _of(tx, tenant, lease_id).state(now) == "active":
                tx.execute("release_model_lease", lease_id=lease_id, now=now)
            return _of(tx, tenant, lease_id)

        return await self._database.write(release)

    async def hand(self, tenant: str, lease_id: str, batch_id: str) -> ModelLease:
        """Hand a lease to a batch. Raises LeaseMissing, Conflict when it is over or another batch's."""

        def hand(tx: Transaction) -> ModelLease:
            lease = _active(tx, tenant, lease_id, self._clock.now())
            if lease.batch_id not in ("", batch_id):
                message = f"The lease '{lease_id}' was handed to batch '{lease.batch_id}' already."
                raise errors.Conflict(message, param="lease_id")
            tx.execute("hand_model_lease", lease_id=lease_id, batch_id=batch_id)
            return _of(tx, tenant, lease_id)

        return await self._database.write(hand)

    async def sweep(self) -> None:
        """Write down what has expired, and forget what ended long ago."""

        def sweep(tx: Transaction) -> None:
            now = self._clock.now()
            tx.execute("expire_model_leases", now=now)
            tx.execute("drop_model_leases", before=now - KEPT_SECONDS)

        await self._database.write(sweep)

    # -- several schedulers -----------------------------------------------------------------------------------------------------

    async def see(self, lease_ids: Iterable[str]) -> None:
        """Say that this scheduler respects leases."""
        rows = [{"lease_id": lease_id, "owner": self._owner} for lease_id in lease_ids]
        await self._database.write(lambda tx: tx.execute_many("see_model_lease", rows))

    async def seen(self, lease_id: str) -> set[str]:
        """Tell which schedulers respect a lease."""
        rows = await self._database.read(lambda tx: tx.fetch("model_lease_seen", lease_id=lease_id))
        return {str(row["owner"]) for row in rows}


def _earlier(tx: Transaction, wish: Wish, now: float) -> tuple[ModelLease, bool] | None:
    """Find what the same request was granted before. Raises KeyReused."""
    if wish.request_id and (row := tx.fetch_one("model_lease_of_request", tenant=wish.tenant, request_id=wish.request_id)):
        return _lease(row), False
    if not wish.idempotency_key:
        return None
    name = {"tenant": wish.tenant, "idempotency_key": wish.idempotency_key}
    row = tx.fetch_one("model_lease_of_key", **name, since=now - KEPT_SECONDS)
    if row is None:
        return None
    if row["fingerprint"] != wish.fingerprint:
        raise errors.KeyReused(param="Idempotency-Key")
    lease = _lease(row)
    return replace(lease, expire_time=lease.create_time + lease.ttl_seconds, batch_id="", ended="", end_time=None), True


def _of(tx: Transaction, tenant: str, lease_id: str) -> ModelLease:
    row = tx.fetch_one("get_model_lease", tenant=tenant, lease_id=lease_id)
    if row is None:
        raise errors.LeaseMissing(f"No lease found with id '{lease_id}'.", param="lease_id")
    return _lease(row)


def _active(tx: Transaction, tenant: str, lease_id: str, now: float) -> ModelLease:
    lease = _of(tx, tenant, lease_id)
    if lease.state(now) != "active":
        raise ended(lease, now)
    return lease


def ended(lease: ModelLease, now: float) -> errors.Conflict:
    """Say that a lease is over, how, and since when."""
    state = lease.state(now)
    at = _utc(lease.end_time or lease.expire_time)
    how = "has expired" if state == "expired" else "was released"
    message = f"The lease '{lease.lease_id}' of the model '{lease.model}' {how} at {at}."
    return errors.Conflict(message, code=f"lease_{state}", param="lease_id")


def _utc(at: float) -> str:
    """Write a Unix time for a person."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _lease(row: Row) -> ModelLease:
    labels = msgspec.json.decode(row["labels"], type=tuple[str, dict[str, str]])
    return msgspec.convert({**row, "holder": labels[0], "metadata": labels[1]}, ModelLease, strict=False)

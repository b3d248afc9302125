"""Claiming shards to cover credit, a few at a time, and keeping their leases while they are held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from haywain import crash, errors, log
from services.scheduler.batch import Batch, Held, Key
from services.scheduler.leases import Leases, Want
from services.scheduler.ledger import Ledger
from services.scheduler.rows import read_entries
from services.scheduler.segment import Claimed
from services.scheduler.sharing import Order, arranged

__all__ = ["Claims"]

_SHARDS_MAX = 4
"""Shards of one batch that are claimed together at most."""
_RETRY_SECONDS = 0.5
_log = log.get()


class Claims:
    """The shards that this scheduler holds."""

    def __init__(self, leases: Leases, ledger: Ledger, lease_seconds: float, batches: Mapping[str, Batch]) -> None:
        """`batches` are the live ones, by id."""
        self._leases = leases
        self._ledger = ledger
        self._lease_seconds = lease_seconds
        self._batches = batches
        self._wanted: dict[tuple[Batch, str], int] = {}
        self._wake = asyncio.Event()
        self.changed: Callable[[Batch, str], None] = lambda batch, model: None
        """Called when rows of a batch and model can be sent, or may be asked for again."""
        self.renewed: Callable[[], None] = lambda: None
        """Called when leases were renewed that had expired."""
        self.shares: Callable[[Key], bool] = lambda key: False
        """Tells whether an engine for a key is the faster for getting rows that begin alike one after another."""

    def want(self, batch: Batch, model: str, rows: int) -> None:
        """Ask for shards with at least so many rows, if there are any left; asking again changes nothing."""
        if model in batch.claiming or not batch.queued_shards.get(model):
            return
        batch.claiming.add(model)
        self._wanted[batch, model] = max(1, min(_SHARDS_MAX, rows // max(1, batch.shard_rows)))
        self._wake.set()

    async def run(self) -> None:
        """Claim and renew until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claim_on())
            group.create_task(self._renew_on())

    async def _claim_on(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            wanted, self._wanted = self._wanted, {}
            try:
                await self._claim(wanted)
            except (errors.HaywainError, OSError, ValueError) as error:
                _log.error("shards.not_claimed", error=str(error))
                for batch, model in wanted:
                    self._later(_RETRY_SECONDS, batch, model)

    async def _claim(self, wanted: dict[tuple[Batch, str], int]) -> None:
        if self._leases.overdue():
            await self._renew()
        live = [(batch, model, most) for (batch, model), most in wanted.items() if not batch.stop_reason]
        wants = [Want(batch.batch_id, model, most, first=batch.start_time is None) for batch, model, most in live]
        answers = await self._leases.claim(wants)
        crash.point("scheduler:shards-claimed")
        places = [
            _Place(batch, one.rows, self.shares(batch.key(model)))
            for (batch, model, _), claimed in zip(live, answers, strict=True)
            for one in claimed
        ]
        small = all(isinstance(place.batch.index, bytes) and not place.arrange for place in places)
        indexes = iter(_read(places) if small else await asyncio.to_thread(_read, places))
        for (batch, model, _), claimed in zip(live, answers, strict=True):
            batch.start_time = next((one.start_time for one in claimed if one.start_time), batch.start_time)
            if sum([await self._hold(batch, model, one, next(indexes)) for one in claimed]):
                batch.claiming.discard(model)
                self.changed(batch, model)
            else:  # others hold what is left; their leases may expire
                self._later(self._lease_seconds / 3, batch, model)

    async def _hold(self, batch: Batch, model: str, claimed: Claimed, read: tuple[bytes, Order]) -> bool:
        """Take a shard over; False when its results can't be read, which is no other shard's trouble: its lease expires."""
        try:
            held = Held(batch, model, claimed, await self._ledger.hold(batch, claimed))
        except (errors.HaywainError, OSError, ValueError) as error:
            _log.error("shard.not_held", batch_id=batch.batch_id, shard=claimed.shard, error=str(error))
            return False
        held.load(*read)
        if batch.held.get(claimed.shard) is None:
            batch.queued_shards[model] = max(0, batch.queued_shards.get(model, 0) - 1)
        else:
            batch.held[claimed.shard].lost = True  # our own lease had expired
            batch.held[claimed.shard].let_go()
        batch.held[claimed.shard] = held
        return True

    async def _renew_on(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            try:
                await self._renew()
            except errors.HaywainError as error:
                _log.error("leases.not_renewed", error=str(error))

    async def _renew(self) -> None:
        held = {held.lease: held for batch in self._batches.values() for held in batch.held.values() if not held.over}
        expired = self._leases.expired()
        for lease in await self._leases.renew(held):
            self.drop(held[lease])
        if expired:
            self.renewed()

    def _later(self, seconds: float, batch: Batch, model: str) -> None:
        def again() -> None:
            batch.claiming.discard(model)
            self.changed(batch, model)

        asyncio.get_running_loop().call_later(seconds, again)

    def drop(self, held: Held) -> None:
        """End the work on a shard whose lease is lost; it can be claimed again when the new lease expires."""
        batch, model = held.batch, held.model
        if held.lost:
            return
        held.lost = True
        if batch.held.get(held.shard) is held:
            del batch.held[held.shard]
            batch.queued_shards[model] = batch.queued_shards.get(model, 0) + 1
        held.let_go()
        _log.warning("lease.lost", batch_id=batch.batch_id, shard=held.shard, epoch=held.epoch)
        self.changed(batch, model)


class _Place(NamedTuple):
    """A shard's, in the index of its batch; and whether its rows are put in order."""

    batch: Batch
    rows: range
    arrange: bool


def _read(places: list[_Place]) -> list[tuple[bytes, Order]]:
    read = []
    for batch, rows, arrange in places:
        index = read_entries(batch.index, rows)
        endpoint = batch.submission.endpoint
        read.append((index, arranged(batch.input.path, index, endpoint) if arrange else Order(range(len(rows)))))
    return read

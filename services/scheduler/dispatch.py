"""Which rows go to which engine, and what comes of them. An engine's pump asks for its next message whenever it has credit.

    room = credits, slots left, message_rows ─▶ calls that wait                                      ─▶ a RunRequest
                                               else suspects ─▶ rows by policy ─▶ late rows' copies ─▶

A quarantined engine has room for a few probes, when its pause is over.

Everything but reading the lines happens between two awaits, so nothing is taken twice and no credit is used twice. Rows for which
there is no room any more when they have been read go back; a message that has calls waits for no reading.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from haywain import errors, log
from haywain.clock import Clock
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import SchedulerSettings
from services.scheduler.batch import Attempt, Batch, Key
from services.scheduler.calls import Call, Calls, quarantined
from services.scheduler.claims import Claims
from services.scheduler.gate import Passing
from services.scheduler.link import Link
from services.scheduler.links import Links
from services.scheduler.pins import Pins
from services.scheduler.policy import Turns
from services.scheduler.recording import Recorder
from services.scheduler.sending import Sender
from services.scheduler.stragglers import Stragglers
from services.scheduler.suspects import Suspected

__all__ = ["Dispatcher"]

_FOREVER = 1 << 62
_REST_SECONDS = 1.0
_OUT_BYTES = 64 * 1024 * 1024
"""Lines at one engine at a time, which it has in memory."""
_log = log.get()


class Dispatcher:
    """The rows and calls that wait, and the links they can go to."""

    def __init__(self, settings: SchedulerSettings, clock: Clock, claims: Claims, recorder: Recorder) -> None:
        """Nothing waits yet."""
        self._settings = settings
        self._clock = clock
        self._claims = claims
        self.sender = Sender(clock, recorder)
        self._turns: dict[Key, Turns] = {}
        self._turn_served: dict[Key, int] = {}
        self._served = 0
        self._suspected = Suspected(settings.max_losses, lambda it: it.held.batch.order in self._batches and self.sender.lets(it))
        self.links = Links(clock)
        self.stragglers = Stragglers(settings.straggler_factor, settings.straggler_seconds)
        self.stragglers.lets = self.sender.lets
        self._batches: dict[int, Batch] = {}
        self._passing = Passing()
        self._orders = itertools.count(1)
        self.calls = Calls()
        self.paused: Callable[[], bool] = lambda: False
        """Tells whether rows must wait because their results could not be stored."""
        self.pins: Pins | None = None
        """Set where batches keep to one digest of a model."""
        claims.changed, claims.shares = self.refresh, self.links.shares

    # -- what waits -----------------------------------------------------------------------------------------------------------

    def add(self, batch: Batch) -> None:
        """Take a batch in."""
        batch.order = batch.order or next(self._orders)
        self._batches[batch.order] = batch
        self._passing.add(batch)
        for model in batch.open_models:
            self.refresh(batch, model)

    def remove(self, batch: Batch) -> None:
        """Stop sending a batch's rows and cancel those in flight; what their engines still say of them is dropped."""
        self._batches.pop(batch.order, None)
        self._passing.remove(batch)
        for turns in self._turns.values():
            turns.drop(batch.order)
        self.stragglers.forget(batch)
        if batch.running:
            self.links.give_up_batch(batch)
            batch.running = 0

    def refresh(self, batch: Batch, model: str) -> None:
        """Look again whether a batch has rows of a model to send."""
        order, key = batch.order, batch.key(model)
        if order not in self._batches:
            return
        turns = self._turns.setdefault(key, Turns())
        claimable = batch.queued_shards.get(model, 0) > 0 and model not in batch.claiming
        if not claimable and not batch.ready(model):
            turns.drop(order)
            return
        if not (gate := self.sender.gate).lets(batch.batch_id, model):
            self._passing.refused(batch, model, gate.holder(model))
            turns.drop(order)
            return
        terms = batch.submission
        deadline = _FOREVER if terms.expire_at is None else int(terms.expire_at * 1000)
        turns.put(order, lane=terms.lane, tenant=terms.tenant, deadline=deadline, sent=batch.accepted + batch.running)
        self.links.wake(key)

    def leased(self) -> set[Batch]:
        """Look again at the rows of models that others have by now than before; gives their batches."""
        found = self._passing.concerned(self.sender.gate.holder)
        for batch, model in found:
            self.refresh(batch, model)
        for key in self._suspected.look(self._clock.monotonic()):
            self.links.wake(key)
        return {batch for batch, _ in found}

    def again(self, attempt: Attempt) -> None:
        """Put a row back: in front of its shard's, or as the suspect that it is. A copy is dropped: its row is at an engine."""
        if self.stragglers.unsent(attempt) or attempt.held.over:
            return
        if attempt.losses:
            self.links.wake(self._suspected.give_back(attempt, self._clock.monotonic()))
        else:
            attempt.held.give_back([attempt])
            self.refresh(attempt.held.batch, attempt.held.model)

    def call(self, call: Call) -> None:
        """Queue an interactive request. Raises CapacityExceeded; Unavailable while all engines for it are quarantined."""
        if (wait := self.links.waits(call.key)) is not None:
            raise quarantined(call, wait)
        if (refusal := self.sender.gate.refusal(call)) is not None:
            raise refusal
        self.calls.add(call)
        self.links.wake(call.key)

    def quarantined(self) -> None:
        """Fail the calls that only quarantined engines could take now, and have the others take over."""
        for key in self.calls.wanted():
            while (wait := self.links.waits(key)) is not None and (call := self.calls.take(key)) is not None:
                call.fail(quarantined(call, wait))
        self.links.wake_all()

    def leave(self, call: Call) -> None:
        """Forget a call whose caller left: stop it at its engine."""
        call.gone = True
        self.links.give_up_call(call)

    def suspect(self, attempts: Sequence[Attempt]) -> None:
        """Queue rows that were in flight at an engine that was lost."""
        for key in self._suspected.add(attempts, self._clock.monotonic()):
            self.links.wake(key)

    def why(self, batch: Batch) -> pb.Progress.WaitingReason:
        """Tell why no row of a batch runs here; nothing where rows may run at another scheduler, or have all run."""
        models = batch.open_models
        keys = [batch.key(model) for model in models if self.sender.gate.lets(batch.batch_id, model)]
        served = [key for key in keys if self.links.serves(key)]
        if len(keys) < len(models) and not served:
            return pb.Progress.WAITING_REASON_LEASE_UNAVAILABLE
        if models and not served:  # engines are at every scheduler, whoever holds the shards
            return pb.Progress.WAITING_REASON_MODEL_NOT_AVAILABLE
        if not models or batch.elsewhere:
            return pb.Progress.WAITING_REASON_UNSPECIFIED
        ready = [key for key in served if self.links.waits(key) is None]
        if not ready:
            return pb.Progress.WAITING_REASON_MODEL_NOT_AVAILABLE
        if any(self.links.credits(key) > 0 for key in ready) and self.links.active < self._settings.slots:
            return pb.Progress.WAITING_REASON_QUEUED
        return pb.Progress.WAITING_REASON_CAPACITY

    # -- what is sent ---------------------------------------------------------------------------------------------------------

    async def message(self, link: Link) -> engine_pb2.RunRequest | None:
        """Make the next message for a link, None when there is nothing to say now."""
        request = engine_pb2.RunRequest(cancel_sequence_ids=link.cancels)
        link.cancels.clear()
        room = self._room(link)
        while room and (call := self._next_call(link)) is not None:
            self._reserve(link, 1)
            self.sender.add_call(link, request, call)
            room -= 1
        if room and not request.sequences and (attempts := self._choose(link, room)):
            await self._add_rows(link, request, attempts)
        if link.breaker.quarantined:
            link.probes.update(sequence.sequence_id for sequence in request.sequences)
        return request if request.sequences or request.cancel_sequence_ids else None

    async def _add_rows(self, link: Link, request: engine_pb2.RunRequest, attempts: list[Attempt]) -> None:
        reserved = len(attempts)
        self._reserve(link, reserved)
        others: list[Attempt] = []
        copies = self.stragglers.among(attempts)
        try:
            if self.pins is not None:
                others = await self._pin(self.pins, link, attempts)
            await self.sender.add_rows(link, request, attempts)
        except (OSError, errors.HaywainError) as error:
            _log.error("rows.not_read", batch_id=attempts[0].held.batch.batch_id, error=str(error))
            self._rest(attempts[0].held.batch)
        finally:
            if copies:
                self.stragglers.sent(link, request, copies, attempts)
            unused = reserved - len(request.sequences)
            self._reserve(link, -unused)
            for attempt in reversed((*attempts, *others)):  # each goes in front
                self.again(attempt)
            if unused:
                link.wake.set()

    async def _pin(self, pins: Pins, link: Link, attempts: list[Attempt]) -> list[Attempt]:
        """Have batches keep to this engine's digests, where they don't to others'; takes out and gives the rows of those."""
        for batch, model in {(attempt.held.batch, attempt.held.model) for attempt in attempts}:
            if model not in batch.pins:
                before = batch.key(model)
                await pins.pin(batch, model, link.digest(model))
                if (turns := self._turns.get(before)) is not None:
                    turns.drop(batch.order)
                self.refresh(batch, model)
        others = [attempt for attempt in attempts if not pins.fits(link, attempt)]
        attempts[:] = [attempt for attempt in attempts if pins.fits(link, attempt)]
        return others

    def _room(self, link: Link) -> int:
        slots = min(self._settings.slots - self.links.active, link.room(self._clock.monotonic()))
        if link.slow:
            slots = min(slots, link.engine.slots - link.active)
        return max(0, min(link.credits, slots, self._settings.message_rows))

    def _next_call(self, link: Link) -> Call | None:
        for key in self.calls.wanted():
            if key in link.keys and (call := self.calls.take(key)) is not None:
                return call
        return None

    def _choose(self, link: Link, room: int) -> list[Attempt]:
        if self.paused() or (link.probing and link.attempts):
            return []
        now = self._clock.monotonic()
        link.probing = False
        if (alone := self._suspected.alone(link, self.links, now)) is not None:
            link.probing = bool(alone)
            return alone
        taken = self._suspected.some(link, self.links, room, now)
        size = min(self._settings.message_bytes, _OUT_BYTES - link.bytes)
        while len(taken) < room and size > 0 and (key := self._next_key(link)) is not None:
            rows = self._take(key, room - len(taken), size, link.place(key))
            size -= sum(attempt.length for attempt in rows)
            taken += rows
        if not taken and link.looks:
            taken = self.stragglers.pick(link, self.links, room, size, now)
        return taken

    def _next_key(self, link: Link) -> Key | None:
        best: tuple[int, int] | None = None
        found = None
        for key in link.keys:
            turns = self._turns.get(key)
            lane = turns.lane() if turns is not None else None
            if lane is not None and (best is None or (lane, self._turn_served.get(key, 0)) < best):
                best, found = (lane, self._turn_served.get(key, 0)), key
        return found

    def _take(self, key: Key, room: int, size: int, place: str) -> list[Attempt]:
        turns, model = self._turns[key], key[0]
        order = turns.next()
        if order is None:
            return []
        batch = self._batches[order]
        rows = batch.take(model, room, size, place)
        if rows:
            turns.charge(order, len(rows))
            self._served += 1
            self._turn_served[key] = self._served
        left = batch.ready(model)
        ahead = 2 * self._settings.message_rows
        if left < ahead:
            self._claims.want(batch, model, max(self.links.credits(key), ahead) - left)
            if not left and not (batch.queued_shards.get(model) and model not in batch.claiming):
                turns.drop(order)
        return rows

    def _reserve(self, link: Link, count: int) -> None:
        link.credits -= count
        self.links.active += count

    def _rest(self, batch: Batch) -> None:
        """Send nothing of a batch for a moment."""
        order = batch.order
        self._batches.pop(order, None)
        for turns in self._turns.values():
            turns.drop(order)
        asyncio.get_running_loop().call_later(_REST_SECONDS, self._rested, batch)

    def _rested(self, batch: Batch) -> None:
        if not batch.ended and not batch.forgotten:
            self.add(batch)
            self.links.wake_all()  # for suspects of it, too

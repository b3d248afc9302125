"""Creations whose client isn't answered yet: a client who is told 5xx never sees that batch run, whoever dies with the answer.

                      ┌─ answered well ─────────────▶ driven; its first step in SQL ends the hold
    CreateBatch(held) ┼─ nobody tells for a while ──▶ the same
                      └─ about to be answered 5xx ──▶ unmade by one transaction; its request id is void

Whoever answers clients (Envoy: deploy/envoy/rest_shim.lua) gives each creation an id, and calls AnswerCreation(failed) before it
lets a 5xx out, again and again until it is told "nothing"; when it is told "a batch", it lets no 5xx out. Nothing else needs to be
alive for that: the gateway may be gone, and this service is waited for. Only one who dies without answering tells nothing, and its
client has no status then. Who must let a 5xx out without being told, after a minute ("it is not known"), goes on telling: so after
a time in which nobody could be heard no hold ends by itself before who has something to say could say it (`Hearing`). A revocation
and the batch's first step are transactions of one database, so one of them comes first. A creation that is still under way when its
id becomes void finds that in its own transaction; it can't come later, in another life of this service, because whoever sent it is
answered or dead.

Good answers are told by the gateway (gateway/good_answers.py), but nobody waits for that: when it is lost, the batch begins ten
seconds later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from haywain import crash, errors, log
from haywain.batches.v1 import batches_pb2
from haywain.clock import Clock
from services.batches.held_store import HeldStore
from services.batches.own_files import OwnFiles
from services.batches.record import Record

__all__ = ["HELD_SECONDS", "Hearing", "Held"]

HELD_SECONDS = 10.0
VOID_SECONDS = 600.0
"""longer than any creation takes"""
_LOOKS = 3
_T = TypeVar("_T")
_Response = batches_pb2.AnswerCreationResponse
_log = log.get()


class Hearing:
    """Whether what is told of creations could be heard lately: not just after this process began, or stood still."""

    def __init__(self, poll_seconds: float, clock: Clock) -> None:
        """`look` is called about every `poll_seconds`."""
        self._clock = clock
        self._most = 3 * poll_seconds + 2.0
        self._looked_at = float("-inf")
        self._looks = 0

    def look(self) -> bool:
        """Tell whether this is one of several looks with no long pause between them."""
        now = self._clock.monotonic()
        self._looks = self._looks + 1 if now - self._looked_at <= self._most else 0
        self._looked_at = now
        return self._looks >= _LOOKS


class Held:
    """The batches that wait for their client to be answered, as far as this process made them."""

    def __init__(self, store: HeldStore, own_files: OwnFiles, clock: Clock, begin: Callable[[Record], None]) -> None:
        """`begin` is told of each batch that may be driven."""
        self._store = store
        self._own_files = own_files
        self._clock = clock
        self._begin = begin
        self._waiting: dict[str, Record] = {}
        self.void: dict[str, float] = {}
        """Request ids whose creation must not happen any more, by the time at which that was said."""

    def created(self, record: Record) -> None:
        """Begin a new batch, or keep it until its client is answered."""
        if not record.held_until or not record.request_id:
            self._begin(record)
            return
        self._tidy()
        self._waiting[record.request_id] = record

    async def answered(self, request: batches_pb2.AnswerCreationRequest) -> _Response:
        """Let a batch begin, or unmake it. Raises InvalidRequest, Unavailable, StorageFull."""
        if not request.request_id:
            raise errors.InvalidRequest("A creation is named by its request_id.", param="request_id")
        tenant = request.tenant or "default"
        if request.failed:
            return await self._failed(tenant, request.request_id)
        for request_id in request.also:
            await self._well(tenant, request_id)
        record = await self._well(tenant, request.request_id)
        if record is None:
            return _Response(outcome=_Response.OUTCOME_NOTHING)
        return _Response(outcome=_Response.OUTCOME_BATCH, batch_id=record.batch_id)

    async def _well(self, tenant: str, request_id: str) -> Record | None:
        record = self._waiting.pop(request_id, None)
        if record is None:  # made in an earlier life, or begun
            record = await self._store.begin(tenant, request_id)
            crash.point("batches:begun")
        if record is not None and record.held_until:
            self._begin(record)
        return record

    async def stands(self, tenant: str, request_id: str) -> bool:
        """Make sure that the batch of a request stays, because another client is told of it; False when it was unmade just now."""
        record = await self._store.begin(tenant, request_id)
        if record is not None and self._waiting.pop(request_id, None) is not None:
            self._begin(record)
        return record is not None

    async def _failed(self, tenant: str, request_id: str) -> _Response:
        self._tidy()
        self.void[request_id] = self._clock.now()
        record = await self._store.revoke(tenant, request_id)
        if record is None:
            return _Response(outcome=_Response.OUTCOME_NOTHING)
        if not record.held_until:
            _log.warning("creation.answered_late", batch_id=record.batch_id)
            return _Response(outcome=_Response.OUTCOME_BATCH, batch_id=record.batch_id)
        self._waiting.pop(request_id, None)
        crash.point("batches:revoked")
        _log.info("batch.revoked", batch_id=record.batch_id)
        with contextlib.suppress(errors.HaywainError):  # the driver's sweep will
            await self._own_files.clear(record.batch_id)
        return _Response(outcome=_Response.OUTCOME_NOTHING)

    def _tidy(self) -> None:
        """Drop what is over: the driver has claimed those that waited too long."""
        now = self._clock.now()
        _drop_first(self._waiting, lambda record: record.held_until < now)
        _drop_first(self.void, lambda at: at < now - VOID_SECONDS)


def _drop_first(entries: dict[str, _T], over: Callable[[_T], bool]) -> None:
    """Drop entries from the front, which is the oldest, as long as they are over."""
    while entries and over(entries[first := next(iter(entries))]):
        del entries[first]

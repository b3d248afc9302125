"""Batch records in SQL: every linearisation point of a batch's life is one transaction here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from haywain import errors
from haywain.clock import Clock
from haywain.db import Database, Row, Transaction
from services.batches import lifecycle
from services.batches.admission import Admission, Waiting, admit
from services.batches.figures import moved
from services.batches.lifecycle import Status
from services.batches.record import Counts, Plan, Record, Tokens, column, from_row, to_row

__all__ = ["LEASE_SECONDS", "Admission", "Answer", "BatchStore", "Key", "planned"]

LEASE_SECONDS = 30.0
ANSWER_SECONDS = 86_400.0
_CHANGES = (
    "outcome", "plan", "model", "submitted", "errors", "error", "counts", "usage", "output_file_id", "error_file_id",
    "in_progress_at", "rows_left",
)  # fmt: skip


class Key(msgspec.Struct, frozen=True):
    """What an answer is found by again. `operation`: create (a client's key), request (a caller's request_id)."""

    operation: str
    key: str
    fingerprint: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What an earlier request was told, JSON of CreateBatchResponse, and that request's id."""

    text: str
    request_id: str


class BatchStore:
    """The records of all tenants. An id of another tenant is answered like one that never was."""

    def __init__(self, database: Database, clock: Clock, owner: str) -> None:
        """Take an open database; `owner` names this replica in leases."""
        self._database = database
        self._clock = clock
        self._owner = owner
        self._waiting = Waiting()

    # -- creation ---------------------------------------------------------------------------------------------------------------

    async def intend(self, batch_id: str) -> None:
        """Note that a batch is about to be created: that blobs with its id may be, and a hold at files."""
        terms = {"batch_id": batch_id, "created_at": self._clock.now(), "tenant": "", "file_ids": ""}
        await self._database.write(lambda tx: tx.execute("add_intent", **terms))

    async def stale_intents(self, before: float) -> list[str]:
        """List the batch ids whose creation began before a Unix time and never ended."""
        return [row["batch_id"] for row in await self._database.read(lambda tx: tx.fetch("stale_intents", before=before))]

    async def doom_intent(self, batch_id: str) -> tuple[str, list[str]] | None:
        """Make sure that a creation comes to nothing; the tenant and the files to be deleted, None when it came to something."""

        def doom(tx: Transaction) -> tuple[str, list[str]] | None:
            tx.execute("doom_intent", batch_id=batch_id)
            row = tx.fetch_one("intent", batch_id=batch_id)
            return None if row is None else (row["tenant"], row["file_ids"].split())

        return await self._database.write(doom)

    async def drop_intent(self, batch_id: str) -> None:
        """Forget an intent of which nothing is left."""
        await self._database.write(lambda tx: tx.execute("drop_intent", batch_id=batch_id))

    async def add(self, record: Record, admission: Admission, keys: Sequence[Key] = (), answer: str = "") -> Record | Answer | None:
        """Record a new batch, keep its answer under `keys`, end its intent. Durable when this returns; nobody has leased it yet.

        None when the batch was recorded; else what an earlier request with one of the keys, or with the same `request_id`, made.
        Raises KeyReused; CapacityExceeded; InvalidRequest when another batch is active on the file and that is forbidden;
        Unavailable when the intent is gone.
        """

        def add(tx: Transaction) -> Record | Answer | None:
            now = self._clock.now()
            earlier = _answer(tx, record.tenant, keys, now) or _of_request(tx, record)
            if earlier is not None:
                return earlier
            admit(tx, record, admission, self._waiting, now)
            if not tx.execute("end_intent", batch_id=record.batch_id) and record.input_blob_key:
                raise errors.Unavailable(retry_after=1)
            if not tx.execute("add_batch", **to_row(record)):
                return _of_request(tx, record) or _missing(record.batch_id)
            for key in keys:
                name = {"tenant": record.tenant, "operation": key.operation, "answer_key": key.key}
                tx.execute("forget_answer", **name)  # one that is too old to count
                kept = {"fingerprint": key.fingerprint, "request_id": record.request_id or "", "answer": answer}
                tx.execute("add_answer", **name, **kept, created_at=now)
            return None

        return await self._database.write(add)

    async def earlier(self, tenant: str, keys: Sequence[Key], request_id: str) -> Record | Answer | None:
        """Find what an earlier request with one of the keys, or with the same `request_id`, made. Raises KeyReused."""

        def earlier(tx: Transaction) -> Record | Answer | None:
            found = _answer(tx, tenant, keys, self._clock.now())
            if found is None and request_id:
                row = tx.fetch_one("batch_of_request", tenant=tenant, request_id=request_id)
                return None if row is None else from_row(row)
            return found

        return await self._database.read(earlier)

    async def forget_answers(self) -> None:
        """Drop answers that are older than a day."""
        before = self._clock.now() - ANSWER_SECONDS
        await self._database.write(lambda tx: tx.execute("forget_answers", before=before))

    # -- reading ----------------------------------------------------------------------------------------------------------------

    async def get(self, tenant: str, batch_id: str) -> Record:
        """Read one batch of a tenant. Raises BatchMissing."""
        row = await self._database.read(lambda tx: tx.fetch_one("batch_of_tenant", tenant=tenant, batch_id=batch_id))
        return from_row(row) if row is not None else _missing(batch_id)

    async def find(self, batch_id: str) -> Record | None:
        """Read one batch, whoever's it is."""
        row = await self._database.read(lambda tx: tx.fetch_one("batch", batch_id=batch_id))
        return None if row is None else from_row(row)

    async def page(self, tenant: str, *, after: str, size: int) -> list[Record]:
        """Read a page, newest first, behind the batch `after` (empty: from the start). Raises NoSuchCursor."""

        def page(tx: Transaction) -> list[Record]:
            if not after:
                return [from_row(row) for row in tx.fetch("first_page", tenant=tenant, size=size)]
            last = tx.fetch_one("batch_of_tenant", tenant=tenant, batch_id=after)
            if last is None:
                raise errors.NoSuchCursor(f"No batch found with id '{after}'.", param="after")
            place = {"created_at": last["created_at"], "batch_id": after}
            return [from_row(row) for row in tx.fetch("next_page", tenant=tenant, size=size, **place)]

        return await self._database.read(page)

    async def unsettled(self) -> dict[str, int]:
        """Count the batches of every status whose ways have not ended."""
        return {row["status"]: row["batches"] for row in await self._database.read(lambda tx: tx.fetch("unsettled"))}

    # -- changes ----------------------------------------------------------------------------------------------------------------

    async def set_metadata(self, tenant: str, batch_id: str, metadata: dict[str, str]) -> Record:
        """Replace a batch's metadata. Raises BatchMissing."""

        def write(tx: Transaction) -> Record:
            tx.execute("set_metadata", tenant=tenant, batch_id=batch_id, metadata=column("metadata", metadata))
            row = tx.fetch_one("batch_of_tenant", tenant=tenant, batch_id=batch_id)
            return from_row(row) if row is not None else _missing(batch_id)

        return await self._database.write(write)

    async def move(self, batch_id: str, status: Status, **changes: Any) -> Record | None:
        """Change the status, and with it, in the same statement, its timestamp and `changes` (fields of Record).

        Answers the record after the change, None when the batch isn't in a status that `status` may follow.
        """

        def move(tx: Transaction) -> Record | None:
            times = tx.fetch_one("times", batch_id=batch_id)
            if times is None:
                return None
            columns: dict[str, Any] = dict.fromkeys((*_CHANGES, *lifecycle.STAMPS.values()))
            if "in_progress_at" in changes:
                changes["in_progress_at"] = _started(times, changes["in_progress_at"])
            columns |= {name: column(name, value) for name, value in changes.items()}
            if status in lifecycle.STAMPS:
                set_already = [at for at in (columns["in_progress_at"], *times.values()) if at is not None]
                columns[lifecycle.STAMPS[status]] = max(self._clock.now(), *set_already)
            if status in lifecycle.TERMINAL:
                columns["rows_left"] = 0
            columns.pop("created_at")
            sources = lifecycle.sources(status)
            places = {"source_1": sources[0], "source_2": sources[-1]}
            after = tx.fetch_one("move", batch_id=batch_id, status=status, **columns, **places)
            return None if after is None else from_row(after)

        return moved(await self._database.write(move))

    async def set_plan(self, batch_id: str, model: str, plan: Plan) -> None:
        """Keep what validation of a batch found that was cancelled meanwhile; the first plan stays."""
        columns = {name: column(name, value) for name, value in planned(plan).items()}
        await self._database.write(lambda tx: tx.execute("set_plan", batch_id=batch_id, model=model, **columns))

    async def set_submitted(self, batch_id: str) -> None:
        """Note that the scheduler has the batch."""
        await self._database.write(lambda tx: tx.execute("set_submitted", batch_id=batch_id))

    async def set_progress(self, seen: dict[str, tuple[Counts, Tokens | None, float | None]]) -> None:
        """Keep counts, usage and the first row's start of running batches, for when the scheduler is away."""

        def write(tx: Transaction) -> None:
            for batch_id, (counts, usage, started) in seen.items():
                columns = {"counts": column("counts", counts), "usage": column("usage", usage)}
                columns["rows_left"] = max(counts.total - counts.completed - counts.failed, 0)
                tx.execute("set_progress", batch_id=batch_id, **columns)
                if started is not None:
                    tx.execute("set_started", batch_id=batch_id, started=started)

        await self._database.write(write)

    async def set_adopted(self, batch_id: str) -> None:
        """Note that files has what the batch brought with it."""
        await self._database.write(lambda tx: tx.execute("set_adopted", batch_id=batch_id))

    async def settle(self, batch_id: str) -> None:
        """Note that a terminal batch has nothing left at the scheduler and at files."""
        await self._database.write(lambda tx: tx.execute("settle", batch_id=batch_id))

    async def lose_validation(self, batch_id: str) -> int:
        """Count a validation that died; answers how many did."""
        rows = await self._database.write(lambda tx: tx.fetch("lose_validation", batch_id=batch_id))
        return int(rows[0]["validation_losses"]) if rows else 0

    # -- leases -----------------------------------------------------------------------------------------------------------------

    async def drop_leases(self) -> None:
        """Give up what an earlier life of this replica held, to be claimed anew."""
        await self._database.write(lambda tx: tx.execute("drop_leases", owner=self._owner))

    async def claim(self, *, unheard: bool = True) -> dict[str, float]:
        """Lease every unsettled batch that nobody drives; answers ids with the times they expire at.

        With `unheard` also those of whose clients nothing was heard for long enough (held.py).
        """
        now = self._clock.now()
        lease = {"owner": self._owner, "now": now, "until": now + LEASE_SECONDS, "held_before": now if unheard else 1.0}
        return {row["batch_id"]: row["expires_at"] for row in await self._database.write(lambda tx: tx.fetch("claim", **lease))}

    async def renew(self) -> dict[str, float]:
        """Hold on to what is held; answers ids with the times they expire at."""
        now = self._clock.now()
        lease = {"owner": self._owner, "now": now, "until": now + LEASE_SECONDS}
        return {row["batch_id"]: row["expires_at"] for row in await self._database.write(lambda tx: tx.fetch("renew", **lease))}

    async def cancelling(self) -> list[str]:
        """List the held batches that somebody, perhaps another replica, cancelled."""
        return [row["batch_id"] for row in await self._database.read(lambda tx: tx.fetch("cancelling", owner=self._owner))]


def planned(plan: Plan) -> dict[str, Any]:
    """Tell what a plan changes in a record."""
    counts = Counts(total=plan.row_count + plan.rejected, failed=plan.rejected)
    return {"plan": plan, "counts": counts, "rows_left": plan.row_count}


def _missing(batch_id: str) -> Any:
    raise errors.BatchMissing(f"No batch found with id '{batch_id}'.", param="batch_id")


def _answer(tx: Transaction, tenant: str, keys: Sequence[Key], now: float) -> Answer | None:
    for key in keys:
        since = now - ANSWER_SECONDS
        row = tx.fetch_one("answer", tenant=tenant, operation=key.operation, answer_key=key.key, since=since)
        if row is None:
            continue
        if row["fingerprint"] != key.fingerprint:
            raise errors.KeyReused("This idempotency key was used with another request body.", param="Idempotency-Key")
        return Answer(row["answer"], row["request_id"])
    return None


def _of_request(tx: Transaction, record: Record) -> Record | None:
    if record.request_id is None:
        return None
    row = tx.fetch_one("batch_of_request", tenant=record.tenant, request_id=record.request_id)
    return None if row is None else from_row(row)


def _started(times: Row, at: float | None) -> float | None:
    """Fit the first row's start between creation and whatever came after it."""
    if at is None:
        return None
    later = [float(time) for time in (times["finalizing_at"], times["cancelling_at"]) if time is not None]
    return min([max(at, float(times["created_at"])), *later])

"""Submissions in SQL: what must survive of a batch besides its journal."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from haywain import errors
from haywain.db import Database, Row, Transaction
from services.scheduler.batch import Submission
from services.scheduler.segment import Tally

__all__ = ["ShardRow", "Store", "Stored", "mark", "started", "tally_of"]

_TALLY = ("completed", "failed", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_MANY_SHARDS = 1_000
"""So many new ones make the statistics wrong by which PostgreSQL finds the next to claim."""


class ShardRow(msgspec.Struct, frozen=True):
    """A shard as SQL has it; `state`: 0 queued, 1 leased, 2 done."""

    shard: int
    model: str
    first_row: int
    row_count: int
    state: int = 0


class Stored(msgspec.Struct, frozen=True):
    """A submission with what belongs to it."""

    submission: Submission
    shards: list[ShardRow]
    tally: Tally
    """Of committed segments."""
    end_byte: int
    """Bytes of the journal that committed segments cover."""


class Store:
    """The submissions of one database."""

    def __init__(self, database: Database) -> None:
        """The database is open."""
        self._database = database

    async def submit(self, submission: Submission, shards: Sequence[ShardRow]) -> Stored:
        """Store a submission and its shards, all or nothing; the one that is there already stays. Gives what is stored."""

        def submit(tx: Transaction) -> Stored:
            values = msgspec.to_builtins(submission)
            flags = {"deterministic": int(submission.deterministic), "pack": int(submission.pack)}
            if tx.execute("insert_submission", **{**values, **flags}):
                rows = [msgspec.to_builtins(shard) | {"batch_id": submission.batch_id} for shard in shards]
                tx.execute_many("insert_shard", rows)
                if len(rows) >= _MANY_SHARDS:
                    tx.execute("shards_inserted")
                return Stored(msgspec.structs.replace(submission, changed=mark(tx, submission)), list(shards), Tally(), 0)
            return _stored(tx, _get(tx, submission.batch_id))

        return await self._database.write(submit)

    async def load(self) -> list[Stored]:
        """Read all submissions in the order of arrival."""

        def load(tx: Transaction) -> list[Stored]:
            found = msgspec.convert(tx.fetch("list_submissions"), list[Submission], strict=False)
            return [_stored(tx, submission) for submission in found]

        return await self._database.read(load)

    async def get(self, batch_id: str) -> Stored:
        """Read one. Raises BatchMissing."""
        return await self._database.read(lambda tx: _stored(tx, _get(tx, batch_id)))

    async def recordings(self) -> set[str]:
        """Tell by which ledgers submissions are recorded."""
        return {str(row["recording"]) for row in await self._database.read(lambda tx: tx.fetch("list_recordings"))}

    async def stop(self, batch_id: str, reason: int) -> int:
        """Remember why a batch was stopped; gives the first reason that was remembered. Raises BatchMissing."""

        def stop(tx: Transaction) -> int:
            tx.execute("stop_submission", batch_id=batch_id, reason=reason)
            found = _get(tx, batch_id)
            mark(tx, found)
            return found.stop_reason

        return await self._database.write(stop)

    async def seal(self, batch_id: str, sealed: str) -> None:
        """Remember what sealing wrote."""
        await self._database.write(lambda tx: tx.execute("seal_submission", batch_id=batch_id, sealed=sealed))

    async def delete(self, batch_id: str) -> None:
        """Forget a submission, its shards and segments."""

        def delete(tx: Transaction) -> None:
            row = tx.fetch_one("delete_submission", batch_id=batch_id)
            if row is not None and row["recording"] != "journal":
                tx.execute("insert_forgotten", batch_id=batch_id, **_next_change(tx))

        await self._database.write(delete)


def mark(tx: Transaction, submission: Submission) -> int:
    """Number a change of a submission, so that other schedulers see it. Those of a scheduler that is alone need no numbers: 0."""
    if submission.recording == "journal":
        return 0
    number = _next_change(tx)
    tx.execute("mark_submission", batch_id=submission.batch_id, **number)
    return number["changed"]


def started(tx: Transaction, batch_id: str, now: float) -> float:
    """Remember when a batch's first shard was claimed; gives the first time that was remembered."""
    tx.execute("start_submission", batch_id=batch_id, now=now)
    found = _get(tx, batch_id)
    mark(tx, found)
    return found.start_time or now


def _next_change(tx: Transaction) -> dict[str, int]:
    # Writes come one after the other: a number that can be read has no smaller one to come.
    row = tx.fetch_one("next_change") or {}
    return {"changed": int(row["number"])}


def _get(tx: Transaction, batch_id: str) -> Submission:
    row = tx.fetch_one("get_submission", batch_id=batch_id)
    if row is None:
        raise errors.BatchMissing(f"No batch found with id '{batch_id}'.")
    return msgspec.convert(row, Submission, strict=False)


def _stored(tx: Transaction, submission: Submission) -> Stored:
    shards = msgspec.convert(tx.fetch("list_shards", batch_id=submission.batch_id), list[ShardRow])
    total = tx.fetch_one("total_segments", batch_id=submission.batch_id) or {}
    return Stored(submission, shards, tally_of(total), int(total.get("end_byte", 0)))


def tally_of(total: Row) -> Tally:
    """Make a tally of a row's columns of the same names."""
    return Tally(*(int(total[name]) for name in _TALLY))

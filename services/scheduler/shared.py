"""What several schedulers share in SQL beyond leases: segments that count, what has changed, and whose turn it is to seal.

turns       0 ──take──▶ 1 ──take, when `seal_until` passed──▶ 2 …        only the newest turn can say what is sealed
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from haywain import errors, log
from haywain.clock import Clock
from haywain.db import Database, Row, Transaction
from services.scheduler.batch import Submission
from services.scheduler.leases import commit_segment
from services.scheduler.segment import Lease, Segment, Tally
from services.scheduler.store import mark, tally_of

__all__ = ["Changes", "OpenShard", "Shared", "Span", "State"]

_log = log.get()
_FORGOTTEN_KEPT = 100_000
"""Changes after which a scheduler must have noticed that a batch was forgotten."""


class OpenShard(msgspec.Struct, frozen=True):
    """A shard with rows left."""

    shard: int
    model: str
    owner: str
    lease_until: float


class Span(msgspec.Struct, frozen=True):
    """Bytes of a file that are committed."""

    object: str
    start_byte: int
    end_byte: int


class State(msgspec.Struct, frozen=True):
    """A submission as it is now."""

    submission: Submission
    tally: Tally
    shards: list[OpenShard]
    """Those with rows left."""


class Changes(msgspec.Struct, frozen=True):
    """What is new."""

    states: list[State]
    gone: list[str]
    """Batches that were forgotten."""
    newest: int
    """The last change that is in it."""


class Shared:
    """One replica's access to it."""

    def __init__(self, database: Database, owner: str, lease_seconds: float, clock: Clock) -> None:
        """`owner` is the replica's name; it stays the same over restarts."""
        self._database = database
        self.owner = owner
        self._seconds = lease_seconds
        self._clock = clock

    async def release_own(self) -> None:
        """Give back the turns of an earlier life of this replica."""
        await self._database.write(lambda tx: tx.execute("release_own_turns", owner=self.owner))

    async def commit(self, segments: Sequence[Segment]) -> list[Lease]:
        """Commit segments and finish the shards that are done; answers the leases that are lost. Repeating changes nothing."""

        def commit(tx: Transaction) -> list[Lease]:
            lost = [segment.lease for segment in segments if not commit_segment(tx, segment, "commit_fenced_segment")]
            for batch_id in sorted({segment.batch_id for segment in segments}):
                if row := tx.fetch_one("get_submission", batch_id=batch_id):
                    mark(tx, _submission(row))
            return lost

        return await self._database.write(commit)

    async def changes(self, since: int) -> Changes:
        """Read what has changed after the change with this number."""

        def changes(tx: Transaction) -> Changes:
            rows = tx.fetch("list_changes", since=since)
            there = {str(row["batch_id"]) for row in rows if not row["gone"]}
            gone = [str(row["batch_id"]) for row in rows if row["gone"] and row["batch_id"] not in there]
            states = [_state(tx, batch_id) for batch_id in there]
            return Changes(states, gone, max((int(row["changed"]) for row in rows), default=since))

        return await self._database.read(changes)

    async def open_shards(self, batch_ids: Sequence[str]) -> dict[str, list[OpenShard]]:
        """List the shards with rows left of some batches."""
        return await self._database.read(lambda tx: {batch_id: _open_shards(tx, batch_id) for batch_id in batch_ids})

    async def spans(self, batch_id: str, shard: int | None = None) -> list[Span]:
        """List what is committed of a batch, or one of its shards, in the order of the commits."""

        def spans(tx: Transaction) -> list[Span]:
            if shard is None:
                return msgspec.convert(tx.fetch("list_segments", batch_id=batch_id), list[Span])
            return msgspec.convert(tx.fetch("list_shard_segments", batch_id=batch_id, shard=shard), list[Span])

        return await self._database.read(spans)

    async def lose(self, batch_id: str, objects: Collection[str], epoch: int = 0) -> None:
        """Forget segments whose files are lost, of shards that are done, or held with this epoch: their rows run again."""

        def lose(tx: Transaction) -> None:
            for lost in sorted(objects):
                shard = int(lost.partition("-")[0])
                if tx.execute("lose_segments", batch_id=batch_id, shard=shard, object=lost, epoch=epoch):
                    tx.execute("reopen_shard", batch_id=batch_id, shard=shard)
            if row := tx.fetch_one("get_submission", batch_id=batch_id):
                mark(tx, _submission(row))

        _log.error("results.lost", batch_id=batch_id, files=sorted(objects))
        await self._database.write(lose)

    async def exists(self, batch_id: str) -> bool:
        """Tell whether a batch is in SQL."""
        return await self._database.read(lambda tx: tx.fetch_one("get_submission", batch_id=batch_id) is not None)

    async def drop_forgotten(self, newest: int) -> None:
        """Stop telling what was forgotten long ago."""
        await self._database.write(lambda tx: tx.execute("drop_forgotten", before=newest - _FORGOTTEN_KEPT))

    # -- turns ----------------------------------------------------------------------------------------------------------------

    async def take_turn(self, batch_id: str, known: str) -> tuple[int, str]:
        """Take the turn to seal a batch: its number, 0 when another has it; and what is sealed, where it isn't what is `known`.

        Raises BatchMissing.
        """
        now = self._clock.now()

        def take(tx: Transaction) -> tuple[int, str]:
            row = tx.fetch_one("get_submission", batch_id=batch_id)
            if row is None:  # another sealed it, and it was forgotten, while this one waited for its turn
                raise errors.BatchMissing(f"No batch found with id '{batch_id}'.")
            if row["sealed"] != known:
                return 0, str(row["sealed"])
            taken = tx.fetch_one("take_turn", batch_id=batch_id, owner=self.owner, now=now, until=now + self._seconds)
            return (int(taken["seal_turn"]) if taken else 0), known

        return await self._database.write(take)

    async def keep_turn(self, batch_id: str, turn: int) -> None:
        """Have a turn last longer."""
        until = self._clock.now() + self._seconds
        await self._database.write(lambda tx: tx.execute("keep_turn", batch_id=batch_id, turn=turn, until=until))

    async def seal(self, batch_id: str, turn: int, sealed: str) -> str:
        """Remember what was sealed in a turn; gives what is remembered, which is another's when the turn was lost.

        Raises BatchMissing, Unavailable when the turn was lost and the next one is not through, or when rows run again that
        had ended.
        """

        def seal(tx: Transaction) -> str:
            tx.execute("seal_in_turn", batch_id=batch_id, turn=turn, sealed=sealed)
            row = tx.fetch_one("get_submission", batch_id=batch_id)
            if row is None:
                raise errors.BatchMissing(f"No batch found with id '{batch_id}'.")
            if not row["sealed"]:
                raise errors.Unavailable(f"Batch '{batch_id}' is being sealed elsewhere.", retry_after=1)
            mark(tx, _submission(row))
            return str(row["sealed"])

        return await self._database.write(seal)


def _state(tx: Transaction, batch_id: str) -> State:
    row = tx.fetch_one("get_submission", batch_id=batch_id) or {}
    total = tx.fetch_one("total_segments", batch_id=batch_id) or {}
    return State(_submission(row), tally_of(total), _open_shards(tx, batch_id))


def _open_shards(tx: Transaction, batch_id: str) -> list[OpenShard]:
    return msgspec.convert(tx.fetch("list_open_shards", batch_id=batch_id), list[OpenShard])


def _submission(row: Row) -> Submission:
    return msgspec.convert(row, Submission, strict=False)

"""Batches coming in, being stopped, and going: SQL first, memory after. Also how they are found again after a restart."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec

from haywain import crash, errors, ids, log
from haywain.blobs import BlobStore
from haywain.clock import Clock, seconds
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from services.scheduler.batch import Batch, Submission
from services.scheduler.ledger import Ledger
from services.scheduler.meter import Meter
from services.scheduler.pieces import Piece
from services.scheduler.replay import row_prefix
from services.scheduler.rows import ENTRY_BYTES, Input, Lines
from services.scheduler.sealing import keys_of_lost_turns
from services.scheduler.store import ShardRow, Store, Stored

__all__ = ["Intake"]

MISSING = Path("/nonexistent")
"""What a blob that is lost is replaced by."""
_log = log.get()


class Intake:
    """The batches that are known."""

    def __init__(self, store: Store, ledger: Ledger, blobs: BlobStore, clock: Clock) -> None:
        """What is recorded of a batch the ledger tells."""
        self._store = store
        self._ledger = ledger
        self._blobs = blobs
        self._clock = clock
        self.batches: dict[str, Batch] = {}
        """By id; those that are sealed too, until they are forgotten."""
        self._known = set[str]()
        """Their ids, and those of batches that are just being opened."""
        self._taken_in = 0
        """Rows since they were last counted: no fewer wait."""
        self.added: Callable[[Batch], None] = lambda batch: None
        """Called with a batch that has rows to run."""
        self.pins_of: Callable[[str], dict[str, str]] = lambda batch_id: {}
        """Asked what digests a batch that is opened keeps to, by model."""

    async def load(self) -> None:
        """Find all batches again."""
        for stored in await self._store.load():
            await self._open(stored)
        self._taken_in = self.waiting_rows()
        _log.info("batches.loaded", batches=len(self.batches))

    def get(self, batch_id: str) -> Batch:
        """Find a batch. Raises BatchMissing."""
        batch = self.batches.get(batch_id)
        if batch is None:
            raise errors.BatchMissing(f"No batch found with id '{batch_id}'.")
        return batch

    async def results(self, batch_id: str) -> list[Piece]:
        """Tell where a batch's results are, also while they outlive the batch. Raises BatchMissing."""
        return await self._ledger.results(batch_id, self.batches.get(batch_id))

    def waiting_rows(self) -> int:
        """Count the rows taken in and not recorded yet."""
        return sum(batch.submission.row_count - batch.tally.rows for batch in self.batches.values() if not batch.ended)

    def has_room(self, rows: int, capacity: int) -> bool:
        """Tell whether so many rows may be added to those that wait, which are counted only when it might be too much."""
        if self._taken_in + rows > capacity:
            self._taken_in = self.waiting_rows()
        return not self._taken_in or self._taken_in + rows <= capacity

    async def submit(self, request: pb.SubmitBatchRequest) -> Batch:
        """Take a batch in; the one that is there already stays. Raises InvalidRequest."""
        if request.batch_id in self.batches:
            return self.batches[request.batch_id]
        _check(request)
        expedited = request.lane == engine_pb2.LANE_EXPEDITED
        lane = int(engine_pb2.LANE_EXPEDITED if expedited else engine_pb2.LANE_STANDARD)
        submission = Submission(
            batch_id=request.batch_id, submit_order=0, tenant=request.tenant, endpoint=request.endpoint, lane=lane,
            expire_at=seconds(request.expire_time), input_key=request.input_blob_key, index_key=request.index_blob_key,
            entries=request.index, row_count=request.row_count,
            body_defaults=request.body_defaults.decode(), deterministic=request.deterministic, pack=request.pack,
            rejected_key=request.rejected_blob_key, rejected_count=request.rejected_count,
            recording=self._ledger.name,
        )  # fmt: skip
        shards = [ShardRow(at, shard.model, shard.first_row, shard.row_count) for at, shard in enumerate(request.shards)]
        stored = await self._store.submit(submission, shards)
        crash.point("scheduler:submission-stored")
        if request.batch_id not in self.batches:
            await self._open(stored)
            self._taken_in += request.row_count
        return self.batches[request.batch_id]

    async def find(self, batch_id: str) -> None:
        """Open a batch that another scheduler took in."""
        with contextlib.suppress(errors.BatchMissing):
            stored = await self._store.get(batch_id)
            await self._open(stored)
            self._taken_in += stored.submission.row_count

    def drop(self, batch: Batch) -> None:
        """Have nothing more to do with a batch that is forgotten."""
        batch.forgotten = True
        self.batches.pop(batch.batch_id, None)
        self._known.discard(batch.batch_id)

    async def stop(self, batch_id: str, reason: int) -> Batch:
        """Remember that a batch is stopped, and why. Raises BatchMissing."""
        self.get(batch_id)
        stop_reason = await self._store.stop(batch_id, reason)
        crash.point("scheduler:stop-stored")
        batch = self.get(batch_id)  # not the one of before, if its rows run again by now
        batch.stop_reason = stop_reason
        return batch

    async def run_again(self, batch: Batch) -> bool:
        """Have rows run again whose results were recorded and are lost; False when none are. All rows of the batch have ended."""
        if not await self._ledger.start_over(batch):
            return False
        if batch.journal is not None:
            _log.error("results.lost", batch_id=batch.batch_id, files=[batch.journal.path.name])
            batch.journal.close()
            await self._open(await self._store.get(batch.batch_id), instead=batch)
        return True

    async def forget(self, batch_id: str) -> None:
        """Drop what is kept of a batch but its journal, which stays for a while. Idempotent."""
        batch = self.batches.get(batch_id)
        if batch is not None:
            if batch.submission.index_key:
                await self._blobs.delete(batch.submission.index_key)
            await self._ledger.forget(batch)
            batch.forgotten = True
        await self._drop_lost_turns(batch_id, batch.submission.sealed if batch is not None else "")
        crash.point("scheduler:index-removed")
        await self._store.delete(batch_id)
        crash.point("scheduler:submission-deleted")
        if batch is not None:
            self.drop(batch)

    async def _drop_lost_turns(self, batch_id: str, sealed: str) -> None:
        """Remove what schedulers that died while they sealed have left: nobody else knows of it."""
        with contextlib.suppress(errors.BatchMissing):
            sealed = sealed or (await self._store.get(batch_id)).submission.sealed
            for key in keys_of_lost_turns(batch_id, sealed):
                await self._blobs.delete(key)

    async def sweep(self, older_than: float) -> None:
        """Remove results of forgotten batches, last changed before a Unix time."""
        try:
            await self._ledger.sweep(self._known, older_than)
        except (OSError, errors.HaywainError) as error:
            _log.error("sweep.failed", error=str(error))

    async def _open(self, stored: Stored, instead: Batch | None = None) -> None:
        terms = stored.submission
        self._known.add(terms.batch_id)
        found = await self._ledger.open(stored)
        batch = Batch(
            submission=terms, recorded=found.recorded, journal=found.journal,
            input=Input(await self._path(terms.input_key)), index=terms.entries or await self._path(terms.index_key),
            lines=Lines(terms.body_defaults), prefix=row_prefix(terms.batch_id), meter=Meter(self._clock), tally=found.tally,
            accepted=found.tally.rows, stop_reason=terms.stop_reason, start_time=terms.start_time,
            models=tuple(first.first_row for first, *_ in _by_model(stored.shards)),
            shard_rows=max((shard.row_count for shard in stored.shards), default=1), queued_shards=found.open_shards,
            changed=terms.changed, pins=self.pins_of(terms.batch_id),
        )  # fmt: skip
        if self.batches.get(terms.batch_id) is not instead:
            return
        if instead is not None:
            instead.forgotten = True
            batch.stop_reason = batch.stop_reason or instead.stop_reason  # it may have been stopped since SQL was read
        self.batches[terms.batch_id] = batch
        if not batch.ended:
            self.added(batch)

    async def _path(self, key: str) -> Path:
        try:
            return await self._blobs.local(key)
        except errors.FileGone:
            _log.error("blob.missing", key=key)
            return MISSING


def _check(request: pb.SubmitBatchRequest) -> None:
    if not ids.is_one(request.batch_id):
        raise errors.InvalidRequest("batch_id is not an id", param="batch_id")
    row = 0
    for shard in request.shards:
        if shard.first_row != row or shard.row_count < 1 or not shard.model:
            raise errors.InvalidRequest("shards must cover every row exactly once, in order, each of one model", param="shards")
        row += shard.row_count
    if request.index and len(request.index) != request.row_count * ENTRY_BYTES:
        raise errors.InvalidRequest(f"{len(request.index)} bytes are no index of {request.row_count} rows", param="index")
    if row != request.row_count:
        raise errors.InvalidRequest(f"shards cover {row} rows of {request.row_count}", param="shards")
    try:
        Lines(request.body_defaults.decode())
    except (ValueError, msgspec.DecodeError) as error:
        raise errors.InvalidRequest("body_defaults is not a JSON object", param="body_defaults") from error


def _by_model(shards: list[ShardRow]) -> list[list[ShardRow]]:
    return [list(run) for _, run in itertools.groupby(shards, key=lambda shard: shard.model)]

"""From `validating` to the scheduler: check the input, keep the plan, hand the batch in.

    find models ──▶ validate in the other process ──▶ publish the index ──▶ keep the plan ──▶ SubmitBatch
         │                      └─ bad lines ──▶ failed (or cancelled, when that was asked for meanwhile)
         └─ no engine is there at all: wait

Each arrow may be cut by a kill: what comes before it is done again and ends the same. The plan is kept before the scheduler hears
of the batch, so that a restart never comes to another verdict on rows that run already.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from haywain import errors, log
from haywain.blobs import BlobStore, mapped
from haywain.clock import Clock, timestamp
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2
from haywain.settings import BatchesSettings
from services.batches.lifecycle import Status
from services.batches.lines import Served
from services.batches.peers import Scheduler
from services.batches.record import Fault, Record
from services.batches.store import BatchStore
from services.batches.validate import Order, Verdict
from services.batches.validator import Validator, ValidatorDied

__all__ = ["Intake", "index_key"]

MAX_LOSSES = 2
EMPTY_SECONDS = 0.5
"""How long the news that no model is served is believed, so that many waiting batches don't all ask."""
_log = log.get()


def index_key(batch_id: str) -> str:
    """Name the blob of a batch's index."""
    return f"index-{batch_id}"


class Intake:
    """Validates batches and hands them in."""

    def __init__(self, store: BatchStore, scheduler: Scheduler, blobs: BlobStore, settings: BatchesSettings, clock: Clock) -> None:
        """Starts its process when there is something to validate."""
        self._store = store
        self._scheduler = scheduler
        self._blobs = blobs
        self._settings = settings
        self._clock = clock
        self._validator = Validator()
        self._none_served_at = float("-inf")

    async def validate(self, record: Record) -> bool:
        """Validate a batch that has no plan yet; False when it must wait for an engine.

        Raises Unavailable and StorageFull, to be tried again.
        """
        if not record.input_blob_key:
            await self._fail(record, [Fault("invalid_request", f"No such File object: '{record.input_file_id}'.", "file_id")])
            return True
        models = await self.models()
        if not models and not self._goes_nowhere(record):
            return False
        scratch = self._blobs.scratch()
        try:
            with mapped("validation"):
                verdict = await self._validator.validate(
                    self._order(record, models, scratch, await self._blobs.local(record.input_blob_key))
                )
        except ValidatorDied:
            await self._lost(record)
            return True
        except errors.FileGone:
            message = f"The content of the file '{record.input_file_id}' is gone."
            await self._fail(record, [Fault("invalid_request", message, "file_id")])
            return True
        await self._conclude(record, verdict, scratch)
        return True

    async def submit(self, record: Record) -> None:
        """Hand a batch with a plan to the scheduler; repeating it changes nothing."""
        plan = record.plan
        if plan is None:
            raise errors.HaywainError(f"batch {record.batch_id} has no plan")
        defaults = {name: value for name, (_, value) in record.defaults.members().items()}
        if record.default_model:
            defaults["model"] = record.default_model
        request = scheduler_pb2.SubmitBatchRequest(
            batch_id=record.batch_id,
            tenant=record.tenant,
            endpoint=record.endpoint,
            lane=engine_pb2.LANE_EXPEDITED if record.expedited else engine_pb2.LANE_STANDARD,
            expire_time=timestamp(record.expires_at),
            input_blob_key=record.input_blob_key,
            index_blob_key=index_key(record.batch_id),
            shards=[
                scheduler_pb2.Shard(model=shard.model, first_row=shard.first_row, row_count=shard.row_count)
                for shard in plan.shards
            ],
            row_count=plan.row_count,
            body_defaults=msgspec.json.encode(defaults) if defaults else b"",
            deterministic=record.deterministic,
        )
        await self._scheduler.submit(request)
        _log.info("batch.submitted", batch_id=record.batch_id, rows=plan.row_count, shards=len(plan.shards))

    async def models(self, *, fresh: bool = False) -> list[engine_pb2.ModelDescription]:
        """List the models served; that there are none is believed for a moment unless it must be `fresh`."""
        now = asyncio.get_running_loop().time()
        if not fresh and now < self._none_served_at + EMPTY_SECONDS:
            return []
        models = await self._scheduler.models()
        self._none_served_at = now if not models else float("-inf")
        return models

    def close(self) -> None:
        """End the validation process."""
        self._validator.close()

    def _goes_nowhere(self, record: Record) -> bool:
        """Tell whether the rows won't run whatever models there are: then none is waited for, and any is accepted."""
        return record.status is Status.CANCELLING or self._clock.now() >= record.expires_at

    def _order(self, record: Record, models: list[engine_pb2.ModelDescription], scratch: Path, input_path: Path) -> Order:
        settings = self._settings
        return Order(
            input_path=str(input_path),
            index_path=str(scratch),
            endpoint=record.endpoint,
            default_model=record.default_model,
            served=_served(models, record.endpoint) if models else None,
            members={name: batch_name for name, (batch_name, _) in record.defaults.members().items()},
            deterministic=record.deterministic,
            mixed_models=settings.mixed_models,
            max_lines=settings.max_lines,
            max_line_bytes=settings.max_line_bytes,
            max_errors=settings.max_errors,
            shard_rows=settings.shard_rows,
        )

    async def _conclude(self, record: Record, verdict: Verdict, scratch: Path) -> None:
        if verdict.plan is None:
            await self._fail(record, verdict.faults)
            return
        await self._blobs.publish(scratch, index_key(record.batch_id))
        await self._store.set_plan(record.batch_id, verdict.model, verdict.plan)

    async def _lost(self, record: Record) -> None:
        losses = await self._store.lose_validation(record.batch_id)
        _log.error("validation.died", batch_id=record.batch_id, losses=losses)
        if losses < MAX_LOSSES:
            raise errors.Unavailable(retry_after=1)
        await self._fail(record, [Fault("batch_failed", f"The validation of the input file broke down {losses} times.")])

    async def _fail(self, record: Record, faults: list[Fault]) -> None:
        first = faults[0]
        error = first
        if first.line:
            error = Fault("validation_failed", f"The input file has bad lines; the first is line {first.line}: {first.message}")
        moved = await self._store.move(record.batch_id, Status.FAILED, errors=faults, error=error)
        if moved is None:  # cancelled while it was validated
            await self._store.move(record.batch_id, Status.CANCELLED, errors=faults)
        _log.info("batch.invalid", batch_id=record.batch_id, code=first.code, faults=len(faults))


def _served(models: list[engine_pb2.ModelDescription], endpoint: str) -> dict[str, Served]:
    """Map every id, also as an alias, to what may be asked of its model; an id of its own wins over an alias."""
    served: dict[str, Served] = {}
    for model in models:
        what = Served(
            model=model.model,
            here=endpoint in model.endpoints or not model.endpoints,
            # The rules look at these themselves.
            fields=frozenset({*model.fields, "model", "messages", "prompt", "input", "stream"}) if model.fields else None,
            deterministic=model.deterministic,
        )
        for alias in model.aliases:
            served.setdefault(alias, what)
        served[model.model] = what
    return served

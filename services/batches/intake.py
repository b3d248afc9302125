"""From `validating` to the scheduler: check the input, keep the plan, hand the batch in.

    find models ──▶ validate ──▶ publish index and error lines ──▶ keep the plan, in_progress ──▶ SubmitBatch
         │             └─ bad lines ──▶ failed (or cancelled, when that was asked for meanwhile)
         └─ no engine is there at all: wait

Each arrow may be cut by a kill: what comes before it is done again and ends the same. The plan is kept before the scheduler hears
of the batch, so that a restart never comes to another verdict on rows that run already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec

from haywain import crash, errors, log
from haywain.blobs import BlobStore, mapped
from haywain.clock import Clock, timestamp
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2
from haywain.settings import Settings
from services.batches.figures import VALIDATION_LINES, VALIDATION_SECONDS
from services.batches.lifecycle import Status
from services.batches.lines import Served
from services.batches.own_files import index_key, rejected_key
from services.batches.peers import Scheduler
from services.batches.record import Fault, Record
from services.batches.store import BatchStore, planned
from services.batches.validate import Order, Verdict
from services.batches.validator import Validator, ValidatorDied

__all__ = ["Found", "Intake", "missing_file", "reason"]

MAX_LOSSES = 2
FEW_ROWS = 128
"""With so many rows, or fewer, the index is kept with the plan and the submission: files made and removed cost more than rows."""
MODELS_SECONDS = 0.5
"""How long the models heard of are believed, so that many batches don't all ask. Nothing is refused by old news."""
_log = log.get()


class Found(msgspec.Struct, frozen=True):
    """What validation found, and the files it wrote, not published yet."""

    verdict: Verdict
    index: Path
    rejected: Path


class Intake:
    """Validates batches and hands them in."""

    def __init__(self, store: BatchStore, scheduler: Scheduler, blobs: BlobStore, settings: Settings, clock: Clock) -> None:
        """Starts its process when there is something to validate."""
        self._store = store
        self._scheduler = scheduler
        self._blobs = blobs
        self._settings = settings.batches
        self._aliases = settings.scheduler.aliases
        self._clock = clock
        self._validator = Validator()
        self._models: list[engine_pb2.ModelDescription] = []
        self._models_at = float("-inf")

    async def source(self, record: Record) -> Path | None:
        """Find a batch's input; None when it is gone, or never was. Raises Unavailable."""
        try:
            return await self._blobs.local(record.input_blob_key) if record.input_blob_key else None
        except errors.FileGone:
            return None

    async def validate(self, record: Record, source: Path | None) -> Record | bool:
        """Validate a batch that has no plan yet; the batch, if it is in progress now, and False when it must wait for an engine.

        Raises Unavailable and StorageFull, to be tried again.
        """
        if not record.input_blob_key:
            await self._fail(record, [missing_file(record)])
            return True
        try:
            found = await self.look(record, source, rejected=record.reject)
        except ValidatorDied:
            await self._lost(record)
            return True
        except errors.FileGone:
            message = f"The content of the file '{record.input_file_id}' is gone."
            await self._fail(record, [Fault("invalid_request", message, "file_id")])
            return True
        if found is None:
            return False
        if found.verdict.plan is None:
            await self._fail(record, found.verdict.faults)
            return True
        crash.point("batches:validated")
        await self.publish(record, found)
        crash.point("batches:index-stored")
        model, plan = found.verdict.model, found.verdict.plan
        running = await self._store.move(record.batch_id, Status.IN_PROGRESS, model=model, **planned(plan))
        if running is None:  # cancelled meanwhile
            await self._store.set_plan(record.batch_id, model, plan)
        crash.point("batches:planned")
        return running or True

    async def look(self, record: Record, source: Path | None, *, rejected: bool) -> Found | None:
        """Validate an input, with error lines of bad lines if they are wanted; None when there is no engine yet.

        Raises ValidatorDied, FileGone, Unavailable, StorageFull. What it wrote and nobody publishes goes with stale scratch files.
        """
        models = await self.models()
        if not models and not self._goes_nowhere(record):
            return None
        if source is None:
            raise errors.FileGone
        index, bad = self._blobs.scratch(), self._blobs.scratch()
        order = self._order(record, models, source)
        order = msgspec.structs.replace(order, index_path=str(index), rejects_path=str(bad) if rejected else "")
        with mapped("validation"), VALIDATION_SECONDS.time():
            verdict = await self._validator.validate(order)
        VALIDATION_LINES.inc(record.line_count)
        if verdict.faults and (fresh := await self.models(fresh=True)) != models:  # an engine came just now: they may be good
            order = msgspec.structs.replace(order, served=_served(fresh, record.endpoint, self._aliases))
            with mapped("validation"):
                verdict = await self._validator.validate(order)
        return Found(verdict, index, bad)

    async def publish(self, record: Record, found: Found) -> None:
        """Make blobs of what validation wrote."""
        if found.verdict.plan is not None and not found.verdict.plan.index:
            await self._blobs.publish(found.index, index_key(record.batch_id))
        if found.verdict.rejects.size_bytes:
            await self._blobs.publish(found.rejected, rejected_key(record.batch_id))

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
            index_blob_key="" if plan.index else index_key(record.batch_id),
            index=plan.index,
            shards=[
                scheduler_pb2.Shard(model=shard.model, first_row=shard.first_row, row_count=shard.row_count)
                for shard in plan.shards
            ],
            row_count=plan.row_count,
            body_defaults=msgspec.json.encode(defaults) if defaults else b"",
            deterministic=record.deterministic,
            pack=record.pack,
            rejected_blob_key=rejected_key(record.batch_id) if plan.rejected else "",
            rejected_count=plan.rejected,
        )
        await self._scheduler.submit(request)
        _log.info("batch.submitted", batch_id=record.batch_id, rows=plan.row_count, shards=len(plan.shards))

    async def models(self, *, fresh: bool = False) -> list[engine_pb2.ModelDescription]:
        """List the models served; what was heard is believed for a moment unless it must be `fresh`."""
        now = asyncio.get_running_loop().time()
        if fresh or now > self._models_at + MODELS_SECONDS:
            self._models, self._models_at = await self._scheduler.models(), now
        return self._models

    def close(self) -> None:
        """End the validation process."""
        self._validator.close()

    def _goes_nowhere(self, record: Record) -> bool:
        """Tell whether the rows won't run whatever models there are: then none is waited for, and any is accepted."""
        return record.status is Status.CANCELLING or self._clock.now() >= record.expires_at

    def _order(self, record: Record, models: list[engine_pb2.ModelDescription], input_path: Path) -> Order:
        settings = self._settings
        return Order(
            input_path=str(input_path),
            index_path="",
            endpoint=record.endpoint,
            default_model=record.default_model,
            served=_served(models, record.endpoint, self._aliases) if models else None,
            members={name: batch_name for name, (batch_name, _) in record.defaults.members().items()},
            deterministic=record.deterministic,
            mixed_models=settings.mixed_models,
            max_lines=settings.max_lines,
            max_line_bytes=settings.max_line_bytes,
            max_errors=settings.max_errors,
            shard_rows=settings.shard_rows,
            reject=record.reject,
            few_rows=FEW_ROWS,
            row_prefix=f"batch_req_{record.batch_id.removeprefix('batch_')}_",
        )

    async def _lost(self, record: Record) -> None:
        losses = await self._store.lose_validation(record.batch_id)
        _log.error("validation.died", batch_id=record.batch_id, losses=losses)
        if losses < MAX_LOSSES:
            raise errors.Unavailable(retry_after=1)
        await self._fail(record, [Fault("batch_failed", f"The validation of the input file broke down {losses} times.")])

    async def _fail(self, record: Record, faults: list[Fault]) -> None:
        moved = await self._store.move(record.batch_id, Status.FAILED, errors=faults, error=reason(faults))
        if moved is None:  # cancelled while it was validated
            await self._store.move(record.batch_id, Status.CANCELLED, errors=faults)
        _log.info("batch.invalid", batch_id=record.batch_id, code=faults[0].code, faults=len(faults))


def missing_file(record: Record) -> Fault:
    """Make the fault of a batch whose input never was."""
    return Fault("invalid_request", f"No such File object: '{record.input_file_id}'.", "file_id")


def reason(faults: list[Fault]) -> Fault:
    """Tell in one fault why a batch with these failed."""
    first = faults[0]
    if not first.line:
        return first
    return Fault("validation_failed", f"The input file has bad lines; the first is line {first.line}: {first.message}")


def _served(models: list[engine_pb2.ModelDescription], endpoint: str, aliases: Mapping[str, str]) -> dict[str, Served]:
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
    for alias, model_id in aliases.items():
        served.setdefault(alias, Served(model_id, here=False, missing=True))  # else the scheduler would have told of it
    return served

"""Creating a batch: everything that must have happened before it is there, and nothing left of it when it comes to nothing.

    intent ──▶ hold the input, or write it ──▶ [validate] ──▶ one transaction ──▶ own files ──▶ driver
                                                              batch, answer, end of the intent

The batch is there with the transaction, whatever dies before or after. With `wait_seconds` or inline lines validation comes first:
a batch that none of its records can run of never was. Whatever is written before the transaction is named by the intent's batch id,
and cleared by it: at once when the creation fails, a minute later when the service died or the client left.

Idempotency keys: the answer is kept by the same transaction, so there is a batch with its answer or neither. It also finds what an
earlier request made; so a creation that is quickly done, and most likely the first, doesn't look before. The answer tells the batch
as it was created, for the first request as for all that repeat it; the gateway makes the same bytes of it each time. That a request
with a key is still running is known by this process only: with several of them the transaction alone decides, and the
second one answers what the first one did.

A batch whose creation was `held` begins when its client is answered: held.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from google.protobuf import json_format
from msgspec.structs import replace

from haywain import crash, errors, log
from haywain.batches.v1 import batches_pb2
from haywain.clock import Clock
from haywain.scheduler.v1 import scheduler_pb2
from haywain.settings import Settings
from services.batches.admission import Admission
from services.batches.creation import check_file, check_key, gone, new_record, patience
from services.batches.faults import Rejects
from services.batches.held import Held
from services.batches.intake import Found, Intake, missing_file, reason
from services.batches.lifecycle import Status
from services.batches.own_files import OwnFiles
from services.batches.peers import Files, Scheduler
from services.batches.progress import ProgressBook
from services.batches.record import Counts, Fault, Record
from services.batches.store import Answer, BatchStore, Key
from services.batches.validator import ValidatorDied
from services.batches.wire import batch_message, rejections_message

__all__ = ["Creator"]

_Response = batches_pb2.CreateBatchResponse
LOOK_AGAIN_SECONDS = 0.5
POOL_SECONDS = 1.0
_log = log.get()


class Creator:
    """Creates batches."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        parts: tuple[BatchStore, Intake, OwnFiles, ProgressBook],
        peers: tuple[Files, Scheduler],
        held: Held,
    ) -> None:
        """Nothing is kept here but which keys are in use. `held` is told of each new batch."""
        self._settings = settings
        self._clock = clock
        self._store, self._intake, self._own_files, self._book = parts
        self._files, self._scheduler = peers
        self._held = held
        self._running: dict[tuple[str, str], str] = {}
        self._pool: scheduler_pb2.GetPoolStatusResponse | None = None
        self._pool_at = self._rate = 0.0

    async def create(self, request: batches_pb2.CreateBatchRequest) -> _Response:
        """Create a batch, or answer what an earlier request that this one repeats was answered.

        Raises InvalidRequest, KeyReused, KeyInUse, CapacityExceeded, Unavailable, StorageFull.
        """
        tenant = request.tenant or "default"
        try:
            with self._alone(tenant, request):
                keys = _keys(request)
                looks_first = request.HasField("idempotency") or patience(request) > 0
                if looks_first and (known := await self._known(tenant, keys, request.request_id)) is not None:
                    return known
                try:
                    return await self._new(request, keys)
                except errors.HaywainError:
                    if (known := await self._known_now(tenant, keys, request.request_id)) is None:
                        raise
                    return known
        except errors.HaywainError as error:
            error.undone = error.undone is not False  # then a commit's outcome isn't known
            raise

    async def _known(self, tenant: str, keys: list[Key], request_id: str) -> _Response | None:
        """Find what an earlier request that this one repeats was answered. Raises KeyReused."""
        while keys and (earlier := await self._store.earlier(tenant, keys, request_id)) is not None:
            if await self._stands(tenant, earlier, request_id):
                return _again(earlier, request_id)
        return None

    async def _known_now(self, tenant: str, keys: list[Key], request_id: str) -> _Response | None:
        """Do the same, if that can be done, for a creation that failed: it may be in the way of its repetition that it happened."""
        with contextlib.suppress(errors.HaywainError):
            return await self._known(tenant, keys, request_id)
        return None

    async def _stands(self, tenant: str, earlier: Record | Answer, request_id: str) -> bool:
        """Tell whether an earlier answer may be given again; then its batch stays, whatever becomes of the first who asked."""
        if isinstance(earlier, Record) or earlier.request_id in ("", request_id):
            return True
        return await self._held.stands(tenant, earlier.request_id)

    @contextlib.contextmanager
    def _alone(self, tenant: str, request: batches_pb2.CreateBatchRequest) -> Iterator[None]:
        """Keep other requests with the same idempotency key out. Raises KeyInUse, KeyReused, InvalidRequest."""
        if not request.HasField("idempotency"):
            yield
            return
        check_key(request.idempotency.key)
        name, fingerprint = (tenant, request.idempotency.key), request.idempotency.fingerprint
        if name in self._running:
            if self._running[name] != fingerprint:
                raise errors.KeyReused(param="Idempotency-Key")
            raise errors.KeyInUse(param="Idempotency-Key", retry_after=1)
        self._running[name] = fingerprint
        try:
            yield
        finally:
            del self._running[name]

    async def _new(self, request: batches_pb2.CreateBatchRequest, keys: list[Key]) -> _Response:
        record = new_record(request, self._settings.batches, self._clock.now())
        wait = patience(request)
        await self._own_files.check_room()
        await self._store.intend(record.batch_id)
        crash.point("batches:intended")
        try:
            record = await self._with_input(record, request.inline_input)
            if not record.input_blob_key:
                record = _failed(record, [missing_file(record)]) if wait else record
                return await self._recorded(record, Rejects() if wait else None, keys)
            found = await self._look(record, wait) if wait else None
            if found is None:
                return await self._recorded(record, None, keys)
            if found.verdict.good:
                return await self._recorded(await self._concluded(record, found), found.verdict.rejects, keys)
        except errors.HaywainError:
            await self._undo(record)
            raise
        await self._undo(record)
        _log.info("batch.without_valid_records", batch_id=record.batch_id, rejected=found.verdict.rejects.count)
        return _Response(rejections=rejections_message(found.verdict.rejects, ""))

    async def _with_input(self, record: Record, inline: bytes) -> Record:
        """Hold the input, or write it; without a blob key when there is no such file. Raises InvalidRequest."""
        if inline:
            own = await self._own_files.write_input(record.batch_id, inline)
            source = {"input_file_id": own.file_id, "input_blob_key": own.blob_key, "own_files": [own], "adopted": False}
            return replace(record, line_count=own.line_count, rows_left=own.line_count, **source)
        try:
            held = await self._files.hold(record.tenant, record.input_file_id, record.batch_id)
            crash.point("batches:input-held")
        except errors.FileMissing as error:
            if self._settings.batches.check_file_at_create:
                raise errors.InvalidRequest(error.message, param="input_file_id") from None
            return record
        except errors.FileGone as error:
            raise gone(record.input_file_id, error) from None
        check_file(held.file)
        lines = held.file.line_count
        return replace(record, input_blob_key=held.blob_key, line_count=lines, rows_left=lines)

    async def _look(self, record: Record, wait: float) -> Found | None:
        """Validate within `wait` seconds; None when that wasn't enough, or validation broke down: then the driver does it.

        Raises InvalidRequest when the input was deleted just now.
        """
        try:
            async with asyncio.timeout(wait):
                while True:
                    found = await self._intake.look(record, await self._intake.source(record), rejected=True)
                    if found is not None:
                        return found
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
        except (TimeoutError, ValidatorDied):
            return None
        except errors.FileGone as error:
            raise gone(record.input_file_id, error) from None

    async def _concluded(self, record: Record, found: Found) -> Record:
        """Publish what validation wrote and put what it found into the record."""
        await self._intake.publish(record, found)
        crash.point("batches:looked")
        verdict = found.verdict
        if verdict.rejects.count:
            own = [*(record.own_files or ()), self._own_files.rejections(record, verdict.rejects)]
            record = replace(record, own_files=own, adopted=False)
        if verdict.plan is None:
            return _failed(record, verdict.faults)
        rows, bad = verdict.plan.row_count, verdict.plan.rejected
        counts = Counts(total=rows + bad, failed=bad)
        return replace(record, plan=verdict.plan, model=verdict.model, counts=counts, rows_left=rows)

    async def _recorded(self, record: Record, rejects: Rejects | None, keys: list[Key]) -> _Response:
        """Take the step that makes the batch, and those that the driver would take if this were cut off here."""
        now = self._clock.now()
        ended = {"failed_at": now} if record.status is Status.FAILED else {}
        later = now - record.created_at
        held_until = record.held_until and record.held_until + later
        record = replace(record, created_at=now, expires_at=record.expires_at + later, held_until=held_until, **ended)
        answer = _Response(batch=batch_message(record, None))
        if rejects is not None:
            own = record.own("rejections")
            answer.rejections.CopyFrom(rejections_message(rejects, own.file_id if own else ""))
        else:
            keys = [key for key in keys if key.operation != "request"]  # the batch itself says enough
        text = json_format.MessageToJson(answer, indent=None) if keys else ""
        try:
            earlier = await self._added(record, POOL_SECONDS, keys, text)
        except errors.CapacityExceeded:
            earlier = await self._added(record, 0.0, keys, text)
        if earlier is not None:  # the same request at the same time
            await self._undo(record)
            if not await self._stands(record.tenant, earlier, record.request_id or ""):
                raise errors.KeyInUse(param="Idempotency-Key", retry_after=1)
            return _again(earlier, record.request_id or "")
        crash.point("batches:created")
        _log.info("batch.created", batch_id=record.batch_id, input_file_id=record.input_file_id, lines=record.line_count)
        if not record.adopted:
            with contextlib.suppress(errors.HaywainError):  # the driver will
                await self._own_files.adopt(record)
        self._held.created(record)
        return answer

    async def _added(self, record: Record, pool_age: float, keys: list[Key], answer: str) -> Record | Answer | None:
        admission = await self._admission(pool_age)
        try:
            return await self._store.add(record, admission, keys, answer)
        except errors.Unavailable as error:
            if type(error) is errors.Unavailable:
                error.undone = False  # a commit may have been under way
            raise

    async def _undo(self, record: Record) -> None:
        """Clear what is left of a creation; what fails here is done by the driver's sweep."""
        with contextlib.suppress(errors.HaywainError):
            await self._own_files.clear(record.batch_id)

    async def _admission(self, age: float) -> Admission:
        """Ask the scheduler how full it is, unless that was asked within `age` seconds: our own batches are counted in any case."""
        settings, now = self._settings, asyncio.get_running_loop().time()
        capacity, rows = settings.scheduler.intake_rows, None
        with contextlib.suppress(errors.HaywainError):
            if self._pool is None or now > self._pool_at + age:
                self._rate = self._book.rows_per_second()
                self._pool, self._pool_at = await self._scheduler.pool(), now
            capacity, rows = self._pool.intake_capacity, self._pool.intake_rows
        return Admission(capacity, rows, self._rate, settings.batches.one_active_per_file, self._held.void)


def _keys(request: batches_pb2.CreateBatchRequest) -> list[Key]:
    given = request.idempotency
    by_client = [Key("create", given.key, given.fingerprint)] if request.HasField("idempotency") else []
    return [*by_client, *([Key("request", request.request_id)] if request.request_id else ())]


def _again(earlier: Record | Answer, request_id: str) -> _Response:
    """Answer what an earlier request got; it isn't a replay when that was the same call, repeated by whoever makes calls."""
    if isinstance(earlier, Record):
        return _Response(batch=batch_message(earlier, None))
    answer = json_format.Parse(earlier.text, _Response())
    answer.replayed = earlier.request_id != request_id or not request_id
    return answer


def _failed(record: Record, faults: list[Fault]) -> Record:
    return replace(record, status=Status.FAILED, errors=faults, error=reason(faults), rows_left=0)

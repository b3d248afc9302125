"""Uploads and their parts in SQL: every linearisation point of a file that comes in parts is one transaction here.

    pending ──▶ completed      with its file, in one transaction
       ├──────▶ cancelled
       └──────▶ expired

An upload that isn't pending any more takes no parts, and needs none: their blobs go first, their rows last, so that whatever a
kill interrupts is found again by `doomed_parts`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from haywain import errors
from haywain.clock import Clock
from haywain.db import Database, Row, Transaction
from services.files.store import NewFile, check_published, insert_file

__all__ = ["NewUpload", "PartRecord", "UploadRecord", "UploadStore"]

COMPLETING_SECONDS = 600.0
"""An upload's parts stay this long after its expiry, for a completion that began in time."""


class NewUpload(msgspec.Struct, frozen=True, kw_only=True):
    """What is announced. `expires_after` is the file's, in seconds, 0 for never."""

    id: str
    tenant: str
    request_id: str
    filename: str
    purpose: str
    mime_type: str
    size_bytes: int
    expires_after: float


class UploadRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An upload's record. Times in Unix seconds; `status`: pending, completed, cancelled, expired."""

    id: str
    tenant: str
    filename: str
    purpose: str
    mime_type: str
    size_bytes: int
    expires_after: float
    status: str
    created_at: float
    expires_at: float
    part_ids: str
    file_id: str | None


class PartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A part's record; its blob has the same name."""

    id: str
    upload_id: str
    size_bytes: int
    created_at: float


class UploadStore:
    """The records of all tenants. An id of another tenant is answered like one that never was."""

    def __init__(self, database: Database, clock: Clock) -> None:
        """Take an open database."""
        self._database = database
        self._clock = clock

    async def create(self, new: NewUpload, seconds: float) -> UploadRecord:
        """Record an upload that may take `seconds`; with a `request_id` that was used before, answers that one."""

        def create(tx: Transaction) -> UploadRecord:
            now = self._clock.now()
            row = msgspec.structs.asdict(new)
            row |= {"request_id": new.request_id or None, "created_at": now, "expires_at": now + seconds}
            if tx.execute("add_upload", **row):
                return self._get(tx, new.tenant, new.id)
            return self._record(tx.fetch_one("upload_by_request", tenant=new.tenant, request_id=new.request_id), new.id)

        return await self._database.write(create)

    async def get(self, tenant: str, upload_id: str) -> UploadRecord:
        """Read a record as it is now: past `expires_at` it is expired, swept or not. Raises UploadMissing."""
        return await self._database.read(lambda tx: self._get(tx, tenant, upload_id))

    async def pending(self, tenant: str, upload_id: str) -> UploadRecord:
        """Read a record that takes parts. Raises UploadMissing, Conflict."""
        record = await self.get(tenant, upload_id)
        _check_pending(record)
        return record

    async def add_part(self, tenant: str, part: PartRecord, max_bytes: int, published_at: float) -> None:
        """Record a part whose blob was published at `published_at`. Durable when this returns.

        Raises UploadMissing; Conflict when the upload takes no more; TooLarge when all its parts are over `max_bytes`;
        Unavailable when the blob is too old to be safe from the sweep.
        """

        def add(tx: Transaction) -> None:
            check_published(published_at, self._clock.now())
            _check_pending(self._get(tx, tenant, part.upload_id))
            tx.execute("add_part", **msgspec.structs.asdict(part))
            row = tx.fetch_one("bytes_of_upload", upload_id=part.upload_id)
            if row is not None and row["size_bytes"] > max_bytes:
                message = f"The parts are too large: {row['size_bytes']} bytes together, the limit is {max_bytes} bytes."
                raise errors.TooLarge(message, param="data")

        await self._database.write(add)

    async def chosen(self, tenant: str, upload_id: str, part_ids: Sequence[str]) -> UploadRecord:
        """Read a record that can be completed, or is completed, with these parts.

        Raises UploadMissing; InvalidRequest for a part that is unknown or named twice, and for a sum that isn't what was announced;
        Conflict for an upload that has ended otherwise.
        """

        def chosen(tx: Transaction) -> UploadRecord:
            record = self._get(tx, tenant, upload_id)
            if not _is_completed(record, part_ids):
                _check_pending(record)
                sizes = {row["id"]: row["size_bytes"] for row in tx.fetch("parts_of_upload", upload_id=upload_id)}
                _check_parts(record, part_ids, sizes)
            return record

        return await self._database.read(chosen)

    async def complete(self, upload: UploadRecord, part_ids: Sequence[str], file: NewFile, published_at: float) -> UploadRecord:
        """Make `file` the outcome of an upload. Durable when this returns.

        Of completions at the same time the first one counts, and the others are answered with it: the caller compares the file
        id with its own. A completion that began in time isn't ended by the clock. Raises Conflict for an upload that has ended
        otherwise, Unavailable when the blob is too old to be safe from the sweep.
        """

        def complete(tx: Transaction) -> UploadRecord:
            now = self._clock.now()
            check_published(published_at, now)
            record = self._stored(tx, upload.tenant, upload.id)
            if not _is_completed(record, part_ids):
                _check_pending(record)
                if not insert_file(tx, file, now):
                    raise errors.HaywainError(f"upload {upload.id}: its file is recorded, it is not")
                tx.execute("complete_upload", id=upload.id, part_ids=" ".join(part_ids), file_id=file.id)
            return self._stored(tx, upload.tenant, upload.id)

        return await self._database.write(complete)

    async def cancel(self, tenant: str, upload_id: str) -> UploadRecord:
        """Cancel a pending upload; idempotent. Raises UploadMissing; Conflict for one that ended otherwise."""

        def cancel(tx: Transaction) -> UploadRecord:
            tx.execute("cancel_upload", id=upload_id, tenant=tenant, now=self._clock.now())
            record = self._get(tx, tenant, upload_id)
            if record.status != "cancelled":
                raise errors.Conflict(f"Cannot cancel an upload with status '{record.status}'.")
            return record

        return await self._database.write(cancel)

    # -- for the sweep --------------------------------------------------------------------------------------------------------

    async def expire(self) -> int:
        """Mark the uploads that can't be completed any more; the number of them."""
        before = self._clock.now() - COMPLETING_SECONDS
        return await self._database.write(lambda tx: tx.execute("expire_uploads", before=before))

    async def doomed_parts(self, limit: int) -> list[str]:
        """Find parts that no upload needs any more."""
        return [row["id"] for row in await self._database.read(lambda tx: tx.fetch("doomed_parts", n=limit))]

    async def parts_removed(self, part_ids: list[str]) -> None:
        """Drop the rows of parts whose blobs are no more."""
        await self._database.write(lambda tx: tx.execute_many("part_removed", [{"id": part_id} for part_id in part_ids]))

    async def unrecorded(self, blob_keys: list[str]) -> list[str]:
        """Tell which of these blobs are no part. A write, so that it waits for an `add_part` that is under way."""
        return await self._database.write(lambda tx: [key for key in blob_keys if not tx.fetch("part_by_id", id=key)])

    async def forget_requests(self, before: float) -> None:
        """Drop request ids of uploads announced before a Unix time."""
        await self._database.write(lambda tx: tx.execute("forget_upload_requests", before=before))

    # -- inside a transaction -------------------------------------------------------------------------------------------------

    def _get(self, tx: Transaction, tenant: str, upload_id: str) -> UploadRecord:
        record = self._stored(tx, tenant, upload_id)
        if record.status == "pending" and record.expires_at <= self._clock.now():
            return msgspec.structs.replace(record, status="expired")
        return record

    def _stored(self, tx: Transaction, tenant: str, upload_id: str) -> UploadRecord:
        return self._record(tx.fetch_one("upload_by_id", id=upload_id, tenant=tenant), upload_id)

    def _record(self, row: Row | None, upload_id: str) -> UploadRecord:
        if row is None:
            raise errors.UploadMissing(f"No such Upload object: {upload_id}", param="upload_id")
        return msgspec.convert(row, UploadRecord)


def _is_completed(record: UploadRecord, part_ids: Sequence[str]) -> bool:
    if record.status != "completed":
        return False
    if record.part_ids != " ".join(part_ids):
        raise errors.Conflict(f"The upload '{record.id}' was completed with other parts.", param="part_ids")
    return True


def _check_pending(record: UploadRecord) -> None:
    if record.status != "pending":
        raise errors.Conflict(f"The upload '{record.id}' has status '{record.status}' and can't be changed any more.")


def _check_parts(record: UploadRecord, part_ids: Sequence[str], sizes: dict[str, int]) -> None:
    seen: set[str] = set()
    for part_id in part_ids:
        if part_id not in sizes:
            raise errors.InvalidRequest(f"The upload '{record.id}' has no part '{part_id[:100]}'.", param="part_ids")
        if part_id in seen:
            raise errors.InvalidRequest(f"The part '{part_id}' is named twice.", param="part_ids")
        seen.add(part_id)
    size = sum(sizes[part_id] for part_id in part_ids)
    if size != record.size_bytes:
        message = f"The upload was announced with {record.size_bytes} bytes, but these parts have {size} bytes."
        raise errors.InvalidRequest(message, param="part_ids")

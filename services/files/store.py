"""File records in SQL: every linearisation point of a file's life is one transaction here.

    uploaded | processed ──▶ expired ──▶ deleted
            └──────────────────────────────▲

A record outlives its bytes. The bytes of an expired or deleted file go once nobody holds them: the record changes first, the blob
goes next, `has_bytes` last, so that whatever a kill interrupts is found again by `doomed`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from haywain import errors
from haywain.clock import Clock
from haywain.db import Database, Row, Transaction

__all__ = ["PUBLISH_SECONDS", "Also", "FileRecord", "FileStore", "NewFile", "check_published", "gone", "insert_file"]

PUBLISH_SECONDS = 1_800.0
"""A blob older than this is not made a file any more: the sweep may be about to remove it. Half the sweep's grace."""


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a file before it is recorded. `origin`: upload, adopt. `expires_after` in seconds, 0 for never."""

    id: str
    tenant: str
    origin: str
    request_id: str
    filename: str
    purpose: str
    status: str
    size_bytes: int
    line_count: int
    sha256: str
    expires_after: float
    blob_key: str


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A file's record. Times in Unix seconds; `status`: uploaded, processed, error, expired, deleted."""

    id: str
    tenant: str
    filename: str
    purpose: str
    status: str
    status_details: str
    size_bytes: int
    line_count: int
    sha256: str
    created_at: float
    expires_at: float | None
    blob_key: str


Also = Callable[[Transaction, FileRecord], None]
"""What is done in the transaction that records a file."""


def gone(record: FileRecord) -> errors.FileGone | None:
    """Tell why a record's content can't be had, None when it can."""
    if record.status == "deleted":
        return errors.FileGone(f"The content of file '{record.id}' is gone: the file was deleted.", code="file_deleted", param="id")
    if record.status == "expired":
        return errors.FileGone(f"The content of file '{record.id}' is gone: the file has expired.", code="file_expired", param="id")
    return None


def check_published(published_at: float, now: float) -> None:
    """Refuse to record a blob that the sweep may be about to remove. Raises Unavailable."""
    if now - published_at > PUBLISH_SECONDS:
        raise errors.Unavailable(retry_after=1)


def insert_file(tx: Transaction, new: NewFile, now: float) -> bool:
    """Record a file, unless its `request_id`, or a file of its blob, is there already: then False."""
    row = msgspec.structs.asdict(new)
    expires_after = row.pop("expires_after")
    row |= {"request_id": new.request_id or None, "created_at": now, "expires_at": now + expires_after if expires_after else None}
    return tx.execute("add_file", **row) > 0


class FileStore:
    """The records of all tenants. An id of another tenant is answered like one that never was."""

    def __init__(self, database: Database, clock: Clock) -> None:
        """Take an open database."""
        self._database = database
        self._clock = clock

    async def add(
        self,
        new: NewFile,
        published_at: float | None,
        *,
        holder: str = "",
        also: Also | None = None,
    ) -> FileRecord:
        """Record a file whose blob was published at `published_at`, None when the sweep leaves it alone. Durable when this returns.

        With a `request_id` that was used before, answers the record of that time, whatever `new` says; a new file is held for
        `holder` from the start, and `also` is done with it. Raises Unavailable when the blob is too old to be safe from the sweep,
        Conflict when it belongs to another file, or its holder has let go: then what it was made for is over.
        """

        def add(tx: Transaction) -> FileRecord:
            now = self._clock.now()
            if published_at is not None:
                check_published(published_at, now)
            if insert_file(tx, new, now):
                if holder and tx.fetch("has_released", holder=holder):
                    raise errors.Conflict(f"The holder '{holder}' has released what it held.", param="holder")
                if holder:
                    tx.execute("hold", holder=holder, file_id=new.id)
                made = self._record(tx.fetch_one("file_by_id", id=new.id, tenant=new.tenant), new.id)
                if also is not None:
                    also(tx, made)
                return made
            earlier = self._of_request(tx, new.tenant, new.origin, new.request_id)
            if earlier is None:
                raise errors.Conflict(f"The blob {new.blob_key!r} already belongs to a file.")
            return earlier

        return await self._database.write(add)

    async def of_request(self, tenant: str, origin: str, request_id: str) -> FileRecord | None:
        """Find what an earlier request with this id made; None for an empty id."""
        return await self._database.read(lambda tx: self._of_request(tx, tenant, origin, request_id))

    async def get(self, tenant: str, file_id: str) -> FileRecord:
        """Read a record as it is now: past `expires_at` it is expired, swept or not. Raises FileMissing."""
        return await self._database.read(lambda tx: self._get(tx, tenant, file_id))

    async def page(self, tenant: str, purpose: str, *, after: str, limit: int, ascending: bool) -> list[FileRecord]:
        """List up to `limit` records that aren't deleted by (created_at, id), from behind the id `after`.

        `after` may be deleted by now. Raises NoSuchCursor when it never was this tenant's.
        """

        def page(tx: Transaction) -> list[FileRecord]:
            edge: Row = {"created_at": 0.0 if ascending else math.inf, "id": ""}
            if after:
                row = tx.fetch_one("file_by_id", id=after, tenant=tenant)
                if row is None:
                    raise errors.NoSuchCursor(f"No such File object: {after}", param="after")
                edge = row
            query = f"page_{'ascending' if ascending else 'descending'}{'_of_purpose' if purpose else ''}"
            of_purpose = {"purpose": purpose} if purpose else {}
            rows = tx.fetch(query, tenant=tenant, created_at=edge["created_at"], id=edge["id"], n=limit, **of_purpose)
            return [self._record(row, "") for row in rows]

        return await self._database.read(page)

    async def delete(self, tenant: str, file_id: str) -> FileRecord:
        """Mark a file deleted; idempotent. Raises FileMissing."""

        def delete(tx: Transaction) -> FileRecord:
            tx.execute("delete_file", id=file_id, tenant=tenant)
            return self._get(tx, tenant, file_id)

        return await self._database.write(delete)

    async def hold(self, tenant: str, file_id: str, holder: str) -> FileRecord:
        """Keep a file's bytes for `holder`. A hold that stands is answered whatever became of the file.

        Raises FileMissing; FileGone when the file went before it was held; Conflict when the holder has let go: its release
        overtook this hold, which nobody would end.
        """

        def hold(tx: Transaction) -> FileRecord:
            record = self._get(tx, tenant, file_id)
            if not tx.fetch("held", holder=holder, file_id=file_id):
                if tx.fetch("has_released", holder=holder):
                    raise errors.Conflict(f"The holder '{holder}' has released what it held.", param="holder")
                reason = gone(record)
                if reason is not None:
                    raise reason
                tx.execute("hold", holder=holder, file_id=file_id)
            return record

        return await self._database.write(hold)

    async def release(self, holders: Sequence[str]) -> int:
        """End all holds of `holders` for good; the number of them."""

        def release(tx: Transaction) -> int:
            now = self._clock.now()
            tx.execute_many("remember_release", [{"holder": holder, "now": now} for holder in holders])
            return sum(tx.execute("release", holder=holder) for holder in holders)

        return await self._database.write(release)

    # -- for the sweep --------------------------------------------------------------------------------------------------------

    async def expire(self) -> int:
        """Mark the files whose time has come; the number of them."""
        return await self._database.write(lambda tx: tx.execute("expire_files", now=self._clock.now()))

    async def doomed(self, limit: int) -> dict[str, str]:
        """Find files whose bytes nobody needs any more: id to blob key."""
        rows = await self._database.read(lambda tx: tx.fetch("doomed", n=limit))
        return {row["id"]: row["blob_key"] for row in rows}

    async def bytes_removed(self, file_ids: list[str]) -> None:
        """Note that the blobs of these files are no more."""
        await self._database.write(lambda tx: tx.execute_many("bytes_removed", [{"id": file_id} for file_id in file_ids]))

    async def unrecorded(self, blob_keys: list[str]) -> list[str]:
        """Tell which of these blobs belong to no file. A write, so that it waits for an `add` that is under way."""
        return await self._database.write(lambda tx: [key for key in blob_keys if not tx.fetch("file_by_blob", blob_key=key)])

    async def forget_requests(self, before: float) -> None:
        """Drop request ids of uploads made before a Unix time; those of adopted blobs stay."""
        await self._database.write(lambda tx: tx.execute("forget_requests", before=before))

    async def forget_releases(self, before: float) -> None:
        """Drop what is remembered of holders that released before a Unix time."""
        await self._database.write(lambda tx: tx.execute("forget_releases", before=before))

    # -- inside a transaction -------------------------------------------------------------------------------------------------

    def _get(self, tx: Transaction, tenant: str, file_id: str) -> FileRecord:
        return self._record(tx.fetch_one("file_by_id", id=file_id, tenant=tenant), file_id)

    def _of_request(self, tx: Transaction, tenant: str, origin: str, request_id: str) -> FileRecord | None:
        row = tx.fetch_one("file_by_request", tenant=tenant, origin=origin, request_id=request_id) if request_id else None
        return None if row is None else self._record(row, "")

    def _record(self, row: Row | None, file_id: str) -> FileRecord:
        if row is None:
            raise errors.FileMissing(f"No such File object: {file_id}", param="id")
        record = msgspec.convert(row, FileRecord)
        if record.status != "deleted" and record.expires_at is not None and record.expires_at <= self._clock.now():
            return msgspec.structs.replace(record, status="expired")
        return record

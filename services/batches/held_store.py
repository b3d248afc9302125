"""The SQL of creations whose client isn't answered yet; held.py tells what it is for."""

from __future__ import annotations

from haywain.db import Database, Transaction
from services.batches.record import Record, from_row

__all__ = ["HeldStore"]


class HeldStore:
    """Ends holds, one way or the other: whichever transaction comes first decides."""

    def __init__(self, database: Database) -> None:
        """Take the database of the batches."""
        self._database = database

    async def begin(self, tenant: str, request_id: str) -> Record | None:
        """Let the batch of a request run, whatever is told of it from now on; None when there is no such batch."""

        def begin(tx: Transaction) -> Record | None:
            row = tx.fetch_one("batch_of_request", tenant=tenant, request_id=request_id)
            if row is not None and row["held_until"]:
                tx.execute("begin", batch_id=row["batch_id"])
            return None if row is None else from_row(row)

        return await self._database.write(begin)

    async def revoke(self, tenant: str, request_id: str) -> Record | None:
        """Unmake the batch of a request, with the answers that tell of it, unless it has begun; the batch as it was.

        None when there is none. What the batch had at files and as blobs is left to its intent, which is there again, and doomed.
        """

        def revoke(tx: Transaction) -> Record | None:
            row = tx.fetch_one("batch_of_request", tenant=tenant, request_id=request_id)
            if row is None:
                return None
            if tx.execute("revoke", batch_id=row["batch_id"]):
                tx.execute("revoke_answers", tenant=tenant, request_id=request_id)
                file_ids = " ".join(file.file_id for file in from_row(row).own_files or ())
                tx.execute("add_intent", batch_id=row["batch_id"], created_at=0.0, tenant=tenant, file_ids=file_ids)
            return from_row(row)

        return await self._database.write(revoke)

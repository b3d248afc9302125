"""Batches that keep to one digest of a model (`scheduler.pin_batch_to_digest`): that of the engine which is sent the first row.

It is in SQL before the row is sent, and the first that is written stays; so it holds over restarts, and whichever schedulers and
engines begin at the same time. From then on the batch's rows are asked for under a key with the digest.
"""

from __future__ import annotations

from haywain.db import Database, Transaction
from services.scheduler.batch import Attempt, Batch
from services.scheduler.link import Link

__all__ = ["Pins"]


class Pins:
    """The digests of one database's batches."""

    def __init__(self, database: Database) -> None:
        """Nothing is known."""
        self._database = database
        self._known: dict[str, dict[str, str]] = {}

    async def load(self) -> None:
        """Know what was written in an earlier life."""
        for row in await self._database.read(lambda tx: tx.fetch("list_pins")):
            self._known.setdefault(str(row["batch_id"]), {})[str(row["model"])] = str(row["digest"])

    def of(self, batch_id: str) -> dict[str, str]:
        """Give what a batch that is opened keeps to, by model."""
        return self._known.pop(batch_id, {})

    async def pin(self, batch: Batch, model: str, digest: str) -> str:
        """Have a batch keep to a digest, unless it does to another; gives the one that it keeps to. Raises Unavailable."""

        def pin(tx: Transaction) -> str:
            tx.execute("insert_pin", batch_id=batch.batch_id, model=model, digest=digest)
            row = tx.fetch_one("get_pin", batch_id=batch.batch_id, model=model)
            return digest if row is None else str(row["digest"])

        found = await self._database.write(pin)
        return batch.pins.setdefault(model, found)

    def fits(self, link: Link, attempt: Attempt) -> bool:
        """Tell whether an engine may run a row."""
        return attempt.held.batch.pins.get(attempt.held.model) == link.digest(attempt.held.model)

"""Model leases for a scheduler that is played: the real ones, in a database of their own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from haywain.clock import SystemClock
from haywain.db import open_database
from haywain.engine.v1 import engine_pb2
from services.scheduler.model_lease_store import ModelLeaseStore
from services.scheduler.model_leases import ModelLeases

__all__ = ["leases_of"]

_SQL = Path(__file__).parent.parent / "services" / "scheduler" / "sql"


@contextlib.asynccontextmanager
async def leases_of(models: Collection[engine_pb2.ModelDescription], folder: Path) -> AsyncIterator[ModelLeases]:
    """Give the leases of a scheduler that is alone and serves these models, as an earlier life left them."""
    database = await open_database("", _SQL, folder / "scheduler.db")
    clock = SystemClock()
    leases = ModelLeases(ModelLeaseStore(database, clock, "scheduler"), clock, (), alone=True)
    leases.names = lambda: {name: model.model for model in models for name in (*model.aliases, model.model)}
    await leases.load()
    try:
        yield leases
    finally:
        await database.close()

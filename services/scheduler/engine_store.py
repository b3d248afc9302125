"""The engines in SQL: how they described themselves, and what operators said of them. All schedulers read the same."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from google.protobuf import json_format

from haywain.clock import Clock
from haywain.db import Database, Transaction
from haywain.engine.v1 import engine_pb2

__all__ = ["EngineStore", "Known"]


class Known(msgspec.Struct, frozen=True):
    """An engine as SQL has it."""

    engine_id: str
    description: str
    seen_at: float
    """When it was last told of, Unix seconds."""
    drained: str
    """The incarnation that gets nothing more; empty for none."""
    standing: str
    """The address where it is asked how it is; empty: it registers itself."""
    removed: str | None
    """The incarnation that is to be forgotten."""

    @property
    def engine(self) -> engine_pb2.Engine:
        """Read its description."""
        return json_format.Parse(self.description, engine_pb2.Engine(), ignore_unknown_fields=True)


class EngineStore:
    """The engines of one database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        """The database is open."""
        self._database = database
        self._clock = clock

    async def put(self, engine: engine_pb2.Engine) -> None:
        """Remember how an engine describes itself."""
        await self._database.write(lambda tx: self._put(tx, engine))

    async def all(self) -> list[Known]:
        """Read all."""
        return msgspec.convert(await self._database.read(lambda tx: tx.fetch("list_engines")), list[Known])

    async def get(self, engine_id: str) -> Known | None:
        """Read one."""
        row = await self._database.read(lambda tx: tx.fetch_one("get_engine", engine_id=engine_id))
        return None if row is None else msgspec.convert(row, Known)

    async def drain(self, engine: engine_pb2.Engine) -> None:
        """Have every scheduler send this incarnation nothing more."""

        def drain(tx: Transaction) -> None:
            self._put(tx, engine)
            tx.execute("drain_engine", engine_id=engine.engine_id, incarnation=engine.incarnation)

        await self._database.write(drain)

    async def add(self, engine: engine_pb2.Engine) -> None:
        """Have every scheduler ask the engine at its address how it is, whatever was said of it before."""

        def add(tx: Transaction) -> None:
            self._put(tx, engine)
            tx.execute("add_engine", engine_id=engine.engine_id, address=engine.address)

        await self._database.write(add)

    async def remove(self, engine: engine_pb2.Engine) -> None:
        """Have every scheduler forget this incarnation, and ask it nothing more."""

        def remove(tx: Transaction) -> None:
            self._put(tx, engine)
            tx.execute("remove_engine", engine_id=engine.engine_id, incarnation=engine.incarnation)

        await self._database.write(remove)

    async def keep(self, engine_ids: Collection[str]) -> None:
        """Take note that engines are still heard of."""

        def keep(tx: Transaction) -> None:
            tx.execute_many("keep_engine", [{"engine_id": one, "now": self._clock.now()} for one in sorted(engine_ids)])

        if engine_ids:
            await self._database.write(keep)

    async def drop(self, before: float) -> None:
        """Forget engines that were last told of before a Unix time, but those that were added."""
        await self._database.write(lambda tx: tx.execute("drop_engines", before=before))

    def _put(self, tx: Transaction, engine: engine_pb2.Engine) -> None:
        description = json_format.MessageToJson(engine, indent=None)
        tx.execute("put_engine", engine_id=engine.engine_id, description=description, now=self._clock.now())

"""SQL without an ORM: named queries in files, whole transactions as functions, two drivers behind one door.

A service keeps its SQL in `services/<name>/sql/`:

    queries.sql                  `-- name: claim_shards` before each statement, `:name` parameters
    sqlite.sql, postgresql.sql   the same names again, where a dialect needs its own text
    migrations/0001_first.sql    numbered, applied in order, each in one transaction

A transaction is a function `work(tx)` that runs on the driver's own thread; it must not await, and it may be run again after a
failure, so it must have no effect but its SQL. `Database.write` returns when the commit is durable.

SQLite (the embedded default): WAL, synchronous=FULL, one writer thread, one reader thread. Foreign exceptions become
`Unavailable`, `StorageFull` or `SettingsError` here and nowhere else.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from haywain import errors

__all__ = ["Database", "Queries", "SqliteDatabase", "Transaction", "open_database"]

_T = TypeVar("_T")
Row = Mapping[str, Any]


class Queries:
    """The named statements and migrations of one service, for one dialect."""

    def __init__(self, folder: Path, dialect: str) -> None:
        """Read `queries.sql`, then `{dialect}.sql` over it. Raises KeyError later for a name that is in neither."""
        self.statements: dict[str, str] = {}
        for file in (folder / "queries.sql", folder / f"{dialect}.sql"):
            if file.exists():
                self.statements |= _named(file.read_text("utf-8"))
        self.migrations = [(int(path.name[:4]), path) for path in sorted((folder / "migrations").glob("[0-9]*.sql"))]


def _named(text: str) -> dict[str, str]:
    parts = re.split(r"^-- name: (\w+)\s*$", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


class Transaction(Protocol):
    """What a transaction function gets."""

    def fetch(self, name: str, **parameters: Any) -> list[Row]:
        """Run a named query; rows as mappings of column to value."""

    def fetch_one(self, name: str, **parameters: Any) -> Row | None:
        """Run a named query that yields at most one row."""

    def execute(self, name: str, **parameters: Any) -> int:
        """Run a named statement; the number of rows it touched."""

    def execute_many(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Run a named statement once for each mapping of parameters."""


class Database(Protocol):
    """A service's database."""

    async def write(self, work: Callable[[Transaction], _T]) -> _T:
        """Run `work` in one transaction; durable when this returns, undone when it raises."""

    async def read(self, work: Callable[[Transaction], _T]) -> _T:
        """Run `work` on a consistent snapshot; it must not write."""

    async def close(self) -> None:
        """Finish what runs and close."""


async def open_database(url: str, queries_folder: Path, file: Path) -> Database:
    """Open and migrate a service's database: `file` (SQLite) when `url` is empty.

    Raises SettingsError when it was written by a newer Haywain, isn't a database, or the url's scheme is unknown.
    """
    if url:
        raise errors.SettingsError(f"db.url {url!r}: only the embedded SQLite is supported yet; leave it empty")
    database = SqliteDatabase(file, Queries(queries_folder, "sqlite"))
    try:
        await database.open()
    except BaseException:
        await database.close()
        raise
    return database


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection, statements: Mapping[str, str]) -> None:
        self._connection = connection
        self._statements = statements

    def fetch(self, name: str, **parameters: Any) -> list[Row]:
        return [dict(row) for row in self._connection.execute(self._statements[name], parameters)]

    def fetch_one(self, name: str, **parameters: Any) -> Row | None:
        rows = self.fetch(name, **parameters)
        return rows[0] if rows else None

    def execute(self, name: str, **parameters: Any) -> int:
        return self._connection.execute(self._statements[name], parameters).rowcount

    def execute_many(self, name: str, rows: list[dict[str, Any]]) -> None:
        self._connection.executemany(self._statements[name], rows)


class SqliteDatabase:
    """One SQLite file: a writer thread and a reader thread, each with a connection of its own."""

    def __init__(self, file: Path, queries: Queries) -> None:
        """Nothing is opened before `open`."""
        self._file = file
        self._queries = queries
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"{file.stem}-writer")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix=f"{file.stem}-reader")
        self._connections: dict[ThreadPoolExecutor, sqlite3.Connection] = {}

    async def open(self) -> None:
        """Connect and migrate."""
        for executor in (self._writer, self._reader):
            await self._on(executor, partial(self._connect, executor))
        await self._on(self._writer, self._migrate)

    async def write(self, work: Callable[[Transaction], _T]) -> _T:
        """Run `work` in one transaction on the writer thread."""
        return await self._on(self._writer, lambda: self._transact(self._connections[self._writer], "begin immediate", work))

    async def read(self, work: Callable[[Transaction], _T]) -> _T:
        """Run `work` on a snapshot on the reader thread."""
        return await self._on(self._reader, lambda: self._transact(self._connections[self._reader], "begin", work))

    async def close(self) -> None:
        """Close both connections."""
        for executor in (self._reader, self._writer):
            connection = self._connections.pop(executor, None)
            if connection is not None:
                await self._on(executor, connection.close)
            executor.shutdown()

    async def _on(self, executor: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, work)
        except sqlite3.Error as error:
            raise _mapped(error, self._file) from error

    def _connect(self, executor: ThreadPoolExecutor) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.SettingsError(f"{self._file.parent}: {error.strerror}") from error
        connection = sqlite3.connect(self._file, isolation_level=None, timeout=10, check_same_thread=False)
        self._connections[executor] = connection
        connection.row_factory = sqlite3.Row
        for pragma in ("busy_timeout=10000", "journal_mode=wal", "synchronous=full", "foreign_keys=on"):
            connection.execute(f"pragma {pragma}")
        if executor is self._reader:
            connection.execute("pragma query_only=on")

    def _transact(self, connection: sqlite3.Connection, begin: str, work: Callable[[Transaction], _T]) -> _T:
        connection.execute(begin)
        try:
            result = work(_SqliteTransaction(connection, self._queries.statements))
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        return result

    def _migrate(self) -> None:
        connection = self._connections[self._writer]
        connection.execute("create table if not exists schema_version (version integer not null)")
        row = connection.execute("select max(version) as version from schema_version").fetchone()
        have, know = row["version"] or 0, self._queries.migrations[-1][0]
        if have > know:
            raise errors.SettingsError(
                f"{self._file} was written by a newer Haywain: its schema is {have}, this program knows {know}; nothing was changed"
            )
        for version, path in self._queries.migrations:
            if version > have:
                script = path.read_text("utf-8")
                connection.executescript(f"begin immediate;\n{script}\ninsert into schema_version values ({version});\ncommit;")


def _mapped(error: sqlite3.Error, file: Path) -> errors.HaywainError:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_FULL"):
        return errors.StorageFull(retry_after=10)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR")):
        return errors.Unavailable(retry_after=1)
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_PERM")):
        return errors.SettingsError(f"{file}: {error}")
    return errors.HaywainError(f"{file.name}: {error}")

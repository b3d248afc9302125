"""The embedded database: one SQLite file a service, in WAL mode with full syncs, one writer thread and one reader thread.

A commit costs a sync of the disk, milliseconds, whatever is in it. So the writer takes all writes that wait into one commit, and
nobody is answered before it. When one of them raises, all are run again, each behind a savepoint of its own: then one that raises
undoes itself only. When the commit itself fails, or SQLite gave up the whole transaction, each is run again in a transaction of
its own. Reads that wait share a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from haywain import durable, errors
from haywain.db import Queries, Row, Transaction, newer_schema
from haywain.gather import Gathered

__all__ = ["SqliteDatabase"]

_T = TypeVar("_T")
_Work = Callable[[Transaction], Any]
_Outcome = Any
"""What a work gave, or the exception that it raised."""
_LOG_BYTES = 6 * 1024 * 1024
"""Half more than what SQLite writes to the log before it takes it over into the file and begins it anew."""
GROUP = 64
"""Writes in one commit, at most."""


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection, statements: Mapping[str, str]) -> None:
        self._connection = connection
        self._statements = statements

    def fetch(self, name: str, **parameters: Any) -> list[Row]:
        cursor = self._connection.execute(self._statements[name], parameters)
        columns = [column[0] for column in cursor.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in cursor]

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
        self._writes: Gathered[_Work, Any] = Gathered(lambda works: self._on(self._writer, partial(self._write, works)), most=GROUP)
        self._reads: Gathered[_Work, Any] = Gathered(lambda works: self._on(self._reader, partial(self._read, works)), most=GROUP)

    async def open(self) -> None:
        """Connect and migrate."""
        for executor in (self._writer, self._reader):
            await self._on(executor, partial(self._connect, executor))
        await self._on(self._writer, self._migrate)
        await self._on(self._writer, self._reserve)

    async def write(self, work: Callable[[Transaction], _T]) -> _T:
        """Run `work` in one transaction on the writer thread."""
        return await self._through(self._writes, work)

    async def read(self, work: Callable[[Transaction], _T]) -> _T:
        """Run `work` on a snapshot on the reader thread."""
        return await self._through(self._reads, work)

    async def close(self) -> None:
        """Finish what waits and close both connections."""
        await self._writes.settled()
        await self._reads.settled()
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

    async def _through(self, gathered: Gathered[_Work, Any], work: Callable[[Transaction], _T]) -> _T:
        try:
            answer: _T = await gathered(work)
        except sqlite3.Error as error:
            raise _mapped(error, self._file) from error
        return answer

    def _write(self, works: list[_Work]) -> list[_Outcome]:
        together = self._together(works) or self._each_undone_alone(works) if len(works) > 1 else None
        return together or [self._alone(work) for work in works]

    def _read(self, works: list[_Work]) -> list[_Outcome]:
        return self._transact(self._reader, "begin", lambda transaction: [_outcome(work, transaction) for work in works])

    def _alone(self, work: _Work) -> _Outcome:
        try:
            return self._transact(self._writer, "begin immediate", work)
        except BaseException as error:  # noqa: BLE001 - it is raised where it belongs
            return error

    def _together(self, works: list[_Work]) -> list[_Outcome] | None:
        """Commit several; None when one of them raises, and none of them has happened."""
        try:
            return self._transact(self._writer, "begin immediate", lambda transaction: [work(transaction) for work in works])
        except Exception:  # noqa: BLE001 - whose it is, and whether it raises again, is seen when they are run again
            return None

    def _each_undone_alone(self, works: list[_Work]) -> list[_Outcome] | None:
        """Commit several, but those that raise; None when that can't be done, and none of them has happened."""
        connection = self._connections[self._writer]
        transaction = _SqliteTransaction(connection, self._queries.statements)
        outcomes: list[_Outcome] = []
        try:
            connection.execute("begin immediate")
            for work in works:
                connection.execute("savepoint one")
                outcomes.append(_outcome(work, transaction))
                if isinstance(outcomes[-1], BaseException):
                    connection.execute("rollback to one")  # fails when SQLite undid everything: a full disk, say
                connection.execute("release one")
            connection.execute("commit")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("rollback")
            return None
        return outcomes

    def _connect(self, executor: ThreadPoolExecutor) -> None:
        try:
            durable.make_folder(self._file.parent)
        except OSError as error:
            raise errors.SettingsError(f"{self._file.parent}: {error.strerror}") from error
        connection = sqlite3.connect(self._file, isolation_level=None, timeout=10, check_same_thread=False)
        self._connections[executor] = connection
        for pragma in ("busy_timeout=10000", "journal_mode=wal", "synchronous=full", "foreign_keys=on"):
            connection.execute(f"pragma {pragma}")
        if executor is self._reader:
            connection.execute("pragma query_only=on")

    def _transact(self, executor: ThreadPoolExecutor, begin: str, work: Callable[[Transaction], _T]) -> _T:
        connection = self._connections[executor]
        connection.execute(begin)
        try:
            result = work(_SqliteTransaction(connection, self._queries.statements))
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        return result

    def _reserve(self) -> None:
        """Take the room that the log (WAL) needs, once and for all: on a full disk there is still some for what makes room."""
        with contextlib.suppress(OSError), Path(f"{self._file}-wal").open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, _LOG_BYTES)

    def _migrate(self) -> None:
        """Bring the schema up to date, in a transaction that has whoever opens the file at the same time wait."""
        connection, know = self._connections[self._writer], self._queries.migrations[-1][0]

        def migrate(_: Transaction) -> None:
            connection.execute("create table if not exists schema_version (version integer not null)")
            (newest,) = connection.execute("select max(version) from schema_version").fetchone()
            have = newest or 0
            if have > know:
                raise newer_schema(str(self._file), have, know)
            for version, path in self._queries.migrations:
                if version > have:
                    for statement in _statements(path.read_text("utf-8")):
                        connection.execute(statement)
                    connection.execute("insert into schema_version values (?)", [version])

        self._transact(self._writer, "begin immediate", migrate)


def _statements(script: str) -> Iterator[str]:
    """Take a script apart; `executescript` would end the transaction that it is to be in. Each statement begins a line."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    yield statement


def _outcome(work: _Work, transaction: Transaction) -> _Outcome:
    try:
        return work(transaction)
    except BaseException as error:  # noqa: BLE001 - it is raised where it belongs
        return error


def _mapped(error: sqlite3.Error, file: Path) -> errors.HaywainError:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_FULL"):
        return errors.StorageFull(retry_after=10)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR")):
        return errors.Unavailable(retry_after=1)
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_PERM")):
        return errors.SettingsError(f"{file}: {error}")
    return errors.HaywainError(f"{file.name}: {error}")

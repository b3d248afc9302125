"""PostgreSQL: a schema a service, one writer thread and a few reader threads a process, each with a connection of its own.

Writes of a service come one after the other, in whichever process: every one begins with the service's advisory lock and with a
mark of its own, so that a commit whose answer was lost is looked up instead of guessed at:

    begin; lock; mark      one round trip
    work                   what it reads is what was last committed, and stays until the end
    commit ── no answer? ──▶ connect again; lock; is the mark there? done : run it again

While the server is away, writes wait with backoff up to `WAIT_SECONDS`, reads are refused at once.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.rows import DictRow, dict_row

from haywain import errors, log
from haywain.db import Queries, Row, Transaction
from haywain.postgres_errors import Trouble, opening_error, told, trouble
from haywain.postgres_schema import Schema, check_server, migrate, tie
from haywain.settings import masked

__all__ = ["WAIT_SECONDS", "PostgresDatabase", "with_parameters"]

WAIT_SECONDS = 8.0
"""How long a write waits for the server: less than callers wait for an answer."""
_READERS = 4
_REFUSED_SECONDS = 0.5  # after a connection failed, reads don't wait for the next one to fail
_COLLISIONS_MAX = 10
_LOCK_CLASS = 0x48575741
_DEFAULTS = {
    "application_name": "haywain", "connect_timeout": "3", "tcp_user_timeout": "10000", "keepalives_idle": "10",
    "target_session_attrs": "read-write",
}  # fmt: skip
_T = TypeVar("_T")
_Connection = psycopg.Connection[DictRow]
_log = log.get()


def with_parameters(statement: str) -> str:
    """Rewrite `:name` parameters as psycopg's `%(name)s`, but not in strings, quoted names, comments and casts."""
    tokens = r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\1\$|::|:(?P<name>[A-Za-z_]\w*)"""
    return re.sub(
        tokens,
        lambda found: f"%({found['name']})s" if found["name"] else found[0],
        statement.replace("%", "%%"),
        flags=re.DOTALL,
    )


class _Number(Loader):
    """Sums of integers are integers, as they are in SQLite."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data).decode()
        return int(text) if text.lstrip("-").isdecimal() else float(text)


class _PostgresTransaction:
    def __init__(self, connection: _Connection, statements: Mapping[str, bytes]) -> None:
        self._connection = connection
        self._statements = statements

    def fetch(self, name: str, **parameters: Any) -> list[Row]:
        return [*self._connection.execute(self._statements[name], parameters)]

    def fetch_one(self, name: str, **parameters: Any) -> Row | None:
        rows = self.fetch(name, **parameters)
        return rows[0] if rows else None

    def execute(self, name: str, **parameters: Any) -> int:
        return self._connection.execute(self._statements[name], parameters).rowcount

    def execute_many(self, name: str, rows: list[dict[str, Any]]) -> None:
        self._connection.cursor().executemany(self._statements[name], rows)


class _Patience:
    """How long a write may go on being tried."""

    def __init__(self, closing: threading.Event) -> None:
        self._closing = closing
        self._until = time.monotonic() + WAIT_SECONDS
        self._delay = 0.05
        self.abandoned = False
        """Nobody waits for the answer any more."""

    def pause(self) -> None:
        """Wait a while. Raises Unavailable when that was long enough."""
        left = self._until - time.monotonic()
        delay = min(left, self._delay * random.uniform(0.5, 1.0))  # noqa: S311 - jitter is no secret
        self._delay = min(1.0, 2 * self._delay)
        if left <= 0 or self._closing.wait(delay) or self.abandoned:
            raise errors.Unavailable(retry_after=2)


class PostgresDatabase:
    """One schema of a PostgreSQL database."""

    def __init__(self, url: str, queries: Queries, home: Path) -> None:
        """Nothing is opened before `open`. `home` is the file that ties a data folder to its schema, which has the file's stem."""
        self._home = home
        name = home.stem
        lock = f"select pg_advisory_xact_lock({_LOCK_CLASS}, {zlib.crc32(name.encode()) - 2**31})"
        self._schema = Schema(name, f"schema {name} of {masked(url)}", lock, queries.migrations)
        try:
            self._terms: dict[str, Any] = _DEFAULTS | conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            reason = f": {told(error)}" if masked(url) == url else ""  # libpq quotes what it can't read, passwords too
            raise errors.SettingsError(f"db.url {masked(url)!r} can't be read{reason}") from None
        self._statements = {name: with_parameters(text).encode() for name, text in queries.statements.items()}
        self._name = secrets.token_hex(8)
        self._number = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-writer")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix=f"{name}-reader")
        self._mine = threading.local()
        self._connections: set[_Connection] = set()
        self._closing = threading.Event()
        self._away, self._refused_until = False, 0.0

    async def open(self) -> None:
        """Connect and migrate. Raises SettingsError, Unavailable after `WAIT_SECONDS`."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._open)

    async def write(self, work: Callable[[Transaction], _T]) -> _T:
        """Run `work` in one transaction, the only one of this schema that writes."""
        patience = _Patience(self._closing)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._writer, self._write, work, patience)
        except asyncio.CancelledError:
            patience.abandoned = True
            raise

    async def read(self, work: Callable[[Transaction], _T]) -> _T:
        """Run `work` on a snapshot."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)

    async def close(self) -> None:
        """End what waits, finish what runs, close the connections."""
        self._closing.set()
        for executor in (self._readers, self._writer):
            await asyncio.to_thread(executor.shutdown)
        for connection in self._connections:
            connection.close()

    # -- on the threads -------------------------------------------------------------------------------------------------------

    def _write(self, work: Callable[[Transaction], _T], patience: _Patience) -> _T:
        collisions = 0
        while True:
            try:
                return self._write_once(work, patience)
            except psycopg.Error as error:
                match self._trouble(error):
                    case Trouble.COLLISION if collisions < _COLLISIONS_MAX:
                        collisions += 1
                    case Trouble.AWAY | Trouble.COLLISION:
                        patience.pause()
                    case _:
                        raise self._mapped(error) from error

    def _write_once(self, work: Callable[[Transaction], _T], patience: _Patience) -> _T:
        connection = self._connect()
        self._number += 1
        number = self._number
        mark = f"insert into schema_marks values ('{self._name}', {number}, now()) "  # noqa: S608 - our own hex digits
        mark += "on conflict (writer) do update set number = excluded.number, written_at = now()"
        result = self._transact(connection, f"begin isolation level read committed; {self._schema.lock}; {mark}", work)
        try:
            outcome = connection.execute("commit").statusmessage
        except psycopg.Error:
            if not connection.closed or not self._marked(number, patience):
                raise
            return result
        if outcome != "COMMIT":
            raise errors.HaywainError(f"{self._schema.where}: a failed statement was ignored; the transaction is undone")
        return result

    def _marked(self, number: int, patience: _Patience) -> bool:
        """Tell whether a transaction was committed whose commit had no answer. The lock waits for one that is still at it."""
        while True:
            try:
                connection = self._connect()
                connection.execute(f"begin; {self._schema.lock}".encode())
                row = connection.execute("select number from schema_marks where writer = %s", [self._name]).fetchone()
                connection.execute("commit")
            except psycopg.Error as error:
                if self._trouble(error) is not Trouble.AWAY:
                    raise
                patience.pause()
            else:
                return row is not None and row["number"] == number

    def _read(self, work: Callable[[Transaction], _T]) -> _T:
        if time.monotonic() < self._refused_until:
            raise errors.Unavailable(retry_after=1)
        for _ in range(2):  # a connection from before a restart of the server tells nothing about now
            try:
                connection = self._connect()
                result = self._transact(connection, "begin isolation level repeatable read, read only", work)
                connection.execute("commit")
            except psycopg.Error as error:
                # Here a read-only transaction is no standby's doing: `work` writes.
                if error.sqlstate == "25006" or self._trouble(error) is not Trouble.AWAY:
                    raise self._mapped(error) from error
            else:
                return result
        self._refused_until = time.monotonic() + _REFUSED_SECONDS
        raise errors.Unavailable(retry_after=1)

    def _transact(self, connection: _Connection, begin: str, work: Callable[[Transaction], _T]) -> _T:
        try:
            connection.execute(begin.encode())
            return work(_PostgresTransaction(connection, self._statements))
        except BaseException:
            try:
                connection.execute("rollback")
            except psycopg.Error:
                connection.close()
            raise

    # -- connections ----------------------------------------------------------------------------------------------------------

    def _connect(self) -> _Connection:
        """Give this thread's connection, a new one when the last is lost."""
        connection: _Connection | None = getattr(self._mine, "connection", None)
        if connection is not None and not connection.closed:
            return connection
        if connection is not None:
            self._connections.discard(connection)
        connection = psycopg.connect(**self._terms, autocommit=True, row_factory=dict_row)
        self._mine.connection = connection
        self._connections.add(connection)
        connection.adapters.register_loader("numeric", _Number)
        connection.execute(
            f"set search_path to {self._schema.name}; set lock_timeout to '5s'; set idle_in_transaction_session_timeout to '10s';"
            " select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'".encode()
        )
        if self._away:
            self._away, self._refused_until = False, 0.0
            _log.info("database.back", schema=self._schema.name)
        return connection

    def _trouble(self, error: psycopg.Error) -> Trouble:
        connection: _Connection | None = getattr(self._mine, "connection", None)
        kind = trouble(error, lost=connection is None or connection.closed)
        if kind is Trouble.AWAY:
            if connection is not None:
                connection.close()
            if not self._away:
                self._away = True
                _log.warning("database.away", schema=self._schema.name, sqlstate=error.sqlstate, error=told(error))
        return kind

    def _mapped(self, error: psycopg.Error) -> errors.HaywainError:
        match trouble(error, lost=False):
            case Trouble.FULL:
                return errors.StorageFull(retry_after=10)
            case Trouble.TEXT:
                return errors.InvalidRequest("A text has a character that can't be stored.")
            case _:
                return errors.HaywainError(f"{self._schema.where}: {told(error)}")

    # -- opening --------------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        patience = _Patience(self._closing)
        while True:
            try:
                connection = self._connect()
                check_server(connection, self._schema)
                migrate(connection, self._schema, self._home)
                tie(connection, self._schema, self._home)
                return
            except psycopg.Error as error:
                problem = opening_error(error, self._schema.where)
                if isinstance(problem, errors.SettingsError) or self._trouble(error) is not Trouble.AWAY:
                    raise problem from error
                try:
                    patience.pause()
                except errors.Unavailable:
                    raise problem from error

"""SQL without an ORM: named queries in files, whole transactions as functions, two drivers behind one door.

A service keeps its SQL in `services/<name>/sql/`:

    queries.sql                            `-- name: claim_shards` before each statement, `:name` parameters
    sqlite.sql, postgresql.sql             the same names again, where a dialect needs its own text
    migrations/0001_first.sql              numbered, applied in order, each in one transaction
    migrations/0002_second.postgresql.sql  instead of 0002 for one dialect; 0002_second.sqlite.sql is the other's

A transaction is a function `work(tx)` that runs on the driver's own thread; it must not await, and it may be run again after a
failure, so it must have no effect but its SQL. Writes of one service come one after the other, as if there were one writer, in
however many processes: a `work` decides by what it has read. `Database.write` returns when the commit is durable.

haywain/sqlite.py is the embedded default, haywain/postgres.py what `db.url` asks for. Their libraries' exceptions become
`Unavailable`, `StorageFull` or `SettingsError` in these two files and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from haywain import errors
from haywain.settings import masked

__all__ = ["Database", "Queries", "Row", "Transaction", "newer_schema", "open_database"]

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
        ours = [path for path in (folder / "migrations").glob("[0-9]*.sql") if path.suffixes in ([".sql"], [f".{dialect}", ".sql"])]
        by_version = {int(path.name[:4]): path for path in sorted(ours, key=lambda path: len(path.suffixes))}
        self.migrations = sorted(by_version.items())


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
    """Open and migrate a service's database: `file` (SQLite) when `url` is empty, else the schema of the file's name at `url`.

    Raises SettingsError when it was written by a newer Haywain, isn't a database, is not the one that the file's folder was used
    with, or when the url can't be used; Unavailable when the server doesn't answer.
    """
    _check_home(url, file)
    database = _sqlite(queries_folder, file) if not url else _postgresql(url, queries_folder, file)
    try:
        await database.open()
    except BaseException:
        await database.close()
        raise
    return database


class _Openable(Database, Protocol):
    async def open(self) -> None: ...


def _sqlite(queries_folder: Path, file: Path) -> _Openable:
    from haywain.sqlite import SqliteDatabase  # noqa: PLC0415 - a driver is imported when chosen

    return SqliteDatabase(file, Queries(queries_folder, "sqlite"))


def _postgresql(url: str, queries_folder: Path, file: Path) -> _Openable:
    if not url.startswith(("postgresql://", "postgres://")):
        raise errors.SettingsError(f"db.url {masked(url)!r}: expected postgresql://…, or nothing for the embedded SQLite")
    try:
        from haywain.postgres import PostgresDatabase  # noqa: PLC0415 - a driver is imported when chosen
    except ImportError as error:
        raise errors.SettingsError(f"db.url {masked(url)!r} needs a driver: pip install 'haywain[postgres]' ({error})") from error
    return PostgresDatabase(url, Queries(queries_folder, "postgresql"), file.with_suffix(".postgresql"))


def _check_home(url: str, file: Path) -> None:
    # Blobs without a record are swept away: with another, empty database that would be all of them.
    if url and file.exists():
        raise errors.SettingsError(f"{file} holds the records of this data folder: leave db.url empty, or use another folder")
    if not url and file.with_suffix(".postgresql").exists():
        raise errors.SettingsError(f"the records of data folder {file.parent} are in PostgreSQL: set db.url as it was")


def newer_schema(where: str, have: int, know: int) -> errors.SettingsError:
    """Say that a database is not for this program."""
    return errors.SettingsError(
        f"{where} was written by a newer Haywain: its schema is {have}, this program knows {know}; nothing was changed"
    )

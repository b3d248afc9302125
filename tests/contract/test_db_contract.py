"""The database door, over both databases: named queries, migrations, transactions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import db_seam
import pytest
from db_seam import names

from haywain import errors
from haywain.db import Database, Queries, Transaction, open_database

sql, file, database = db_seam.sql, db_seam.file, db_seam.database


def test_queries_are_named(sql: Path) -> None:
    """Each statement has its name; a dialect's file overrides by name, another dialect's doesn't."""
    (sql / "postgresql.sql").write_text("-- name: dialect\nselect 'pg' as dialect;\n")
    assert Queries(sql, "sqlite").statements["dialect"] == "select 'any' as dialect;"
    assert Queries(sql, "postgresql").statements["dialect"] == "select 'pg' as dialect;"
    assert set(Queries(sql, "postgresql").statements) == {"add", "add_once", "mark", "all", "dialect"}


async def test_rows_come_as_mappings(database: Database) -> None:
    """A read gives rows by column name, or None where there is no row; a write tells how many rows it touched."""

    def write(tx: Transaction) -> tuple[int, int]:
        tx.execute_many("add", [{"id": "b", "size": 2**40}, {"id": "a", "size": 1}])
        return tx.execute("add_once", id="c", size=3), tx.execute("add_once", id="c", size=4)

    assert await database.write(write) == (1, 0)
    assert await database.read(lambda tx: tx.fetch("all")) == [
        {"id": "a", "size": 1},
        {"id": "b", "size": 2**40},
        {"id": "c", "size": 3},
    ]
    assert await database.read(lambda tx: tx.fetch_one("dialect")) == {"dialect": "any"}


async def test_an_exception_undoes_all(database: Database) -> None:
    """A transaction that raises leaves nothing behind, its exception arrives as it was, and the next one works."""

    def fail(tx: Transaction) -> None:
        tx.execute("add", id="a", size=1)
        raise errors.Conflict("changed my mind")

    with pytest.raises(errors.Conflict, match="changed my mind"):
        await database.write(fail)
    await database.write(lambda tx: tx.execute("add", id="b", size=1))
    assert await names(database) == ["b"]


async def test_constraints_hold(database: Database) -> None:
    """Keys and references are enforced, and the exception is one of ours."""
    for work in (lambda tx: tx.execute("mark", id="nobody"), lambda tx: tx.execute("add", id="a", size=None)):
        with pytest.raises(errors.HaywainError):
            await database.write(work)


async def test_an_unknown_name_is_a_mistake_of_ours(database: Database) -> None:
    """A name that is in no file is a KeyError, and the transaction is undone."""
    with pytest.raises(KeyError, match="nope"):
        await database.write(lambda tx: (tx.execute("add", id="a", size=1), tx.fetch("nope")))
    assert await names(database) == []


async def test_reads_can_not_write(database: Database) -> None:
    """A write by way of `read` is refused and changes nothing."""
    with pytest.raises(errors.HaywainError):
        await database.read(lambda tx: tx.execute("add", id="a", size=1))
    assert await names(database) == []


async def test_a_read_sees_what_was_written_before(database: Database) -> None:
    """Once a write has returned, every later read sees it, also with many at once."""

    async def write_and_read(number: int) -> None:
        await database.write(lambda tx: tx.execute("add", id=f"{number:03}", size=number))
        assert f"{number:03}" in await names(database)

    await asyncio.gather(*(write_and_read(number) for number in range(50)))
    assert len(await names(database)) == 50


async def test_what_was_written_is_there_after_a_reopen(database_url: str, sql: Path, file: Path) -> None:
    """A database can be closed and opened again, and migrates only what is new."""
    for number in range(3):
        database = await open_database(database_url, sql, file)
        await database.write(lambda tx, number=number: tx.execute("add", id=str(number), size=0))
        assert await names(database) == [str(n) for n in range(number + 1)]
        await database.close()


async def test_migrations_are_applied_in_order(database_url: str, sql: Path, file: Path) -> None:
    """A newer program brings an older database up to date, and its data with it."""
    database = await open_database(database_url, sql, file)
    await database.write(lambda tx: tx.execute("add", id="old", size=1))
    await database.close()
    (sql / "migrations" / "0002_second.sql").write_text("alter table things add column colour text not null default 'red';\n")
    (sql / "migrations" / "0010_tenth.sql").write_text("update things set colour = 'blue' where colour = 'red';\n")
    with (sql / "queries.sql").open("a") as queries:
        queries.write("-- name: colours\nselect things.colour from things;\n")
    database = await open_database(database_url, sql, file)
    assert await database.read(lambda tx: tx.fetch("colours")) == [{"colour": "blue"}]
    await database.close()


async def test_processes_that_start_together(database_url: str, sql: Path, file: Path) -> None:
    """Each waits for who is at it, and every migration is applied once, whoever comes first."""
    first = await open_database(database_url, sql, file)
    await first.write(lambda tx: tx.execute("add", id="old", size=0))
    for number in range(2, 6):
        (sql / "migrations" / f"000{number}_more.sql").write_text("update things set size = size + 1; -- once;\n")
    together = await asyncio.gather(*(open_database(database_url, sql, file) for _ in range(6)))
    assert await first.read(lambda tx: [row["size"] for row in tx.fetch("all")]) == [4]
    for database in (first, *together):
        await database.close()
    new = file.with_name("new") / file.name
    if not database_url:  # also where there is nothing yet, not even a file
        for database in await asyncio.gather(*(open_database("", sql, new) for _ in range(6))):
            await database.close()


async def test_a_migration_is_whole_or_not_at_all(database_url: str, sql: Path, file: Path) -> None:
    """A migration that fails in the middle leaves the database as it was, and works once mended."""
    await (await open_database(database_url, sql, file)).close()
    second = sql / "migrations" / "0002_second.sql"
    second.write_text("create table more (id text);\ncreate table things (id text);\n")
    with pytest.raises(errors.HaywainError):
        await open_database(database_url, sql, file)
    second.write_text("create table more (id text);\n")
    await (await open_database(database_url, sql, file)).close()

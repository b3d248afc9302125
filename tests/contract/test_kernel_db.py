"""The database door: named queries, migrations, transactions, and what SQLite's errors become."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from haywain import errors
from haywain.db import Database, Queries, Transaction, open_database

FIRST = "create table things (id text primary key, size bigint not null);\ncreate table marks (id text references things (id));\n"
QUERIES = """-- What the tests ask.

-- name: add
insert into things (id, size) values (:id, :size);

-- name: add_once
insert into things (id, size) values (:id, :size) on conflict do nothing;

-- name: mark
insert into marks (id) values (:id);

-- name: all
select things.id, things.size from things -- a comment; with a semicolon
 order by things.id;

-- name: dialect
select 'any' as dialect;
"""


@pytest.fixture
def sql(tmp_path: Path) -> Path:
    folder = tmp_path / "sql"
    (folder / "migrations").mkdir(parents=True)
    (folder / "migrations" / "0001_first.sql").write_text(FIRST)
    (folder / "queries.sql").write_text(QUERIES)
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "things.db"


@pytest.fixture
async def database(sql: Path, file: Path) -> AsyncIterator[Database]:
    database = await open_database("", sql, file)
    yield database
    await database.close()


async def names(database: Database) -> list[str]:
    return [row["id"] for row in await database.read(lambda tx: tx.fetch("all"))]


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


async def test_what_was_written_is_there_after_a_reopen(sql: Path, file: Path) -> None:
    """A database can be closed and opened again, and migrates only what is new."""
    for number in range(3):
        database = await open_database("", sql, file)
        await database.write(lambda tx, number=number: tx.execute("add", id=str(number), size=0))
        assert await names(database) == [str(n) for n in range(number + 1)]
        await database.close()


async def test_migrations_are_applied_in_order(sql: Path, file: Path) -> None:
    """A newer program brings an older database up to date, and its data with it."""
    database = await open_database("", sql, file)
    await database.write(lambda tx: tx.execute("add", id="old", size=1))
    await database.close()
    (sql / "migrations" / "0002_second.sql").write_text("alter table things add column colour text not null default 'red';\n")
    (sql / "migrations" / "0010_tenth.sql").write_text("update things set colour = 'blue' where colour = 'red';\n")
    with (sql / "queries.sql").open("a") as queries:
        queries.write("-- name: colours\nselect things.colour from things;\n")
    database = await open_database("", sql, file)
    assert await database.read(lambda tx: tx.fetch("colours")) == [{"colour": "blue"}]
    await database.close()


async def test_a_migration_is_whole_or_not_at_all(sql: Path, file: Path) -> None:
    """A migration that fails in the middle leaves the database as it was, and works once mended."""
    await (await open_database("", sql, file)).close()
    second = sql / "migrations" / "0002_second.sql"
    second.write_text("create table more (id text);\ncreate table things (id text);\n")
    with pytest.raises(errors.HaywainError):
        await open_database("", sql, file)
    second.write_text("create table more (id text);\n")
    await (await open_database("", sql, file)).close()


async def test_a_newer_schema_is_refused_in_one_line(sql: Path, file: Path) -> None:
    """A database of a newer program is refused with both numbers, and not touched."""
    (sql / "migrations" / "0002_second.sql").write_text("create table more (id text);\n")
    await (await open_database("", sql, file)).close()
    (sql / "migrations" / "0002_second.sql").unlink()
    before = file.read_bytes()
    with pytest.raises(errors.SettingsError) as raised:
        await open_database("", sql, file)
    assert all(word in raised.value.message for word in (str(file), "newer", "is 2", "knows 1"))
    assert "\n" not in raised.value.message
    assert file.read_bytes() == before


async def test_what_is_no_database_is_refused(sql: Path, file: Path) -> None:
    """A file that isn't a database is a SettingsError that names it, and it keeps its bytes."""
    file.parent.mkdir()
    file.write_bytes(b"not a database " * 100)
    with pytest.raises(errors.SettingsError, match=str(file)):
        await open_database("", sql, file)
    assert file.read_bytes() == b"not a database " * 100


async def test_a_folder_that_can_not_be_is_refused(sql: Path, tmp_path: Path) -> None:
    """A data folder that can't be made, or a folder where the file should be, is a SettingsError that names it."""
    (tmp_path / "plain").write_text("a file")
    with pytest.raises(errors.SettingsError, match=f"{tmp_path}/plain"):
        await open_database("", sql, tmp_path / "plain" / "things.db")
    with pytest.raises(errors.SettingsError, match=str(tmp_path)):
        await open_database("", sql, tmp_path)


async def test_a_full_disk_is_told_and_cured(database: Database, file: Path) -> None:
    """Without room a write is StorageFull and undone; with room again it works."""
    size = {"pages": 0}

    def limit(tx: Transaction) -> None:
        connection = tx._connection  # type: ignore[attr-defined]
        size["pages"] = connection.execute("pragma page_count").fetchone()[0]
        connection.execute(f"pragma max_page_count={size['pages']}")

    await database.write(limit)
    rows = [{"id": str(number), "size": number} for number in range(10_000)]
    with pytest.raises(errors.StorageFull) as raised:
        await database.write(lambda tx: tx.execute_many("add", rows))
    assert raised.value.retry_after > 0
    assert await names(database) == []
    await database.write(lambda tx: tx._connection.execute("pragma max_page_count=1000000"))  # type: ignore[attr-defined]
    await database.write(lambda tx: tx.execute_many("add", rows))
    assert len(await names(database)) == 10_000


async def test_commits_are_durable(database: Database, file: Path) -> None:
    """The file is in WAL mode with full syncs on the writer's connection, and another process reads what was committed."""

    def pragmas(tx: Transaction) -> tuple[str, int, int]:
        ask = tx._connection.execute  # type: ignore[attr-defined]
        return tuple(ask(f"pragma {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "foreign_keys"))  # type: ignore[return-value]

    await database.write(lambda tx: tx.execute("add", id="a", size=1))
    assert await database.write(pragmas) == ("wal", 2, 1)
    other = sqlite3.connect(file)
    try:
        assert other.execute("select id from things").fetchall() == [("a",)]
    finally:
        other.close()


async def test_other_urls_are_refused(sql: Path, file: Path) -> None:
    """A url of a database that isn't supported is told, and nothing is made."""
    with pytest.raises(errors.SettingsError, match="mysql://x"):
        await open_database("mysql://x", sql, file)
    assert not file.exists()

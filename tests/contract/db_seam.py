"""A small service's SQL and its database, for the tests of the database door: fixtures to assign."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from postgres_fixture import PostgresServer

from haywain.db import Database, open_database

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
async def database(database_url: str, sql: Path, file: Path) -> AsyncIterator[Database]:
    opened = await open_database(database_url, sql, file)
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Give a server that tests of this module stop and start."""
    own = PostgresServer()
    try:
        own.start()
        yield own
    finally:
        own.close()


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.database()


async def names(database: Database) -> list[str]:
    """Read the ids of all things."""
    return [row["id"] for row in await database.read(lambda tx: tx.fetch("all"))]

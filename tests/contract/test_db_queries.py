"""Every service's SQL, understood by both databases under the same names."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import psycopg
import pytest
from postgres_fixture import PostgresServer
from psycopg import sql

from haywain.clock import FakeClock
from haywain.db import Queries, open_database
from haywain.postgres import with_parameters
from services.scheduler.batch import Submission
from services.scheduler.leases import Leases, Want
from services.scheduler.store import ShardRow, Store

SERVICES = Path(__file__).parents[2] / "services"


@pytest.mark.parametrize("service", ["files", "batches", "scheduler"])
async def test_every_statement_is_understood(postgres: PostgresServer, service: str, tmp_path: Path) -> None:
    """Both databases have the same statements by name, and can prepare each against their migrated schema."""
    folder = SERVICES / service / "sql"
    embedded, other = Queries(folder, "sqlite"), Queries(folder, "postgresql")
    assert set(embedded.statements) == set(other.statements)
    assert [version for version, _ in embedded.migrations] == [version for version, _ in other.migrations]
    url = postgres.database()
    await (await open_database("", folder, tmp_path / "a" / f"{service}.db")).close()
    await (await open_database(url, folder, tmp_path / "b" / f"{service}.db")).close()
    connection = sqlite3.connect(tmp_path / "a" / f"{service}.db")
    try:
        for statement in embedded.statements.values():
            names = re.findall(r"(?<!:):(\w+)", statement)
            connection.execute(f"explain {statement}", dict.fromkeys(names))
    finally:
        connection.close()
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(sql.SQL("set search_path to {}").format(sql.Identifier(service)))
        for name, statement in other.statements.items():
            if not statement.startswith("analyze"):
                _prepare(session, name, statement)


def _prepare(session: psycopg.Connection[tuple[object, ...]], name: str, statement: str) -> None:
    text = with_parameters(statement)
    for number, parameter in enumerate(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)), 1):
        text = text.replace(f"%({parameter})s", f"${number}")
    session.execute(f"prepare {name} as {text}".encode())


async def test_unmaking_reads_no_other_answers(tmp_path: Path) -> None:
    """The answers that tell of a batch are found by its request, however many others there are."""
    folder = SERVICES / "batches" / "sql"
    await (await open_database("", folder, tmp_path / "batches.db")).close()
    connection = sqlite3.connect(tmp_path / "batches.db")
    try:
        statement = Queries(folder, "sqlite").statements["revoke_answers"]
        plan = connection.execute(f"explain query plan {statement}", {"tenant": "t", "request_id": "r"}).fetchall()
    finally:
        connection.close()
    assert [text.partition("(")[2] for *_, text in plan] == ["tenant=? AND request_id=?)"]


async def test_many_shards(database_url: str, tmp_path: Path) -> None:
    """A batch of thousands of shards is stored, and all of them are claimed once."""
    database = await open_database(database_url, SERVICES / "scheduler" / "sql", tmp_path / "scheduler.db")
    submission = Submission(
        batch_id="batch_a", submit_order=0, tenant="t", endpoint="/v1/chat/completions", lane=3, expire_at=None, input_key="i",
        index_key="x", row_count=2_500, body_defaults="", deterministic=False,
    )  # fmt: skip
    stored = await Store(database).submit(submission, [ShardRow(at, "m", at, 1) for at in range(2_500)])
    assert len(stored.shards) == 2_500
    (claimed,) = await Leases(database, "one", 30.0, FakeClock()).claim([Want("batch_a", "m", 3_000)])
    assert [shard.shard for shard in claimed] == list(range(2_500))
    await database.close()

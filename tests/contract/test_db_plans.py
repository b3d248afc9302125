"""No statement that runs again and again reads a whole table that grows: on both databases each has an index."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_fixture import PostgresServer
from psycopg import sql

from haywain.db import Queries, open_database
from haywain.postgres import with_parameters

SERVICES = Path(__file__).parents[2] / "services"
WHOLE = {
    "files": {"doomed_parts": "parts go when their upload has ended, so those that are there are few"},
    "batches": {"stale_intents": "an intent ends with the creation that made it"},
    "scheduler": {
        "list_submissions": "at the start only, where all are wanted",
        "list_recordings": "at the start only",
        "release_own_turns": "at the start only",
        "next_change": "a table of one row",
        "drop_engines": "engines are few, and forgotten after a day",
        "list_engines": "as above",
        "list_pins": "at the start only, where all are wanted",
        "shards_inserted": "it gathers statistics",
    },
}
"""Statements that may read all of a table, and why."""


def read_whole(plan: list[str], partial: set[str]) -> list[str]:
    """Choose those steps of SQLite's plan that read all of a table or index; a partial index holds only what is looked for."""
    scans = [step for step in plan if step.startswith("SCAN ") and step != "SCAN free"]
    return [step for step in scans if not (set(step.split()) & partial)]


@pytest.mark.parametrize("service", ["files", "batches", "scheduler"])
async def test_sqlite_has_an_index_for_each(service: str, tmp_path: Path) -> None:
    """SQLite finds what it looks for by an index, or in a partial one."""
    await (await open_database("", SERVICES / service / "sql", tmp_path / f"{service}.db")).close()
    connection = sqlite3.connect(tmp_path / f"{service}.db")
    try:
        indexes = connection.execute("select name, sql from sqlite_master where type = 'index' and sql is not null")
        partial = {name for name, text in indexes if " where " in text}
        found = {}
        for name, statement in Queries(SERVICES / service / "sql", "sqlite").statements.items():
            names = dict.fromkeys(re.findall(r"(?<!:):(\w+)", statement))
            plan = [str(row[-1]) for row in connection.execute(f"explain query plan {statement}", names)]
            if (steps := read_whole(plan, partial)) and name not in WHOLE[service]:
                found[name] = steps
    finally:
        connection.close()
    assert found == {}


@pytest.mark.parametrize("service", ["files", "batches", "scheduler"])
async def test_postgresql_has_an_index_for_each(postgres: PostgresServer, service: str, tmp_path: Path) -> None:
    """So does PostgreSQL, where it is made to look for one."""
    url = postgres.database()
    await (await open_database(url, SERVICES / service / "sql", tmp_path / f"{service}.db")).close()
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(sql.SQL("set search_path to {}").format(sql.Identifier(service)))
        session.execute("set enable_seqscan = off")
        partial = {
            str(row[0]) for row in session.execute("select indexrelid::regclass::text from pg_index where indpred is not null")
        }
        found = {}
        for name, statement in Queries(SERVICES / service / "sql", "postgresql").statements.items():
            if name not in WHOLE[service] and (steps := _read_whole(_plan(session, statement), partial)):
                found[name] = steps
    assert found == {}


def _plan(session: psycopg.Connection[Any], statement: str) -> dict[str, Any]:
    text = with_parameters(statement)
    for number, parameter in enumerate(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)), 1):
        text = text.replace(f"%({parameter})s", f"${number}")
    row = session.execute(f"explain (generic_plan, format json) {text.replace('%%', '%')}".encode()).fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def _read_whole(plan: dict[str, Any], partial: set[str]) -> list[str]:
    return [
        f"{step['Node Type']} of {step.get('Relation Name') or step.get('Index Name')}"
        for step in _steps(plan)
        if step["Node Type"] == "Seq Scan"
        or ("Index" in step["Node Type"] and "Index Cond" not in step and step.get("Index Name") not in partial)
    ]


def _steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Walk all steps, but one that gives the first entry of an index."""
    yield plan
    for child in plan.get("Plans", []):
        if plan["Node Type"] != "Limit" or "Index" not in child["Node Type"] or "Filter" in child:
            yield from _steps(child)

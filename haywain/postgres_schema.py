"""Opening a schema of PostgreSQL: is the server fit, migrations under the writers' lock, and the tie to a data folder."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psycopg
from psycopg.rows import DictRow

from haywain import errors
from haywain.db import newer_schema

__all__ = ["Schema", "check_server", "migrate", "tie"]

_Connection = psycopg.Connection[DictRow]


class Schema(msgspec.Struct, frozen=True):
    """A service's schema. `where` is for messages; `lock` is the statement that waits for the schema's other writers."""

    name: str
    where: str
    lock: str
    migrations: Sequence[tuple[int, Path]]


def check_server(connection: _Connection, schema: Schema) -> None:
    """Raise SettingsError for a server or a database that can't serve."""
    if connection.info.server_version < 130_000:
        raise errors.SettingsError(f"{schema.where}: the server is older than PostgreSQL 13")
    if connection.info.parameter_status("server_encoding") != "UTF8":
        raise errors.SettingsError(f"{schema.where}: the database's encoding is not UTF8")


def migrate(connection: _Connection, schema: Schema) -> None:
    """Bring the schema up to date, each migration in a transaction of its own. Raises SettingsError for a newer one."""
    with connection.transaction():
        connection.execute(schema.lock.encode())
        _make(connection, schema.name)
    know = schema.migrations[-1][0]
    for version, path in schema.migrations:
        with connection.transaction():
            connection.execute(schema.lock.encode())
            row = connection.execute("select coalesce(max(version), 0) as version from schema_version").fetchone()
            have = row["version"] if row else 0
            if have > know:
                raise newer_schema(schema.where, have, know)
            if have < version:
                connection.execute(path.read_bytes())
                connection.execute("insert into schema_version values (%s)", [version])


def _make(connection: _Connection, name: str) -> None:
    # Not `if not exists`, which asks for the right to create even where there is nothing to create.
    if not connection.execute("select 1 from pg_namespace where nspname = %s", [name]).fetchone():
        connection.execute(f"create schema {name}".encode())
    found = connection.execute("select 1 from pg_tables where schemaname = %s and tablename = 'schema_version'", [name])
    if not found.fetchone():
        connection.execute("create table schema_version (version integer not null)")
        connection.execute("create table schema_marks (writer text primary key, number bigint not null)")
        connection.execute("create table schema_origin (id text primary key)")
        connection.execute("insert into schema_origin values (%s)", [secrets.token_hex(16)])


def tie(connection: _Connection, schema: Schema, home: Path) -> None:
    """Tie a data folder to this schema by the file `home`. Raises SettingsError when it is tied to another."""
    row = connection.execute("select id from schema_origin").fetchone()
    origin = str(row["id"]) if row else ""
    try:
        if not home.exists():
            home.parent.mkdir(parents=True, exist_ok=True)
            home.write_text(f"{origin}\n")
        elif home.read_text().strip() not in ("", origin):
            raise errors.SettingsError(f"{schema.where} is not what data folder {home.parent} was used with")
    except OSError as error:
        raise errors.SettingsError(f"{home}: {error.strerror}") from error

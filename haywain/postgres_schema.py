"""Opening a schema of PostgreSQL: is the server fit, migrations under the writers' lock, and the tie to a data folder."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psycopg
from psycopg.rows import DictRow

from haywain import durable, errors
from haywain.db import newer_schema

__all__ = ["Schema", "check_server", "migrate", "tie"]

_Connection = psycopg.Connection[DictRow]
_MARK_SECONDS = 86_400
"""How long a mark is kept: far longer than a write looks for its own."""


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


def migrate(connection: _Connection, schema: Schema, home: Path) -> None:
    """Bring the schema up to date, each migration in a transaction of its own.

    `home` is the file that ties a data folder to the schema. Raises SettingsError for a newer schema, and for one that isn't this
    folder's.
    """
    with connection.transaction():
        connection.execute(schema.lock.encode())
        _make(connection, schema, home)
        _have(connection, schema)
        _clear_marks(connection)
    for version, path in schema.migrations:
        with connection.transaction():
            connection.execute(schema.lock.encode())
            if _have(connection, schema) < version:
                connection.execute(path.read_bytes())
                connection.execute("insert into schema_version values (%s)", [version])


def _have(connection: _Connection, schema: Schema) -> int:
    """Tell the version that the schema has. Raises SettingsError for a newer one, before anything in it is touched."""
    row = connection.execute("select coalesce(max(version), 0) as version from schema_version").fetchone()
    have, know = row["version"] if row else 0, schema.migrations[-1][0]
    if have > know:
        raise newer_schema(schema.where, have, know)
    return int(have)


def _make(connection: _Connection, schema: Schema, home: Path) -> None:
    # Not `if not exists`, which asks for the right to create even where there is nothing to create.
    if not connection.execute("select 1 from pg_namespace where nspname = %s", [schema.name]).fetchone():
        connection.execute(f"create schema {schema.name}".encode())
    found = connection.execute("select 1 from pg_tables where schemaname = %s and tablename = 'schema_version'", [schema.name])
    if not found.fetchone():
        connection.execute("create table schema_version (version integer not null)")
        connection.execute("create table schema_marks (writer text primary key, number bigint not null, written_at timestamptz)")
        connection.execute("create table schema_origin (id text primary key)")
        connection.execute("insert into schema_origin values (%s)", [_new_origin(schema, home)])


def _clear_marks(connection: _Connection) -> None:
    """Drop the marks of writers that are long gone; one that lives marks its next write anew."""
    columns = "select 1 from pg_attribute where attrelid = 'schema_marks'::regclass and attname = 'written_at'"
    if not connection.execute(columns).fetchone():  # a schema of before there were times
        connection.execute("alter table schema_marks add column written_at timestamptz")
        connection.execute("update schema_marks set written_at = now()")
    connection.execute("delete from schema_marks where written_at < now() - make_interval(secs => %s)", [_MARK_SECONDS])


# -- the tie to a data folder: `new ID` before the schema is committed, `ID` after ----------------------------------------------


def _new_origin(schema: Schema, home: Path) -> str:
    text = _read(home)
    if text and not text.startswith("new "):
        raise errors.SettingsError(f"{schema.where} is empty, but data folder {home.parent} has been used with a database")
    origin = text.removeprefix("new ") or secrets.token_hex(16)
    _write(home, f"new {origin}")
    return origin


def tie(connection: _Connection, schema: Schema, home: Path) -> None:
    """Make sure that this schema and the data folder of `home` belong together. Raises SettingsError."""
    row = connection.execute("select id from schema_origin").fetchone()
    origin, text = str(row["id"]) if row else "", _read(home)
    if text.removeprefix("new ") != origin:
        raise errors.SettingsError(f"{schema.where} belongs to another data folder than {home.parent}")
    if text != origin:
        _write(home, origin)


def _read(home: Path) -> str:
    try:
        return home.read_text("utf-8").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise errors.SettingsError(f"{home}: {error.strerror}") from error


def _write(home: Path, text: str) -> None:
    try:
        durable.make_folder(home.parent)
        durable.replace(home, f"{text}\n".encode())
    except OSError as error:
        raise errors.SettingsError(f"{home}: {error.strerror}") from error

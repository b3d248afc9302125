"""Opening a database on PostgreSQL: urls, passwords, migrations, and the tie to a data folder."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import db_seam
import pytest
from postgres_fixture import PostgresServer

import haywain.postgres
from haywain import errors
from haywain.db import open_database
from haywain.settings import DatabaseSettings, Settings, dump, masked

sql, file, server, url = db_seam.sql, db_seam.file, db_seam.server, db_seam.url


async def test_a_newer_schema_is_refused(server: PostgresServer, url: str, sql: Path, file: Path) -> None:
    """A schema of a newer program is refused in one line with both numbers, whatever else is in it."""
    (sql / "migrations" / "0002_second.sql").write_text("create table more (id text);\n")
    await (await open_database(url, sql, file)).close()
    (sql / "migrations" / "0002_second.sql").unlink()
    server.sql("drop table things.schema_marks", "test")
    with pytest.raises(errors.SettingsError) as raised:
        await open_database(url, sql, file)
    assert all(word in raised.value.message for word in ("things", "newer", "is 2", "knows 1"))
    assert "\n" not in raised.value.message


async def test_a_migration_of_one_dialect(url: str, sql: Path, file: Path, tmp_path: Path) -> None:
    """A migration that has a dialect in its name is for that one; the other's isn't looked at."""
    (sql / "migrations" / "0002_second.sqlite.sql").write_text("create table embedded (id text);\n")
    (sql / "migrations" / "0002_second.postgresql.sql").write_text("create table served (id text[]);\n")
    with (sql / "queries.sql").open("a") as queries:
        queries.write("-- name: served\nselect * from served;\n-- name: embedded\nselect * from embedded;\n")
    for where, table in ((url, "served"), ("", "embedded")):
        database = await open_database(where, sql, tmp_path / table / "things.db")
        assert await database.read(lambda tx, table=table: tx.fetch(table)) == []
        await database.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("/test", "/nowhere"), "nowhere"),
        (("haywain:", "nobody:"), "nobody"),
        (("postgresql://", "mysql://"), "expected postgresql://"),
        (("/test", "/test?colour=red"), "can't be read"),
        (("127.0.0.1:", "127.0.0.1:x"), "invalid"),
    ],
)
async def test_urls_that_can_not_be_used(
    server: PostgresServer, sql: Path, file: Path, change: tuple[str, str], words: str
) -> None:
    """What waiting won't cure is told at once, in one line, without the password, and nothing is made."""
    server.database()
    url = server.url("test", password="s3cret").replace(*change)  # noqa: S106
    with pytest.raises(errors.SettingsError, match=re.escape(words)) as raised:
        await open_database(url, sql, file)
    assert "s3cret" not in raised.value.message
    assert "\n" not in raised.value.message
    assert not file.parent.exists()


async def test_a_wrong_password_is_told(server: PostgresServer, sql: Path, file: Path) -> None:
    """A password that the server refuses is a SettingsError, and no message has it."""
    server.database()
    server.sql(
        "drop role if exists guest; create role guest login password 'right'; grant create on database test to guest", "test"
    )
    server.ask_password_of("guest")
    with pytest.raises(errors.SettingsError, match="password authentication failed") as raised:
        await open_database(f"postgresql://guest:wr0ng@127.0.0.1:{server.port}/test", sql, file)
    assert "wr0ng" not in raised.value.message
    await (await open_database(f"postgresql://guest:right@127.0.0.1:{server.port}/test", sql, file)).close()


async def test_nobody_listens(sql: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that isn't there at start is waited for, then told as Unavailable with its address."""
    monkeypatch.setattr(haywain.postgres, "WAIT_SECONDS", 0.3)
    with pytest.raises(errors.Unavailable, match=r"127\.0\.0\.1"):
        await open_database("postgresql://haywain@127.0.0.1:1/test", sql, file)


def test_passwords_are_masked() -> None:
    """`haywain config` shows no password, wherever it is in the URL."""
    assert masked("postgresql://u:p:w@/x@h/db?sslmode=require") == "postgresql://u:***@h/db?sslmode=require"
    assert masked("postgresql://h/db?user=u&password=pw&sslpassword=x") == "postgresql://h/db?user=u&password=***&sslpassword=***"
    assert masked("postgresql://u@h/db") == "postgresql://u@h/db"
    settings = Settings(db=DatabaseSettings(url="postgresql://u:pw@h/db"))
    assert "pw" not in dump(settings, secrets=False)
    assert "u:pw@h" in dump(settings)


async def test_without_the_driver(sql: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg the operator is told what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "haywain.postgres")
    with pytest.raises(errors.SettingsError, match=r"pip install 'haywain\[postgres\]'"):
        await open_database("postgresql://u@h/db", sql, file)


async def test_a_data_folder_stays_with_its_database(server: PostgresServer, url: str, sql: Path, tmp_path: Path) -> None:
    """A data folder is refused with another database than the one that has its records: its blobs would be swept away."""
    file = tmp_path / "served" / "things.db"
    await (await open_database(url, sql, file)).close()
    with pytest.raises(errors.SettingsError, match="are in PostgreSQL"):
        await open_database("", sql, file)
    with pytest.raises(errors.SettingsError, match="belongs to another data folder"):
        await open_database(url, sql, tmp_path / "third" / "things.db")
    server.database()
    with pytest.raises(errors.SettingsError, match="is empty, but data folder"):
        await open_database(url, sql, file)
    embedded = tmp_path / "embedded" / "things.db"
    await (await open_database("", sql, embedded)).close()
    with pytest.raises(errors.SettingsError, match=r"leave db\.url empty"):
        await open_database(url, sql, embedded)


@pytest.mark.parametrize("committed", [True, False])
async def test_a_kill_at_the_first_start(server: PostgresServer, url: str, sql: Path, file: Path, committed: bool) -> None:
    """A first start that was killed before or after its schema was committed is made up for by the next."""
    await (await open_database(url, sql, file)).close()
    home = file.with_suffix(".postgresql")
    home.write_text(f"new {home.read_text()}")
    if not committed:
        server.database()
    for _ in range(2):
        await (await open_database(url, sql, file)).close()
        assert not home.read_text().startswith("new")


async def test_marks_of_writers_long_gone_are_dropped(server: PostgresServer, url: str, sql: Path, file: Path) -> None:
    """Each life of a process leaves one mark, dropped after a day; also in a schema from before marks had times."""

    async def opened() -> list[str]:
        database = await open_database(url, sql, file)
        await database.write(lambda tx: None)
        await database.close()
        return [str(row[0]) for row in server.sql("select writer from things.schema_marks", "test")]

    (first,) = await opened()
    server.sql("alter table things.schema_marks drop column written_at", "test")
    assert first in await opened()
    server.sql(f"update things.schema_marks set written_at = now() - interval '2 days' where writer = '{first}'", "test")  # noqa: S608
    left = await opened()
    assert first not in left
    assert len(left) == 2

"""SQLite behind the database door: durability, and what its errors become."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import db_seam
import pytest
from db_seam import names

from haywain import errors
from haywain.db import Database, Transaction, open_database

sql, file, database = db_seam.sql, db_seam.file, db_seam.database


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

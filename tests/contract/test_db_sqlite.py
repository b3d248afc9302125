"""SQLite behind the database door: durability, and what its errors become."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
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


def blocked(database: Database) -> threading.Event:
    """Keep the writer busy until the event is set: what is written meanwhile waits together."""
    go = threading.Event()
    asyncio.get_running_loop().create_task(database.write(lambda tx: go.wait(10)))
    return go


def add(database: Database, name: str) -> asyncio.Task[int]:
    """Begin to write a thing."""
    return asyncio.create_task(database.write(lambda tx: tx.execute("add", id=name, size=1)))


async def waiting(go: threading.Event, *writes: asyncio.Task[int]) -> list[int | BaseException]:
    """Let writes that wait together happen."""
    await asyncio.sleep(0)
    go.set()
    return await asyncio.gather(*writes, return_exceptions=True)


async def test_writes_that_wait_share_a_commit(database: Database, file: Path) -> None:
    """They happen in order, each sees the ones before it, and the file is synced once for all of them."""
    seen: list[int] = []

    def write(tx: Transaction, number: int) -> int:
        seen.append(len(tx.fetch("all")))
        return tx.execute("add", id=f"{number:03}", size=number)

    go = blocked(database)
    writes = [asyncio.create_task(database.write(lambda tx, number=number: write(tx, number))) for number in range(60)]
    commits = commits_of(file)
    assert await waiting(go, *writes) == [1] * 60
    assert seen == list(range(60))
    assert await names(database) == [f"{number:03}" for number in range(60)]
    assert commits_of(file) - commits <= 3


def commits_of(file: Path) -> int:
    """Count the commits in the write-ahead log: frames with a size of the database in them."""
    log = file.with_name(f"{file.name}-wal").read_bytes() if file.with_name(f"{file.name}-wal").exists() else b""
    return sum(log[at + 4 : at + 8] != bytes(4) for at in range(32, len(log), 24 + 4_096))


async def test_one_that_raises_undoes_itself_only(database: Database) -> None:
    """Of writes in one commit, those that raise leave nothing and get their own exception; the others stay."""

    def fail(tx: Transaction) -> int:
        tx.execute("add", id="undone", size=1)
        raise errors.Conflict("changed my mind")

    go = blocked(database)
    failing = asyncio.create_task(database.write(fail))
    outcomes = await waiting(go, add(database, "a"), failing, add(database, "a"), add(database, "b"))
    assert outcomes[0] == outcomes[3] == 1
    assert isinstance(outcomes[1], errors.Conflict)
    assert isinstance(outcomes[2], errors.HaywainError)
    assert await names(database) == ["a", "b"]


async def test_a_cancelled_write_that_waited_does_not_happen(database: Database) -> None:
    """A caller that leaves before its turn writes nothing; the others are answered."""
    go = blocked(database)
    leaving, staying = add(database, "a"), add(database, "b")
    await asyncio.sleep(0)
    leaving.cancel()
    outcomes = await waiting(go, leaving, staying)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert (outcomes[1], await names(database)) == (1, ["b"])


async def test_a_full_disk_in_a_shared_commit(database: Database) -> None:
    """When one of several needs more room than there is, it alone fails: the others are written without it."""

    def limit(tx: Transaction) -> None:
        connection = tx._connection  # type: ignore[attr-defined]
        connection.execute(f"pragma max_page_count={connection.execute('pragma page_count').fetchone()[0]}")

    await database.write(limit)
    rows = [{"id": f"big-{number}", "size": number} for number in range(10_000)]
    go = blocked(database)
    big = asyncio.create_task(database.write(lambda tx: tx.execute_many("add", rows)))
    outcomes = await waiting(go, add(database, "a"), big, add(database, "b"))  # type: ignore[arg-type]
    assert (outcomes[0], outcomes[2]) == (1, 1)
    assert isinstance(outcomes[1], errors.StorageFull)
    assert await names(database) == ["a", "b"]

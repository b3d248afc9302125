"""PostgreSQL behind the database door: outages, lost answers, writers in turn, and what its errors become."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import db_seam
import psycopg
import pytest
from cut_proxy import CutProxy
from db_seam import names
from postgres_fixture import PostgresServer

import haywain.postgres
from haywain import errors
from haywain.db import Database, Transaction, open_database
from haywain.postgres import with_parameters
from haywain.postgres_errors import Trouble, trouble

sql, file, server, url = db_seam.sql, db_seam.file, db_seam.server, db_seam.url


@pytest.fixture
async def database(url: str, sql: Path, file: Path) -> AsyncIterator[Database]:
    with (sql / "queries.sql").open("a") as queries:
        queries.write("-- name: grow\nupdate things set size = :size where id = :id;\n")
        queries.write("-- name: total\nselect sum(things.size) as size, avg(things.size) as mean from things;\n")
    opened = await open_database(url, sql, file)
    yield opened
    await opened.close()


def grow(tx: Transaction) -> int:
    """Add one to a size, by reading first."""
    (thing,) = tx.fetch("all")
    tx.execute("grow", id="a", size=thing["size"] + 1)
    return int(thing["size"]) + 1


async def size(database: Database) -> int:
    (thing,) = await database.read(lambda tx: tx.fetch("all"))
    return int(thing["size"])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("select :a, :b_2 from t where x = :a", "select %(a)s, %(b_2)s from t where x = %(a)s"),
        ("select ':a', \":a\", x::text -- :a\n/* :a\n:b */ , :c", "select ':a', \":a\", x::text -- :a\n/* :a\n:b */ , %(c)s"),
        ("select 'it''s :a' || :a::text", "select 'it''s :a' || %(a)s::text"),
        ("select x % 2 from t where y like '%a' and z = :z", "select x %% 2 from t where y like '%%a' and z = %(z)s"),
        ("select $x$ :a $x$, $$:b$$, :c", "select $x$ :a $x$, $$:b$$, %(c)s"),
    ],
)
def test_parameters_are_rewritten(ours: str, theirs: str) -> None:
    """Parameters are found outside of strings, names, comments and casts; a percent sign stays one."""
    assert with_parameters(ours) == theirs


async def test_sums_are_integers(database: Database) -> None:
    """A sum of integers is an integer, as in SQLite, and no mean is cut off."""
    await database.write(
        lambda tx: tx.execute_many("add", [{"id": "a", "size": 2**62}, {"id": "b", "size": 1}, {"id": "c", "size": 2}])
    )
    assert await database.read(lambda tx: tx.fetch_one("total")) == {"size": 2**62 + 3, "mean": pytest.approx((2**62 + 3) / 3)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
async def test_a_restart_is_not_noticed(server: PostgresServer, database: Database, number: signal.Signals) -> None:
    """After the server was stopped, or crashed, and started again, the next read and the next write work, and nothing is lost."""
    await database.write(lambda tx: tx.execute("add", id="a", size=1))
    assert await names(database) == ["a"]
    await asyncio.to_thread(server.stop, number)
    await asyncio.to_thread(server.start)
    assert await names(database) == ["a"]
    await database.write(lambda tx: tx.execute("add", id="b", size=1))
    assert await names(database) == ["a", "b"]


async def test_while_the_server_is_away(server: PostgresServer, database: Database) -> None:
    """Reads are refused at once and say when to come back; writes wait, and are done when the server is back."""
    await database.write(lambda tx: tx.execute("add", id="a", size=0))
    await asyncio.to_thread(server.stop)
    try:
        writing = [asyncio.ensure_future(database.write(grow)) for _ in range(5)]
        with pytest.raises(errors.Unavailable) as raised:
            await names(database)
        assert raised.value.retry_after > 0
        assert raised.value.message == errors.Unavailable().message
        assert not any(one.done() for one in writing)
    finally:
        await asyncio.to_thread(server.start)
    assert await asyncio.gather(*writing) == [1, 2, 3, 4, 5]
    assert await size(database) == 5


async def test_an_outage_that_lasts(server: PostgresServer, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that has waited long enough is Unavailable and never done, nor is one that nobody waits for any more."""
    await database.write(lambda tx: tx.execute("add", id="a", size=0))
    await asyncio.to_thread(server.stop)
    try:
        monkeypatch.setattr(haywain.postgres, "WAIT_SECONDS", 0.3)
        with pytest.raises(errors.Unavailable) as raised:
            await database.write(grow)
        assert raised.value.retry_after > 0
        monkeypatch.undo()
        waits, pause = threading.Event(), haywain.postgres._Patience.pause
        monkeypatch.setattr(haywain.postgres._Patience, "pause", lambda patience: (waits.set(), pause(patience)))
        left = asyncio.ensure_future(database.write(grow))
        await asyncio.to_thread(waits.wait)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
    finally:
        await asyncio.to_thread(server.start)
    assert await database.write(grow) == 1


@pytest.mark.parametrize("where", ["cut_before", "cut_after"])
async def test_a_lost_answer_is_looked_up(
    server: PostgresServer, url: str, database: Database, sql: Path, file: Path, where: str
) -> None:
    """A commit that was cut off, or whose answer was, is done once: looked up, and run again only when it isn't there."""
    await database.write(lambda tx: tx.execute("add", id="a", size=0))
    with CutProxy(server.port) as proxy:
        there = url.replace(str(server.port), str(proxy.port))
        other = await open_database(there, sql, file)
        try:
            for turn in range(1, 4):
                setattr(proxy, where, b"commit")
                assert await other.write(grow) == turn
                assert proxy.cuts == turn
                assert await size(database) == turn
        finally:
            await other.close()


async def test_writers_take_turns(url: str, database: Database, sql: Path, file: Path) -> None:
    """What a transaction has read stays so until it is done, whoever else writes: no update is lost between two processes."""
    await database.write(lambda tx: tx.execute("add", id="a", size=0))
    other = await open_database(url, sql, file)
    done = await asyncio.gather(*(one.write(grow) for _ in range(20) for one in (database, other)))
    assert sorted(done) == list(range(1, 41))
    await other.close()


async def test_a_read_is_one_snapshot(database: Database) -> None:
    """A read sees nothing of what is written while it goes on, and doesn't wait for it."""
    await database.write(lambda tx: tx.execute("add", id="a", size=0))
    began, go_on = threading.Event(), threading.Event()

    def read(tx: Transaction) -> list[int]:
        first = tx.fetch("all")[0]["size"]
        began.set()
        assert go_on.wait(10)
        return [first, tx.fetch("all")[0]["size"]]

    reading = asyncio.ensure_future(database.read(read))
    await asyncio.to_thread(began.wait, 10)
    await database.write(grow)
    assert await size(database) == 1
    go_on.set()
    assert await reading == [0, 0]


async def test_collisions_are_tried_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that the server gives up because of another is run again, a bounded number of times."""
    tries = []

    def collide(tx: Transaction) -> None:
        tx.execute_many("add", [{"id": str(len(tries)), "size": 0}])
        tries.append(1)
        if len(tries) < 4:
            raise psycopg.errors.SerializationFailure

    await database.write(collide)
    assert await names(database) == ["3"]

    def always(tx: Transaction) -> None:
        raise psycopg.errors.DeadlockDetected

    monkeypatch.setattr(haywain.postgres, "WAIT_SECONDS", 0.3)
    with pytest.raises(errors.Unavailable):
        await database.write(always)


async def test_a_statement_that_failed_is_not_ignored(database: Database) -> None:
    """A transaction that goes on after a failed statement is refused, not silently undone."""

    def work(tx: Transaction) -> None:
        tx.execute("add", id="a", size=0)
        try:
            tx.execute("add", id="a", size=0)
        except psycopg.Error:
            return

    with pytest.raises(errors.HaywainError, match="undone"):
        await database.write(work)
    assert await names(database) == []


async def test_text_that_can_not_be_stored(database: Database) -> None:
    """A text with a NUL, which PostgreSQL has no place for, is the caller's mistake."""
    with pytest.raises(errors.InvalidRequest):
        await database.write(lambda tx: tx.execute("add", id="a\0b", size=0))


def test_errors_have_meanings() -> None:
    """A full disk, a shutdown, too many connections and a mistake of ours are told apart."""
    kinds = psycopg.errors
    assert trouble(kinds.DiskFull(), lost=False) is Trouble.FULL
    for away in (kinds.AdminShutdown, kinds.CannotConnectNow, kinds.TooManyConnections, kinds.ReadOnlySqlTransaction):
        assert trouble(away(), lost=False) is Trouble.AWAY
    assert trouble(kinds.OperationalError(), lost=True) is Trouble.AWAY
    assert trouble(kinds.UndefinedTable(), lost=False) is Trouble.OURS

"""The storm: random kills, stops and restarts under clients at work, then the law over every batch.

`HAYWAIN_STORM_SECONDS` is how long it lasts (60), `HAYWAIN_STORM_SEED` plays one again: the same faults in the same order, if not
at the same instants.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conservation import assert_conserved
from mesh import PROCESSES, Mesh, until
from postgres_fixture import PostgresServer
from storm import Client, Ledger, Watcher, Weather

SECONDS = float(os.environ.get("HAYWAIN_STORM_SECONDS", "60"))
TERMS = (
    "--engine", "echo", "--set", "engine.echo.slots=64", "--set", "engine.echo.ms_per_row=4", "--set", "engine.echo.fail_every=97",
    "--set", "scheduler.heartbeat_ms=300", "--set", "batches.completion_windows=any",
)  # fmt: skip
pytestmark = pytest.mark.timeout(300 + 2 * SECONDS)
CLIENTS = 3
LONG_AGO = 86_400.0 * 30


def storm(
    mesh: Mesh, seconds: float, restart_database: Callable[[float, int], None] | None = None, processes: Sequence[str] = PROCESSES
) -> Ledger:
    """Let it blow, and wait for the calm."""
    seed = os.environ.get("HAYWAIN_STORM_SEED") or str(random.randrange(1 << 32))
    sys.stderr.write(f"HAYWAIN_STORM_SEED={seed}\n")
    ledger = Ledger()
    people = [*(Client(mesh, ledger, f"{seed}-{n}") for n in range(CLIENTS)), Watcher(mesh, ledger, f"{seed}-watcher")]
    for one in people:
        one.start()
    weather = Weather(mesh, random.Random(seed), restart_database, processes)
    try:
        weather.blow(seconds)
    finally:
        ledger.over.set()
        for one in people:
            one.join(120)
    sys.stderr.write(f"{dict(weather.faults)}; {len(ledger.made)} batches made, {len(ledger.refused)} refused\n")
    assert not any(one.is_alive() for one in people)
    until("all is well", lambda: mesh.ask("GET", "/health").status_code == 200)
    return ledger


def listed(mesh: Mesh, path: str) -> list[dict[str, Any]]:
    """List all of it."""
    found: list[dict[str, Any]] = []
    while True:
        page = mesh.ask("GET", path, params={"limit": "100"} | ({"after": found[-1]["id"]} if found else {})).json()
        found += page["data"]
        if not page["has_more"]:
            return found


def settled(mesh: Mesh, ledger: Ledger) -> None:
    """Assert the law for every batch, also for those whose creation wasn't answered."""
    batches = {batch["id"]: batch["metadata"]["name"] for batch in listed(mesh, "/v1/batches")}
    assert set(ledger.made) <= set(batches), "a batch is lost"
    assert len(set(batches.values())) == len(batches), "a creation made two batches"
    for batch_id, name in batches.items():
        batch = mesh.wait(batch_id)
        ledger.look(batch)
        try:
            assert_conserved(mesh.client, batch, ledger.rows[name])
        except AssertionError as error:
            ledger.problems.append(("not conserved", batch, str(error)[:1000]))
    ledger.problems += [("refused, and there", name) for name in ledger.refused & set(batches.values())]
    ran = {path.name.removesuffix(".jsonl") for path in (mesh.data / "incremental").iterdir()}
    ledger.problems += [("it ran, and isn't there", batch_id) for batch_id in ran - set(batches)]
    for file in listed(mesh, "/v1/files"):
        content = mesh.ask("GET", f"/v1/files/{file['id']}/content")
        if content.status_code != 200 or len(content.content) != file["bytes"]:
            ledger.problems.append(("a file can't be read", file, content.status_code))
    assert not ledger.problems, "\n".join(str(problem) for problem in ledger.problems[:20])


def tidy(mesh: Mesh, records: Callable[[str, str], set[str]]) -> None:
    """Assert that no blob stays without a record once the grace period is over; `records` reads a column of a service."""
    blobs = mesh.data / "blobs"
    until("all batches are settled", lambda: not records("batches", "select batch_id from batches where settled = 0"))
    known = records("files", "select blob_key from files where has_bytes = 1")
    intents = records("batches", "select batch_id from intents")
    orphans = [path for path in blobs.glob("[0-9a-f][0-9a-f]/*") if path.name not in known]
    orphans = [path for path in orphans if path.name.partition("-")[2] not in intents]
    assert all(path.name.startswith("input-") for path in orphans), orphans
    for path in [*orphans, *(blobs / "scratch").iterdir()]:
        os.utime(path, (0, time.time() - LONG_AGO))
    mesh.kill("files")
    until("what has no record is gone", lambda: not any(path.exists() for path in orphans))
    until("what dead writers left is gone", lambda: not any((blobs / "scratch").iterdir()))


def test_storm(haywain: Path) -> None:
    """Whatever happens to the processes: every batch that was answered ends, once, with every row in one of its files."""
    with Mesh(haywain) as mesh:
        mesh.take_orders(mesh.data / "orders")  # there are none, but what dies is started again at once
        ledger = storm(mesh.start(*TERMS), SECONDS)
        settled(mesh, ledger)
        tidy(mesh, lambda service, query: {str(row[0]) for row in mesh.sql(service, query)})


@pytest.fixture
def server() -> Any:
    """Give a server of the test's own."""
    own = PostgresServer()
    try:
        own.start()
        yield own
    finally:
        own.close()


def test_storm_over_postgresql(haywain: Path, server: PostgresServer) -> None:
    """The same while the database stops and crashes as well."""

    def restart(away: float, number: int) -> None:
        server.stop(number)
        time.sleep(away)
        server.start()

    with Mesh(haywain) as mesh:
        url = server.database()
        ledger = storm(mesh.start(*TERMS, "--set", f"db.url={url}"), SECONDS / 2, restart)
        settled(mesh, ledger)
        tidy(mesh, lambda service, query: {str(row[0]) for row in mesh.sql(service, query, url)})


def test_storm_over_two_schedulers(haywain: Path, server: PostgresServer) -> None:
    """The same with two schedulers, which take over from each other, and die and stand still each by itself."""
    with Mesh(haywain) as mesh:
        mesh.take_orders(mesh.data / "orders")
        url = server.database()
        terms = (*TERMS, "--replicas", "scheduler=2", "--set", "scheduler.lease_seconds=2", "--set", f"db.url={url}")
        ledger = storm(mesh.start(*terms), SECONDS / 2, processes=(*PROCESSES, "scheduler-2"))
        settled(mesh, ledger)
        tidy(mesh, lambda service, query: {str(row[0]) for row in mesh.sql(service, query, url)})

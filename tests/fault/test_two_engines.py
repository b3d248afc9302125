"""Beside an engine that works, one that dies, stands still, fails everything, or is slow: every row is answered once, in time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, until

SLOTS = 8


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with one echo engine of eight slots, 60 ms a row; rows are late after half a second."""
    told = {"engine.echo.slots": SLOTS, "engine.echo.ms_per_row": 60, "scheduler.straggler_seconds": 0.5}
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo", *words(told))


def words(settings: dict[str, Any]) -> list[str]:
    """Write settings as flags."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def state_of(mesh: Mesh, engine_id: str) -> str:
    """Tell an engine's state; nothing while it isn't known."""
    pool = mesh.ask("GET", "/v1/pool/status").json()
    return next((str(engine["state"]) for engine in pool["engines"] if engine["id"] == engine_id), "")


def active_at(mesh: Mesh, engine_id: str) -> int:
    """Count the rows at an engine."""
    pool = mesh.ask("GET", "/v1/pool/status").json()
    return sum(int(engine["active"]) for engine in pool["engines"] if engine["id"] == engine_id)


@contextlib.contextmanager
def second(mesh: Mesh, engine_id: str, **echo: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run another engine, which nobody starts anew; it is killed at the end."""
    told = {"backend": "echo", "id": engine_id, "address": f"unix:{mesh.data}/run/{engine_id}.sock", "echo.slots": SLOTS}
    told |= {f"echo.{key}": value for key, value in echo.items()}
    command = [str(mesh.command), "engine", "--data", str(mesh.data), *words({f"engine.{k}": v for k, v in told.items()})]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as engine:
        try:
            until(f"{engine_id} is ready", lambda: state_of(mesh, engine_id) == "ready")
            yield engine
        finally:
            engine.kill()


def begin(mesh: Mesh, rows: int, recorded: int) -> dict[str, Any]:
    """Create a batch, and wait until some of its rows are recorded."""
    batch = mesh.create(chat_row(f"row-{number}", f"text {number}") for number in range(rows))
    until("rows are recorded", lambda: mesh.batch(batch["id"])["request_counts"]["completed"] >= recorded)
    return batch


def end(mesh: Mesh, batch: dict[str, Any], rows: int) -> tuple[list[Any], list[Any]]:
    """Wait for the end; output and error lines of a batch whose rows are there once each."""
    return assert_conserved(mesh.client, mesh.wait(batch["id"]), [f"row-{number}" for number in range(rows)])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_an_engine_goes_away_in_mid_batch(mesh: Mesh, number: signal.Signals) -> None:
    """What was at an engine that is killed, or stands still, is run by the other one."""
    with second(mesh, f"away-{number}", ms_per_row=60) as engine:
        batch = begin(mesh, 200, 30)
        until("it runs some", lambda: active_at(mesh, f"away-{number}") > 0)
        os.kill(engine.pid, number)
        output, failed = end(mesh, batch, 200)
    assert (len(output), failed) == (200, [])


def test_an_engine_fails_everything(mesh: Mesh) -> None:
    """It is quarantined before it has spoilt more than it was sent at once and a few probes; people can see it, and why."""
    with second(mesh, "broken", fail_every=1):
        batch = begin(mesh, 200, 30)
        until("it is quarantined", lambda: state_of(mesh, "broken") == "quarantined")
        metrics = mesh.ask("GET", "/metrics").text
        assert 'haywain_engine_state{engine="broken",process="scheduler",state="quarantined"} 1.0' in metrics
        assert 'haywain_engine_quarantines_total{engine="broken",process="scheduler"} ' in metrics
        listed = subprocess.run(
            [str(mesh.command), "engines", "list", "--address", f"127.0.0.1:{mesh.port}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "quarantined" in listed.stdout
        output, failed = end(mesh, batch, 200)
    assert len(failed) <= 60
    assert {(line["error"]["code"], line["response"]["x_provenance"]["engine"]) for line in failed} == {("engine_error", "broken")}
    assert {line["response"]["x_provenance"]["engine"] for line in output} == {"engine-0"}
    events = [
        json.loads(line) for line in (mesh.data / "logs" / "scheduler.log").read_text("utf-8").splitlines() if line[:1] == "{"
    ]
    [told, *_] = [event for event in events if event["event"] == "engine.quarantined" and event["engine_id"] == "broken"]
    assert told["reason"].split(": ")[-1] == "500 engine_error"


def test_an_engine_is_slow(mesh: Mesh) -> None:
    """It is found out and marked, and doesn't hold up the batch's end: what is late there is run by the idle one.

    Its twenty samples are there in five rounds at most, long before the other one has run the rest; and it is three times as slow
    even where the machine itself adds a quarter of a second to every row.
    """
    with second(mesh, "slow", ms_per_row=800):
        batch = begin(mesh, 900, 30)
        until(
            "it is marked", lambda: 'haywain_engine_slow{engine="slow",process="scheduler"} 1.0' in mesh.ask("GET", "/metrics").text
        )
        output, failed = end(mesh, batch, 900)
    assert (len(output), failed) == (900, [])
    assert {line["response"]["x_provenance"]["engine"] for line in output} == {"engine-0", "slow"}


def test_late_rows_are_run_twice_and_recorded_once(mesh: Mesh) -> None:
    """Rows that hang at one engine are answered by the other long before anybody's patience ends."""
    with second(mesh, "hanging", hang_containing="text"):
        batch = begin(mesh, 200, 30)
        output, failed = end(mesh, batch, 200)
        assert (len(output), failed) == (200, [])
        engines = [line["response"]["x_provenance"]["engine"] for line in output]
        assert set(engines) == {"engine-0"}
        assert any(line["response"]["x_provenance"]["attempt"] > 1 for line in output)

"""`haywain engines`: what an operator sees and does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, free_port, until


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with a slow echo engine."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo", "--set", "engine.echo.slots=2", "--set", "engine.echo.ms_per_row=300")


def engines(mesh: Mesh, *words: str, port: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [str(mesh.command), "engines", *words, "--address", f"127.0.0.1:{port or mesh.port}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_engines_are_listed(mesh: Mesh) -> None:
    """A line an engine: id, state, backend, model, digest, what it runs of its slots, tokens a second in and out, cached share."""
    shown = engines(mesh, "list")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert [line.split() for line in shown.stdout.splitlines() if "engine-0" in line] == [
        ["engine-0", "ready", "echo", "echo", "echo-1", "0/2", "0", "0", "-"]
    ]


def test_a_drained_engine_ends_its_rows_and_the_rest_waits_for_another(haywain: Path) -> None:
    """drain --wait returns once nothing runs; the batch stays in progress, and a second engine finishes it without loss."""
    with Mesh(haywain) as mesh:
        slow = ("--engine", "echo", "--set", "engine.echo.slots=2", "--set", "engine.echo.ms_per_row=1000")
        mesh.start(*slow)
        rows = [chat_row(f"row-{number}") for number in range(60)]
        created = mesh.create(rows)
        until("a row has ended", lambda: mesh.batch(created["id"])["request_counts"]["completed"])
        drained = engines(mesh, "drain", "engine-0", "--wait", "30")
        assert (drained.returncode, drained.stderr) == (0, "")
        assert "engine-0 is drained" in drained.stdout
        assert " draining " in engines(mesh, "list").stdout
        batch = mesh.batch(created["id"])
        assert batch["status"] == "in_progress", batch
        second = [str(haywain), "engine", "--data", str(mesh.data), "--set", "engine.backend=echo", "--set", "engine.id=engine-1"]
        second += ["--set", f"engine.address=unix:{mesh.data}/run/second.sock"]
        with subprocess.Popen(second, stderr=subprocess.DEVNULL) as process:
            ended = mesh.wait(created["id"])
            process.terminate()
        output, failed = assert_conserved(mesh.client, ended, [row["custom_id"] for row in rows])
        assert (len(output), failed) == (60, [])
        assert {line["response"]["x_provenance"]["engine"] for line in output} == {"engine-0", "engine-1"}


def test_an_engine_is_checked_a_line_a_rule(mesh: Mesh) -> None:
    """`check` prints what holds and what can't be seen, and a line that sums up."""
    done = engines(mesh, "check", f"unix:{mesh.data}/run/engine.sock")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert lines[0].startswith("pass  describe        DescribeEngine names the engine")
    assert lines[-1].startswith("engine-0 (echo), echo at /v1/chat/completions: ")
    assert " 0 failed, " in lines[-1]
    assert {line.split()[0] for line in lines[:-1]} <= {"pass", "skip"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["drain", "nope"], "No engine found with id 'nope'."),
        (["drain"], "drain needs an ENGINE"),
        (["remove", "nope"], "No engine found with id 'nope'."),
        (["add"], "add needs the ADDRESS of an engine"),
        (["add", "nowhere"], "'nowhere' is no address of an engine: expected HOST:PORT or unix:/PATH"),
        (["check"], "check needs an ENGINE"),
        (["list", "engine-0"], "list takes no ENGINE"),
    ],
)
def test_what_cannot_be_done_is_one_line(mesh: Mesh, words: list[str], said: str) -> None:
    """An engine that isn't there, or a wrong command line, is told in one line with status 1."""
    done = engines(mesh, *words)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"haywain engines: {said}\n")


def test_a_mesh_that_is_not_there_is_one_line(mesh: Mesh) -> None:
    """Nobody at the address: one line that names it, no traceback, no hang."""
    port = free_port()
    done = engines(mesh, "list", port=port)
    said = f"haywain engines: There is no mesh at 127.0.0.1:{port} (HOST:PORT), or its scheduler can't answer now.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)

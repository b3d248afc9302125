"""Several engines beside one mesh, as real processes: two of one model, and one that was added and knows nothing of the mesh."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, free_port, until

from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.scheduler.v1 import scheduler_pb2_grpc


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with an echo engine of two slots, and an alias."""
    with Mesh(haywain) as running:
        slow = ("--engine", "echo", "--set", "engine.echo.slots=2", "--set", "engine.echo.ms_per_row=50")
        terms = ("--set", "batches.mixed_models=true", "--set", 'scheduler.aliases={"gpt-x":"other"}')
        yield running.start(*slow, *terms)


@contextlib.contextmanager
def engine(mesh: Mesh, engine_id: str, model: str, address: str, data: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run an engine of its own."""
    terms = {"backend": "echo", "id": engine_id, "address": address, "echo.model": model, "echo.slots": 2, "echo.ms_per_row": 50}
    command = [str(mesh.command), "engine", "--data", str(data), *(f"--set=engine.{name}={value}" for name, value in terms.items())]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


def engines(mesh: Mesh, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `haywain engines`."""
    command = [str(mesh.command), "engines", *words, "--address", f"127.0.0.1:{mesh.port}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def listed(mesh: Mesh) -> dict[str, pb.EngineStatus]:
    """List the engines by id, as the command does."""
    with grpc.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        listing = scheduler_pb2_grpc.SchedulerServiceStub(channel).ListEngines(pb.ListEnginesRequest(), timeout=30)
    return {status.engine.engine_id: status for status in listing.engines}


def is_ready(mesh: Mesh, engine_id: str, before: str = "") -> str:
    """Wait until an engine is ready, in another life than `before`; gives which."""

    def life() -> str:
        one = listed(mesh).get(engine_id, pb.EngineStatus())
        ready = one.state == pb.EngineStatus.STATE_READY and one.engine.incarnation != before
        return one.engine.incarnation if ready else ""

    return str(until(f"{engine_id} is ready", life))


def test_engines_come_share_the_rows_and_go(mesh: Mesh) -> None:
    """Added, killed, back, removed: what an operator types, sees, and gets."""
    address = f"127.0.0.1:{free_port()}"
    refused = engines(mesh, "add", address)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert refused.stderr.startswith(f"haywain engines: No engine answers at {address}: ")

    with tempfile.TemporaryDirectory(prefix="hw", dir="/tmp") as folder, contextlib.ExitStack() as stack:
        far = stack.enter_context(engine(mesh, "far", "other", address, Path(folder)))
        added = until("far listens", lambda: (done := engines(mesh, "add", address)).returncode == 0 and done)
        assert (added.stdout, added.stderr) == ("far is added: echo, 2 slots, other; it is ready\n", "")
        stack.enter_context(engine(mesh, "engine-1", "echo", f"unix:{mesh.data}/run/second.sock", mesh.data))
        is_ready(mesh, "engine-1")

        rows = [chat_row(f"e-{number}") for number in range(24)]
        rows += [chat_row(f"{model}-{number}", model=model) for model in ("other", "gpt-x") for number in range(6)]
        ended = mesh.wait(mesh.create(rows)["id"])
        output, failed = assert_conserved(mesh.client, ended, [row["custom_id"] for row in rows])
        assert failed == []
        by_model: dict[str, set[str]] = {}
        for line in output:
            by_model.setdefault(line["response"]["body"]["model"], set()).add(line["response"]["x_provenance"]["engine"])
        assert by_model == {"echo": {"engine-0", "engine-1"}, "other": {"far"}}
        assert mesh.ask("GET", "/v1/models/gpt-x").json()["id"] == "other"
        chat = mesh.ask("POST", "/v1/chat/completions", json=chat_row("c", model="gpt-x")["body"])
        assert (chat.status_code, chat.json()["model"]) == (200, "other")

        for name in ("engine-0", "engine-1", "far"):
            is_ready(mesh, name)
        shown = engines(mesh, "list").stdout
        assert max(map(len, shown.splitlines())) <= 100, shown
        assert [line.split()[:3] for line in shown.splitlines() if "echo" in line] == [
            [name, "ready", "echo"] for name in ("engine-0", "engine-1", "far")
        ]

        before = is_ready(mesh, "far")
        far.kill()
        far.wait()
        stack.enter_context(engine(mesh, "far", "other", address, Path(folder)))
        is_ready(mesh, "far", before)

        done = engines(mesh, "remove", "engine-1", "--wait", "30")
        again = "it is known again when its process starts anew"
        assert (done.returncode, done.stdout, done.stderr) == (0, f"engine-1 is removed; {again}\n", "")
        done = engines(mesh, "remove", "far", "--wait", "30")
        assert (done.returncode, done.stdout, done.stderr) == (0, "far is removed\n", "")
        told = json.loads(engines(mesh, "list", "--json").stdout)
        assert [(one["id"], one["state"], one["slots"]) for one in told["engines"]] == [("engine-0", "ready", 2)]

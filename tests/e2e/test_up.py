"""`haywain up` as an operator meets it: the ready line, the refusals, the restarts, the stop."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
from pathlib import Path

import psutil
import pytest
from conservation import assert_conserved
from family import below
from mesh import PROCESSES, Mesh, chat_row, until


def refusal(mesh: Mesh, *more: str) -> str:
    """Run `up` where it must refuse; its one line."""
    done = subprocess.run(mesh.arguments(*more), capture_output=True, text=True, timeout=60, check=False, cwd="/")
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_batch_runs_and_nothing_is_left(haywain: Path) -> None:
    """After `ready` a batch completes; SIGTERM stops every process and exits 0."""
    with Mesh(haywain).start("--engine", "echo") as mesh:
        rows = [chat_row(f"row-{n}", f"text {n}") for n in range(300)]
        batch = mesh.wait(mesh.create(rows)["id"])
        assert batch["status"] == "completed"
        output, failed = assert_conserved(mesh.client, batch, [row["custom_id"] for row in rows])
        assert len(output) == 300
        assert not failed
        assert mesh.stop() == 0


def test_interrupt_stops_in_order(haywain: Path) -> None:
    """SIGINT is a clean stop as well."""
    with Mesh(haywain).start("--engine", "echo") as mesh:
        assert mesh.stop(signal.SIGINT) == 0


def test_no_orphan_when_the_supervisor_is_killed(haywain: Path) -> None:
    """kill -9 of `up` takes every process of the mesh with it."""
    with Mesh(haywain).start("--engine", "echo") as mesh:
        assert mesh.process is not None
        family = psutil.Process(mesh.process.pid).children(recursive=True)
        assert len(family) >= len(PROCESSES)
        mesh.process.kill()
        mesh.process.wait()
        _, alive = psutil.wait_procs(family, timeout=10)
        assert not alive


@pytest.mark.parametrize("name", PROCESSES)
def test_what_dies_is_restarted(haywain: Path, name: str) -> None:
    """A killed process comes back with another pid and a batch runs to its end."""
    with Mesh(haywain).start("--engine", "echo") as mesh:
        before = mesh.pid(name)
        os.kill(before, signal.SIGKILL)
        until(f"{name} is another process", lambda: mesh.pid(name) != before)
        until("healthy", lambda: healthy(mesh))
        batch = mesh.wait(mesh.create([chat_row("a")])["id"])
        assert batch["status"] == "completed"
        assert_conserved(mesh.client, batch, ["a"])


def healthy(mesh: Mesh) -> bool:
    """Ask /health, whatever state the door is in."""
    try:
        return mesh.client.get("/health").status_code == 200
    except Exception:  # noqa: BLE001 - refused, reset, anything: not healthy yet
        return False


def test_two_side_by_side(haywain: Path) -> None:
    """Two instances on other ports and folders don't touch."""
    with Mesh(haywain).start("--engine", "echo") as one, Mesh(haywain).start("--engine", "echo") as two:
        batch = one.wait(one.create([chat_row("a")])["id"])
        assert batch["status"] == "completed"
        assert_conserved(one.client, batch, ["a"])
        assert two.client.get(f"/v1/batches/{batch['id']}").status_code == 404
        assert two.client.get("/v1/batches").json()["data"] == []
        assert one.stop() == 0
        assert two.client.get("/health").status_code == 200


def test_port_taken(haywain: Path) -> None:
    """A taken port is told in one line, and the folder can be used afterwards."""
    with Mesh(haywain) as mesh, socket.socket() as other:
        other.bind(("127.0.0.1", mesh.port))
        other.listen()
        assert f"127.0.0.1:{mesh.port}" in refusal(mesh, "--engine", "echo")


def test_folder_not_writable(haywain: Path) -> None:
    """A data folder that can't be made is told in one line."""
    with Mesh(haywain, data=Path("/proc/haywain")) as mesh:
        assert "/proc/haywain can't be written" in refusal(mesh, "--engine", "echo")


def test_one_up_a_folder(haywain: Path) -> None:
    """A second `up` on a folder in use is refused; the first goes on."""
    with Mesh(haywain).start("--engine", "echo") as mesh:
        with Mesh(haywain, data=mesh.data) as second:
            assert "in use by another haywain up" in refusal(second, "--engine", "echo")
        assert mesh.client.get("/health").status_code == 200


def test_model_missing_or_not_a_gguf(haywain: Path, tmp_path: Path) -> None:
    """A model that isn't there, or isn't a GGUF, is told before anything is started."""
    with Mesh(haywain) as mesh:
        assert "can't be read: No such file" in refusal(mesh, "--model", str(tmp_path / "none.gguf"))
        (tmp_path / "page.gguf").write_bytes(b"<html>not a model</html>")
        assert "is not a GGUF: it begins with b'<htm'" in refusal(mesh, "--model", str(tmp_path / "page.gguf"))
        assert not (mesh.data / "logs").exists()


def test_truncated_model(haywain: Path, tmp_path: Path) -> None:
    """A GGUF that ends too early is told in one line by the engine."""
    with Mesh(haywain) as mesh:
        (tmp_path / "cut.gguf").write_bytes(b"GGUF" + bytes(60))
        assert str(tmp_path / "cut.gguf") in refusal(mesh, "--model", str(tmp_path / "cut.gguf"))


def test_newer_data_folder(haywain: Path) -> None:
    """A folder of a newer version is refused and left as it is."""
    with Mesh(haywain) as mesh:
        (mesh.data / "format").write_text("7\n")
        assert "written by a newer Haywain: its format is '7'" in refusal(mesh, "--engine", "echo")
        assert (mesh.data / "format").read_text() == "7\n"


def test_newer_schema(haywain: Path) -> None:
    """A database of a newer version is refused and left as it is."""
    with Mesh(haywain).start("--engine", "echo") as mesh:
        mesh.stop()
        with sqlite3.connect(mesh.data / "scheduler.db") as connection:
            connection.execute("update schema_version set version = 99")
        connection.close()
        assert "written by a newer Haywain: its schema is 99" in refusal(mesh, "--engine", "echo")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("scheduler.nope=1", "unknown field `nope`"),
        ("scheduler.slots=many", "Expected `int`"),
        ("slots", "expected section.key=value"),
        ("engine.backend=abacus", "abacus"),
        ("log.level=loud", "expected one of: debug, info"),
        ("log.format=xml", "expected one of: auto, json"),
        ("log.keep=-1", "Expected `int` >= 0"),
    ],
)
def test_bad_settings(haywain: Path, setting: str, words: str) -> None:
    """A setting that can't be used is named."""
    with Mesh(haywain) as mesh:
        assert words in refusal(mesh, "--set", setting)


@pytest.mark.parametrize("name", ["files", "batches", "scheduler", "engine", "gateway"])
def test_one_process_of_a_kind(haywain: Path, name: str) -> None:
    """A second process of the same kind on the same folder is refused in one line; the first keeps its socket."""
    with Mesh(haywain).start("--engine", "echo") as mesh:
        words = [str(haywain), name, "--data", str(mesh.data), "--set", "engine.backend=echo"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd="/")
        assert done.returncode == 78, done.stderr
        assert "another" in done.stderr.strip().splitlines()[-1]
        batch = mesh.wait(mesh.create([chat_row("a")])["id"])
        assert_conserved(mesh.client, batch, ["a"])


def test_others_cannot_read_the_data(haywain: Path) -> None:
    """The data folder that `up` makes is closed to other users."""
    with Mesh(haywain) as mesh:
        mesh.data.rmdir()
        subprocess.run(mesh.arguments("--set", "engine.backend=abacus"), capture_output=True, timeout=60, check=False, cwd="/")
        assert mesh.data.stat().st_mode & 0o777 == 0o700


def test_logs_have_a_bounded_size(haywain: Path) -> None:
    """A log that is full is renamed while its process runs; every request is in one of the parts of Envoy's, once."""
    full = ("--set", "log.level=debug", "--set", "log.max_bytes=20000", "--set", "log.keep=1000")
    with Mesh(haywain).start("--engine", "echo", *full) as mesh:
        folder, asked = mesh.data / "logs", list[str]()

        def renamed_twice() -> bool:
            asked.append(f"asked-{len(asked)}-")
            mesh.client.get("/v1/files?limit=0", headers={"x-request-id": asked[-1]})
            return (folder / "envoy.log.2").exists()

        def times() -> list[int]:
            try:
                text = "".join(part.read_text() for part in folder.glob("envoy.log*"))
            except FileNotFoundError:  # renamed between two looks
                return []
            return [text.count(f'"{request_id}"') for request_id in asked]

        until("Envoy's log is renamed twice", renamed_twice)
        until("each request is logged once", lambda: times() == [1] * len(asked))
        assert mesh.stop() == 0


def test_an_envoy_that_starts_slowly_with_a_full_log(haywain: Path) -> None:
    """It isn't told before it listens, which would kill it: it comes up, and then goes on in a new log."""
    with Mesh(haywain).start("--engine", "echo", "--set", "log.max_bytes=500000") as mesh:
        assert mesh.process is not None
        folder, supervisor, before = mesh.data / "logs", psutil.Process(mesh.process.pid), mesh.pid("envoy")

        def fill(name: str) -> None:
            with (folder / f"{name}.log").open("ab") as log:
                log.write(b"x" * 500_000 + b"\n")

        mesh.kill("envoy")
        started = until("the next one is started", lambda: [one for one in below(supervisor, "envoy") if one.pid != before])
        started[0].suspend()
        fill("envoy")
        for number in (1, 2):  # each time all logs were looked at, Envoy's after that of files
            fill("files")
            until("another log is renamed", lambda number=number: (folder / f"files.log.{number}").exists())
        started[0].resume()
        until("its log is renamed", (folder / "envoy.log.1").exists)
        assert mesh.ask("GET", "/health").status_code == 200
        assert mesh.pid("envoy") == started[0].pid
        assert mesh.stop() == 0

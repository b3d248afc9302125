"""`haywain run` on a terminal: a progress bar, and a batch that outlives an impatient Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mesh import Mesh, chat_row, jsonl


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh that takes its time."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo", "--set", "engine.echo.ms_per_row=100", "--set", "engine.echo.slots=32")


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *words: str) -> None:
        """Start it."""
        self._end, inner = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        # A shell's background jobs ignore SIGINT, and so does what they start: a terminal's don't.
        self.process = subprocess.Popen(
            ["env", "--default-signal=INT", *words], stdin=inner, stdout=inner, stderr=inner, env=environment
        )
        os.close(inner)
        self.shown = ""

    def read(self, until: str | None = None) -> str:
        """Read until a pattern is shown, or to the end."""
        while until is None or not re.search(until, self.shown):
            try:
                data = os.read(self._end, 65536)
            except OSError:  # Linux: the other end is closed
                data = b""
            if not data:
                assert until is None, f"{until!r} was never shown: {self.shown!r}"
                break
            self.shown += data.decode("utf-8", "replace")
        return self.shown

    def close(self) -> int:
        """Wait for the end; the exit status."""
        self.read()
        os.close(self._end)
        return self.process.wait(30)


def test_progress_bar(mesh: Mesh, tmp_path: Path) -> None:
    """Status, rows done of all, and rows a second are drawn while the batch runs; the last line tells what came of it."""
    (tmp_path / "in.jsonl").write_bytes(jsonl(chat_row(f"row-{n}") for n in range(500)))
    output = tmp_path / "out.jsonl"
    words = ["run", str(tmp_path / "in.jsonl"), "-o", str(output), "--url", f"http://127.0.0.1:{mesh.port}"]
    terminal = Terminal(str(mesh.command), *words)
    assert terminal.close() == 0, terminal.shown
    assert "in_progress" in terminal.shown
    assert "500/500" in terminal.shown
    drawn = {int(done) for done in re.findall(r"(\d+)/500", terminal.shown)}
    assert len(drawn) > 2, "it was drawn while rows ended"
    assert "rows/s" in terminal.shown
    assert re.search(r"batch batch_\w+", terminal.shown)
    assert len(output.read_bytes().splitlines()) == 500


def test_interrupted(mesh: Mesh, tmp_path: Path) -> None:
    """Ctrl-C ends the command with 130, without a traceback; the batch, whose id was shown, goes on."""
    (tmp_path / "in.jsonl").write_bytes(jsonl(chat_row(f"row-{n}") for n in range(3000)))
    output = tmp_path / "out.jsonl"
    words = ["run", str(tmp_path / "in.jsonl"), "-o", str(output), "--url", f"http://127.0.0.1:{mesh.port}"]
    terminal = Terminal(str(mesh.command), *words)
    terminal.read(until=r"in_progress")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.close() == 130
    assert "Traceback" not in terminal.shown
    (batch_id,) = set(re.findall(r"batch_[0-9a-f]+", terminal.shown))
    assert mesh.wait(batch_id)["status"] == "completed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]

"""Logs of a bounded size: real processes that write while their files are renamed under them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mesh import until

from haywain import logfiles

WRITER = """
import os, select, signal, sys
from haywain import log, logfiles
from haywain.settings import LogSettings
log.configure(LogSettings(format="json"), "writer")
logfiles.follow()
number = 0
while not select.select([sys.stdin], [], [], 0.001)[0]:
    log.get().info("line.written", number=number)
    number += 1
print("last", file=sys.stderr)
signal.pause()
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Name a log."""
    return tmp_path / "files.log"


def parts(log: Path) -> list[Path]:
    """List a log and its older parts, oldest first."""
    older = sorted(log.parent.glob("files.log.*"), key=lambda part: -int(part.suffix[1:]))
    return [*older, *([log] if log.exists() else [])]


def test_older_parts_move_on_and_the_oldest_goes(log: Path) -> None:
    """There are never more of them than are kept, and a gap that a crash left does no harm."""
    for number in range(5):
        log.write_text(str(number))
        logfiles.rotate(log, 3)
    assert [part.read_text() for part in parts(log)] == ["2", "3", "4"]
    log.with_name("files.log.2").unlink()
    log.write_text("5")
    logfiles.rotate(log, 3)
    assert [part.read_text() for part in parts(log)] == ["2", "4", "5"]
    logfiles.rotate(log, 3)
    assert [part.read_text() for part in parts(log)] == ["4", "5"]
    log.write_text("6")
    logfiles.rotate(log, 0)
    assert not log.exists()


@pytest.fixture
def writer(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that writes lines to the log until its standard input ends."""
    environment = os.environ | {logfiles.VARIABLE: str(log)}
    with log.open("ab") as file:
        command = [sys.executable, "-c", WRITER]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file, env=environment)
    with process:
        yield process
        process.kill()


def test_no_line_is_lost(log: Path, writer: subprocess.Popen[bytes]) -> None:
    """However often a log is renamed, each line is whole in one of its parts, in order, also what isn't written by our logger."""
    turns = 0

    def done() -> bool:
        nonlocal turns
        if logfiles.is_full(log, 20_000):
            logfiles.rotate(log, 1_000)
            turns += 1
            if turns == 3 and writer.stdin is not None:
                writer.stdin.close()
        text = b"".join(part.read_bytes() for part in parts(log)[-2:])
        return text.endswith(b"last\n")

    until("all lines are written", done)
    lines = [line for part in parts(log) for line in part.read_text().splitlines()]
    assert turns >= 3
    assert [json.loads(line)["number"] for line in lines[:-1]] == list(range(len(lines) - 1))


LISTENER = """
import signal, sys
print(1, flush=True)
sys.stdin.readline()
signal.signal(signal.SIGUSR1, lambda *_: None)
print(2, flush=True)
sys.stdin.readline()
"""


def test_who_listens_is_known() -> None:
    """A process that would die of the signal isn't told, however long ago it was started; nor is one that is gone."""
    with subprocess.Popen([sys.executable, "-c", LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for listens in (False, True):
            process.stdout.readline()
            assert logfiles.listens(process.pid) is listens
            process.stdin.write(b"go on\n")
            process.stdin.flush()
    assert not logfiles.listens(process.pid)

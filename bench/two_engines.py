"""One of two engines killed in mid-batch: how long until the other one's own throughput is there, and what became of the rows.

    python bench/two_engines.py [--rows 6000] [--slots 32] [--ms-per-token 10] [--stop]

A whole mesh with the echo engine, and a second such engine beside it; rows take 50 to 350 ms, so the engines' slots bound what
goes through. The second engine is killed (`--stop`: SIGSTOP, which only its missing heartbeats tell) once a third of the rows is
recorded. Rows are counted in the batch's journal, every 20 ms. "Back" is the end of the last half second, before the batch's own
end, that had less than 0.8 of what the survivor does; its own rate is that of the time from three seconds after the kill on.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from conservation import assert_conserved
from mesh import Mesh, chat_row, until

_HAYWAIN = Path(sys.executable).parent / "haywain"
_LOOK_SECONDS = 0.02
_WINDOW_SECONDS = 0.5
_SETTLED_SECONDS = 3.0
_AIM_SECONDS = 2.0
_ENOUGH = 0.8


class Counted:
    """When rows were recorded."""

    def __init__(self, journal: Path) -> None:
        """Nothing is read yet."""
        self._journal = journal
        self._read = 0
        self.times: list[float] = []
        """Of each row, ascending."""

    def look(self) -> int:
        """Read on; the rows so far."""
        if self._journal.exists():
            with self._journal.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            self._read += len(new)
            self.times += [time.monotonic()] * new.count(b"\n")
        return len(self.times)

    def rate(self, begin: float, end: float) -> float:
        """Rows a second in a span of time."""
        return (bisect_left(self.times, end) - bisect_left(self.times, begin)) / (end - begin)

    def follow(self, rows: int, within: float = 600.0) -> None:
        """Read until so many rows are recorded."""
        give_up = time.monotonic() + within
        while self.look() < rows and time.monotonic() < give_up:
            time.sleep(_LOOK_SECONDS)


def rows_of(count: int) -> list[dict[str, object]]:
    """Make rows of 5 to 35 words, in no order."""
    return [chat_row(f"row-{number}", " ".join(["word"] * (5 + number * 7 % 31))) for number in range(count)]


def second_engine(mesh: Mesh, settings: list[str]) -> subprocess.Popen[bytes]:
    """Start an engine that nobody restarts."""
    own = ["--set", "engine.id=second", "--set", f"engine.address=unix:{mesh.data}/run/second.sock"]
    command = [str(_HAYWAIN), "engine", "--data", str(mesh.data), *settings, *own]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def back_after(counted: Counted, killed: float, own: float) -> float:
    """Tell how long after the kill the last half second of too few rows ended."""
    last = 0.0
    begin, end = killed, counted.times[-1] - 1.0
    while begin + _WINDOW_SECONDS < end:
        if counted.rate(begin, begin + _WINDOW_SECONDS) < _ENOUGH * own:
            last = begin + _WINDOW_SECONDS - killed
        begin += _LOOK_SECONDS
    return last


def measure(options: argparse.Namespace) -> bool:
    """Run it; whether the aim is reached."""
    settings = [word for name in ("slots", "ms_per_token") for word in ("--set", f"engine.echo.{name}={getattr(options, name)}")]
    settings += ["--set", "engine.backend=echo"]
    with Mesh(_HAYWAIN) as mesh:
        mesh.start(*settings)
        other = second_engine(mesh, settings)
        try:
            until("both engines are ready", lambda: [engine["state"] for engine in pool(mesh)] == ["ready", "ready"])
            batch = mesh.create(rows_of(options.rows))
            counted = Counted(mesh.data / "incremental" / f"{batch['id']}.jsonl")
            counted.follow(options.rows // 3)
            lost = next(engine["active"] for engine in pool(mesh) if engine["id"] == "second")
            killed = time.monotonic()
            other.send_signal(signal.SIGSTOP if options.stop else signal.SIGKILL)
            counted.follow(options.rows)
        finally:
            other.kill()
            other.wait()
        ended = until("it ends", lambda: (found := mesh.batch(batch["id"]))["status"] == "completed" and found, 60)
        output, failed = assert_conserved(mesh.client, ended, [f"row-{number}" for number in range(options.rows)])
    own = counted.rate(killed + _SETTLED_SECONDS, counted.times[-1] - 1.0)
    back = back_after(counted, killed, own)
    print(f"rows: {len(output)} completed, {len(failed)} failed; up to {lost} were at the engine that was killed")
    print(f"before: {counted.rate(counted.times[0] + 1.0, killed):6.0f} rows/s")
    print(f"during: {counted.rate(killed, killed + _AIM_SECONDS):6.0f} rows/s in the {_AIM_SECONDS:g} s after the kill")
    print(f"after:  {own:6.0f} rows/s, the survivor's own")
    print(f"back after {back:.2f} s (aim {_AIM_SECONDS:g} s)")
    return back <= _AIM_SECONDS and not failed


def pool(mesh: Mesh) -> list[dict[str, object]]:
    """Ask for the engines."""
    engines: list[dict[str, object]] = json.loads(mesh.client.get("/v1/pool/status").content)["engines"]
    return engines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6_000)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--ms-per-token", type=float, default=10)
    parser.add_argument("--stop", action="store_true")
    sys.exit(0 if measure(parser.parse_args()) else 1)

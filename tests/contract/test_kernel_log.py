"""Logs of a real process."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import sys
from haywain import log
from haywain.settings import LogSettings
log.configure(LogSettings(), "test")
for number in range(1000):
    log.get().error("thing.happened", number=number)
print("alive")
"""

PLACES = """
import asyncio, contextvars, threading
from haywain import log
from haywain.settings import LogSettings
log.configure(LogSettings(format="json"), "test")
def say():
    log.get().error("thing.happened")
async def main():
    say()
    await asyncio.get_running_loop().run_in_executor(None, say)
    await asyncio.to_thread(say)
contextvars.Context().run(asyncio.run, main())
"""


def test_every_line_names_its_process() -> None:
    """Also of threads, and of tasks whose context is their own."""
    ran = subprocess.run([sys.executable, "-c", PLACES], stderr=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert [(line["event"], line["process"]) for line in lines] == [("thing.happened", "test")] * 3


def test_a_log_that_takes_nothing_ends_no_process() -> None:
    """A full disk, on which the log is as well, costs log lines only."""
    with open("/dev/full", "w") as full:
        ran = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert ran.stdout == "alive\n"

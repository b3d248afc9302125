"""Logs of a real process."""

from __future__ import annotations

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


def test_a_log_that_takes_nothing_ends_no_process() -> None:
    """A full disk, on which the log is as well, costs log lines only."""
    with open("/dev/full", "w") as full:
        ran = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert ran.stdout == "alive\n"

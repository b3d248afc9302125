"""The last words of a process, as `haywain up` tells them."""

from __future__ import annotations

from pathlib import Path

from haywain.up import _last_line


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path) -> None:
    """The last line that isn't blank is found at once in a log that is larger than memory."""
    log = tmp_path / "engine.log"
    assert _last_line(log) == ""
    log.write_text("one\ntwo\n\n")
    assert _last_line(log) == "two"
    with log.open("r+b") as file:
        file.truncate(1 << 40)
        file.seek(0, 2)
        file.write(b"\nthree\n")
    assert _last_line(log) == "three"

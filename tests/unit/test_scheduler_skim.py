"""The quick way to read a journal back says what the slow one says."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from services.scheduler import skim
from services.scheduler.replay import Replay, replay, row_prefix

PREFIX = row_prefix("batch_ab")
GOOD = PREFIX + b'%08x","response":{"body":{"n":"%b"}},"error":null}\n'
BAD = PREFIX + b'%08x","response":null,"error":{"code":"x","line":1}}\n'
STRANGE = (
    b"\0" * 40 + b"\n", b"\n", b"{}\n", b'{"id":"batch_req_cd_00000001","error":null}\n', BAD % 9_999, b"junk" + GOOD % (1, b""),
    PREFIX + b'zzzzzzzz","error":null}\n', GOOD[:-3] % (1, b"") + b"\n",
)  # fmt: skip


def slowly(path: Path, rows: int, checkpoint: int, monkeypatch: pytest.MonkeyPatch) -> Replay:
    """Read a journal back line by line."""
    with monkeypatch.context() as patch:
        patch.setattr("services.scheduler.replay.skim", lambda *_: 0)
        return replay(path, PREFIX, rows, checkpoint, [0, rows // 2])


@pytest.mark.parametrize("seed", range(40))
def test_both_ways_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whatever lines there are, however often a row comes, wherever the checkpoint is, and where pieces of the file end."""
    dice = random.Random(seed)
    monkeypatch.setattr(skim, "_PIECE_BYTES", dice.choice([90, 200, 1_000, 1 << 20]))
    lines = [
        GOOD % (dice.randrange(50), b"x" * dice.randrange(60)) if dice.random() < 0.7 else BAD % dice.randrange(50)
        for _ in range(60)
    ]
    for _ in range(dice.choice([0, 0, 1, 3])):
        lines.insert(dice.randrange(60), dice.choice(STRANGE))
    path = tmp_path / "journal"
    path.write_bytes(b"".join(lines) + dice.choice([b"", GOOD[:20], b"\0" * 30]))
    checkpoint = len(b"".join(lines[: dice.choice([0, 10, 40, 60, 61])]))
    for until in (checkpoint, checkpoint + 7, 1 << 30):
        assert replay(path, PREFIX, 50, until, [0, 25]) == slowly(path, 50, until, monkeypatch)


def test_nothing_to_skim(tmp_path: Path) -> None:
    """A journal that isn't there, and an empty one, have no rows."""
    assert replay(tmp_path / "none", PREFIX, 3, 100, [0]) == Replay(bytearray(3), 0, {})
    (tmp_path / "empty").touch()
    assert replay(tmp_path / "empty", PREFIX, 3, 100, [0]) == Replay(bytearray(3), 0, {})


def test_a_million_lines_would_take_two_seconds(tmp_path: Path) -> None:
    """The committed part costs less than 2 µs of processor time a line (bench/restart.py measures whole journals)."""
    rows = 50_000
    path = tmp_path / "journal"
    path.write_bytes(b"".join(GOOD % (row, b"x" * 300) for row in range(rows)))
    best = 1.0
    for _ in range(5):
        began = time.process_time()
        found = replay(path, PREFIX, rows, path.stat().st_size, [0])
        best = min(best, time.process_time() - began)
    assert found.recorded.count(1) == rows
    assert best / rows < 2e-6

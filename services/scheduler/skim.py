"""Reading the committed part of a journal quickly: many lines at a time, as long as all of them look like ours."""

from __future__ import annotations

from typing import BinaryIO

__all__ = ["skim"]

_PIECE_BYTES = 256 * 1024
_GOOD, _BAD = b"null}", b"}}"


def skim(file: BinaryIO, prefix: bytes, recorded: bytearray, until: int) -> int:
    """Mark in `recorded` what lines before byte `until` say: 1 completed, 2 failed; of two lines of one row the first counts.

    Answers the byte up to which that was done: `until` or less, and the start of a line. Blocking.
    """
    at = 0
    while at < until:
        piece = file.read(min(_PIECE_BYTES, until - at))
        end = piece.rfind(b"\n") + 1
        if not end or not _mark(piece[: end - 1].split(b"\n"), prefix, recorded):
            break
        at += end
        file.seek(at)
    file.seek(at)
    return at


def _mark(lines: list[bytes], prefix: bytes, recorded: bytearray) -> bool:
    """Mark lines; False, and nothing is, when one of them isn't like ours."""
    begin, behind = len(prefix), len(prefix) + 8
    if {line[:begin] for line in lines} != {prefix}:
        return False
    try:
        rows = [int(line[begin:behind], 16) for line in lines]
    except ValueError:
        return False
    outcomes = [1 if line.endswith(_GOOD) else 2 if line.endswith(_BAD) else 0 for line in lines]
    if 0 in outcomes or min(rows) < 0 or max(rows) >= len(recorded):
        return False
    for row, outcome in zip(rows, outcomes, strict=True):
        if not recorded[row]:
            recorded[row] = outcome
    return True

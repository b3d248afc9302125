"""Opaque ids. They sort by time of creation, so that a list by (created_at, id) is in the order of creation."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

__all__ = ["is_one", "new"]

_RANDOM_DIGITS = 16
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_last_ms = 0
_sequence = 0
_draws: Iterator[str] = iter(())
"""Random digits, drawn ahead: each draw from the system lets other threads go first."""


def new(prefix: str) -> str:
    """Make an id: `prefix`, 12 hex digits of milliseconds, 4 of a counter within one, 16 random ones."""
    global _last_ms, _sequence  # noqa: PLW0603 - the counter is what keeps ids of one millisecond in order
    now_ms = time.time_ns() // 1_000_000
    if now_ms > _last_ms:
        _last_ms, _sequence = now_ms, 0
    elif _sequence < 0xFFFF:
        _sequence += 1
    else:  # the clock stands or was set back: borrow from the next millisecond
        _last_ms, _sequence = _last_ms + 1, 0
    return f"{prefix}{_last_ms:012x}{_sequence:04x}{_drawn()}"


def is_one(text: str) -> bool:
    """Tell whether a text that somebody sent could be an id, of whomever's making: it is fit to be a file's name."""
    return _ID.fullmatch(text) is not None


def _drawn() -> str:
    global _draws  # noqa: PLW0603 - whoever finds none left leaves some for the others
    draw = next(_draws, None)  # no two threads get the same
    if draw is None:
        digits = os.urandom(256 * _RANDOM_DIGITS).hex()
        fresh = iter([digits[at : at + _RANDOM_DIGITS] for at in range(0, len(digits), _RANDOM_DIGITS)])
        draw = next(fresh)
        _draws = fresh
    return draw

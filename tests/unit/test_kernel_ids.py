"""Ids: their form, their order, and that no two are the same."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from haywain import ids


def test_an_id_is_its_prefix_and_hex() -> None:
    """An id is the prefix and 32 hex digits, the first 12 of them the milliseconds."""
    before = time.time_ns() // 1_000_000
    made = ids.new("file-")
    assert re.fullmatch(r"file-[0-9a-f]{32}", made)
    assert before <= int(made[5:17], 16) <= before + 60_000


def test_ids_sort_by_their_making() -> None:
    """Ids made one after the other sort in that order, many in a millisecond too, and no two are the same."""
    made = [ids.new("x") for _ in range(100_000)]
    assert made == sorted(set(made))


@pytest.mark.parametrize("step_ms", [0, -3_600_000])
def test_ids_sort_when_the_clock_stands_or_goes_back(monkeypatch: pytest.MonkeyPatch, step_ms: int) -> None:
    """A clock that stands still or is set back changes nothing about the order, for more ids than a counter holds."""
    first = ids.new("x")
    stands = time.time_ns() + step_ms * 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: stands)
    made = [first, *(ids.new("x") for _ in range(70_000))]
    assert made == sorted(set(made))


def test_threads_never_make_the_same() -> None:
    """Ids made by many threads at once are all different."""
    with ThreadPoolExecutor(8) as threads:
        made = [made for part in threads.map(lambda _: [ids.new("x") for _ in range(5_000)], range(8)) for made in part]
    assert len(set(made)) == 40_000


@pytest.mark.parametrize("text", ["", "-a", "_a", ".", "..", "a/b", "a.b", "a b", "a\n", "ä", "a" * 129])
def test_what_is_no_id(text: str) -> None:
    """What could lead out of a folder, hide in it, or be too long a name is no id; what we make is one."""
    assert not ids.is_one(text)
    assert ids.is_one(ids.new("batch_"))

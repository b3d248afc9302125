"""Clocks and what becomes of times on the wire."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from haywain.clock import FakeClock, SystemClock, seconds, timestamp


def test_a_fake_clock_stands_until_moved() -> None:
    """A fake clock tells the time it was given, and moves by what it is told."""
    clock = FakeClock(100.0)
    assert (clock.now(), clock.monotonic()) == (100.0, 100.0)
    clock.advance(1.5)
    assert (clock.now(), clock.monotonic()) == (101.5, 101.5)


def test_the_system_clock_is_the_machine_s() -> None:
    """The system's clock tells Unix seconds, and a monotonic time that doesn't go back."""
    clock = SystemClock()
    assert abs(clock.now() - time.time()) < 60
    assert clock.monotonic() <= clock.monotonic()


def test_no_time_is_an_unset_field() -> None:
    """None becomes no Timestamp, and an unset Timestamp becomes None."""
    assert timestamp(None) is None
    unset = timestamp(0.0)
    assert unset is not None
    assert seconds(unset) is None


@given(st.floats(min_value=1e-3, max_value=4e9))
def test_times_survive_the_wire(unix_seconds: float) -> None:
    """A time comes back within a nanosecond, and one of our days exactly."""
    stamp = timestamp(unix_seconds)
    assert stamp is not None
    assert 0 <= stamp.nanos < 1_000_000_000
    back = seconds(stamp)
    assert back is not None
    assert abs(back - unix_seconds) < 2e-9 or back == unix_seconds


@given(st.integers(min_value=0, max_value=4_000_000_000_000))
def test_milliseconds_survive_the_wire(milliseconds: int) -> None:
    """A time in whole milliseconds rounds to the same millisecond again."""
    stamp = timestamp(milliseconds / 1_000)
    assert stamp is not None
    assert round((seconds(stamp) or 0.0) * 1_000) == milliseconds

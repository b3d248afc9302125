"""The tree of errors: what each class says of itself."""

from __future__ import annotations

import re

import grpc
import pytest

from haywain import errors
from haywain.errors import HaywainError, by_reason

MINE = list(errors._tree(HaywainError).values())
KINDS = sorted(MINE, key=lambda kind: kind.__name__)


def test_the_module_draws_the_whole_tree() -> None:
    """Every class is in the drawing of the module's docstring, and exported."""
    drawn = re.findall(r"^[ │├└─]*([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)
    assert {kind.__name__ for kind in KINDS} <= set(drawn)
    assert {kind.__name__ for kind in KINDS} <= set(errors.__all__)


@pytest.mark.parametrize("kind", KINDS)
def test_reasons_name_one_class(kind: type[HaywainError]) -> None:
    """A class is found again by its reason, an UPPER_SNAKE_CASE word."""
    assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*", kind.reason())
    assert by_reason(kind.reason()) is kind


def test_strangers_reasons_name_nothing() -> None:
    """A reason that isn't ours names no class."""
    assert by_reason("SERVICE_DISABLED") is None
    assert by_reason("") is None


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_say_something(kind: type[HaywainError]) -> None:
    """A class's docstring is its message, one line for people, and its status is an error's."""
    error = kind()
    assert error.message == str(error)
    assert error.message.endswith((".", ";")) or " " in error.message
    assert "\n" not in error.message
    assert error.status is not grpc.StatusCode.OK
    assert (error.code, error.param, error.retry_after) == (kind.default_code, "", 0.0)


def test_what_is_given_wins() -> None:
    """Message, code, param and retry_after are as given."""
    error = errors.CapacityExceeded("Full: 3 of 3.", code="c", param="p", retry_after=1.5)
    assert (error.message, error.code, error.param, error.retry_after) == ("Full: 3 of 3.", "c", "p", 1.5)


def test_retryable_is_what_a_retry_may_cure() -> None:
    """Only full, away, late, leased and still at it can be retried unchanged."""
    retryable = {kind.__name__ for kind in KINDS if kind.retryable}
    assert retryable == {"CapacityExceeded", "DeadlineExceeded", "KeyInUse", "LeaseUnavailable", "StorageFull", "Unavailable"}

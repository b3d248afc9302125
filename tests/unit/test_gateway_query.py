"""Query strings: every mistake has its code and its name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.query import Page, integer, one_of, parameters
from haywain import errors


def context(query: str) -> Any:
    """Make what a handler gets."""
    return SimpleNamespace(invocation_metadata=lambda: (("x-haywain-query", query),))


def test_known_parameters_are_decoded() -> None:
    """Parameters are decoded as forms are: percent and plus, blanks kept."""
    assert parameters(context("after=a%2Fb+c&limit="), ("after", "limit")) == {"after": "a/b c", "limit": ""}


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("lim=1", "unknown_parameter", "lim"),
        ("limit=1&limit=1", "invalid_value", "limit"),
        ("limit=%ff", "invalid_value", ""),
        ("&".join(f"p{n}=1" for n in range(101)), "invalid_value", ""),
    ],
)
def test_mistakes_are_named(query: str, code: str, param: str) -> None:
    """Unknown, repeated and undecodable parameters are refused."""
    with pytest.raises(errors.InvalidRequest) as refused:
        parameters(context(query), ("limit",))
    assert (refused.value.code, refused.value.param) == (code, param)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("101", "integer_above_max_value"),
        ("9" * 5000, "integer_above_max_value"),
        ("-1", "integer_below_min_value"),
        ("-" + "9" * 5000, "integer_below_min_value"),
        ("", "invalid_type"),
        ("1.0", "invalid_type"),
        ("1_0", "invalid_type"),
        ("+1", "invalid_type"),
        (" 1", "invalid_type"),
        ("٣", "invalid_type"),
        ("1e2", "invalid_type"),
    ],
)
def test_integers_are_strict(text: str, code: str) -> None:
    """Only ASCII digits with an optional minus are an integer, and the limits have OpenAI's codes."""
    with pytest.raises(errors.InvalidRequest) as refused:
        integer("limit", text, 0, 100)
    assert (refused.value.code, refused.value.param) == (code, "limit")
    assert len(refused.value.message) < 200


def test_integers_within_limits() -> None:
    """Both limits are inside."""
    assert [integer("limit", text, 0, 100) for text in ("0", "100", "007")] == [0, 100, 7]


def test_words() -> None:
    """A word that isn't supported is refused with those that are."""
    assert one_of("order", "asc", ("asc", "desc")) == "asc"
    with pytest.raises(errors.InvalidRequest, match=r"Supported values are: 'asc' and 'desc'\."):
        one_of("order", "up", ("asc", "desc"))


def test_empty_page() -> None:
    """An empty page has null ids and no more."""
    assert Page.of([], has_more=True) == Page(data=[], first_id=None, last_id=None, has_more=False)

"""A rule, and how it went. A rule is a function whose name is its name and whose docstring is the sentence that must hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

__all__ = ["Broken", "NotSeen", "Outcome", "Rule", "expect", "name", "title"]

Rule = Callable[[Any], Awaitable[None]]
"""takes a Target (engine/check/target.py). Raises Broken, or NotSeen"""


class Broken(Exception):
    """The engine broke the rule."""

    def __init__(self, expected: str, seen: str) -> None:
        """Both as a person reads them."""
        super().__init__(f"expected {expected}, seen {seen}")
        self.expected = expected
        self.seen = seen


class NotSeen(Exception):
    """Whether the rule holds can't be seen on this engine; the text says why."""


class Outcome(msgspec.Struct, frozen=True):
    """How a rule went."""

    rule: str
    title: str
    outcome: Literal["pass", "fail", "skip"]
    seconds: float
    expected: str = ""
    seen: str = ""
    """of a skipped one: why"""


def name(rule: Rule) -> str:
    """Tell a rule's name."""
    return str(getattr(rule, "__name__", ""))


def title(rule: Rule) -> str:
    """Tell a rule's sentence."""
    return (rule.__doc__ or "").splitlines()[0].rstrip(".")


def expect(holds: Any, expected: str, seen: Any) -> None:
    """Raise Broken unless it holds."""
    if not holds:
        raise Broken(expected, str(seen)[:300])

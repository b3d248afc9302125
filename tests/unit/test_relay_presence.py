"""Whether a server that a backend relays to is there, and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine.relay import presence
from engine.relay.presence import Presence


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look without waiting."""
    monkeypatch.setattr(presence, "_ASK_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(presence, "_LOOK_SECONDS", 0.0)


def test_the_log_has_one_line_each_way() -> None:
    """However often it is found away and says that it is there, the log tells once; and once when a row was answered."""
    with capture_logs() as said:
        one = Presence("server", model="m")
        for _ in range(3):
            one.gone("refused\n" * 100)
            one.returned()
        one.answered()
        one.answered()
    assert [(line["event"], line["model"]) for line in said] == [("server.away", "m"), ("server.back", "m")]
    assert len(said[0]["reason"]) == 300


def test_who_wants_to_know_is_told_once_each_time() -> None:
    """`goes` is called when it goes, not for every reason why it is still away."""
    times: list[str] = []
    one = Presence("server", goes=lambda: times.append(one.reason))
    one.gone("a")
    one.gone("b")
    one.returned()
    one.gone("c")
    assert times == ["a", "c"]


def test_an_answer_while_it_is_away_says_nothing() -> None:
    """What was answered just before it went doesn't make it there."""
    with capture_logs() as said:
        one = Presence("server")
        one.gone("")
        one.answered()
    assert (one.reason, [line["event"] for line in said]) == ("away", ["server.away"])


async def test_who_waits_goes_on_when_it_is_there() -> None:
    """A wait ends when it is there, at once if it is; else with its time."""
    one = Presence("server")
    assert await one.there(0)
    one.gone("gone")
    assert not await one.there(0.001)
    assert not await one.there(-1)
    waiting = asyncio.create_task(one.there(20))
    await asyncio.sleep(0)
    one.returned()
    assert await waiting


async def watched(looks: list[str | Exception], due: Callable[[], bool] = lambda: True) -> tuple[Presence, list[str]]:
    """Watch one whose looks give these, the last of which must raise; the reason before each look, and that it returned."""
    seen: list[str] = []
    one = Presence("server", returns=lambda: seen.append("returns"))

    async def look() -> str:
        seen.append(f"look {one.reason}")
        found = looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    with pytest.raises(LookupError):
        await asyncio.wait_for(one.watch(look, due), 20)
    return one, seen


async def test_a_watch_finds_it_away_and_there_again() -> None:
    """What a look tells is in force until the next one; that it returned is told once."""
    one, seen = await watched(["", "gone", "still gone", "", "", LookupError()])
    assert seen == ["look ", "look ", "look gone", "look still gone", "returns", "look ", "look "]
    assert one.reason == ""


async def test_nothing_is_looked_at_that_is_there_and_not_due() -> None:
    """While it is there a look needs a reason; while it is away none."""
    due: list[Any] = [False, False, True, True, True]
    _, seen = await watched(["gone", "", LookupError()], lambda: due.pop(0))
    assert seen == ["look ", "look gone", "returns", "look "]
    assert len(due) == 1

"""The conformance suite of engines: it finds each lie where it is told, and never hangs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import engine_lies
import pytest
from engine_liar import Liar, lying

from engine.check import rule, suite
from engine.check.command import command
from haywain import errors
from haywain.engine.v1 import engine_pb2 as pb


def broken(report: suite.Report) -> dict[str, str]:
    """What failed, and what was seen."""
    return {one.rule: one.seen for one in report.rules if one.outcome == "fail"}


async def test_an_honest_engine_passes_every_rule() -> None:
    """Behind the proxy that tells no lie every rule passes, and none is passed over."""
    async with lying(Liar) as served:
        report = await suite.check(served.address, restart=served.restart)
    assert [(one.rule, one.seen) for one in report.rules if one.outcome != "pass"] == []
    assert report.passed
    assert (report.backend, report.model, report.endpoint) == ("echo", "echo", "/v1/chat/completions")


async def test_a_lie_breaks_the_rule_it_is_about_and_no_other() -> None:
    """For each rule there is a lie, and an engine that tells it fails that rule alone."""
    found: dict[str, dict[str, str]] = {}

    async def tell(lie: type[Liar]) -> None:
        async with lying(lie) as served:
            found[lie.__doc__ or ""] = broken(await suite.check(served.address, restart=served.restart))

    async with asyncio.TaskGroup() as group:
        for lie in engine_lies.LIES:
            group.create_task(tell(lie))
    assert {name: list(seen) for name, seen in found.items()} == {name: [name] for name in map(rule.name, suite.RULES)}, found


class Silent(Liar):
    """Describes itself, and then says nothing."""

    async def Run(self, requests: AsyncIterator[pb.RunRequest], context: Any) -> AsyncIterator[pb.RunResponse]:
        """Wait for ever."""
        await asyncio.Event().wait()
        yield pb.RunResponse()


async def test_a_silent_engine_fails_in_bounded_time() -> None:
    """An engine that says nothing breaks every rule about streams, and the check ends in its time."""
    began = time.monotonic()
    async with lying(Silent) as served:
        report = await suite.check(served.address, seconds=2)
    assert time.monotonic() - began < 10
    assert {one.rule for one in report.rules if one.outcome == "pass"} == {"describe", "fields", "health"}
    assert len(broken(report)) == len(suite.RULES) - 4  # nobody restarts it


async def test_a_broken_rule_is_told_to_people_and_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """A line, or one JSON object, says what was expected and what was seen; the exit status is 1."""
    async with lying(engine_lies.Generous) as served:
        assert await asyncio.to_thread(command, served.address, "", 60.0, False) == 1
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("fail"))
        assert await asyncio.to_thread(command, served.address, "echo", 60.0, True) == 1
    report = json.loads(next(line for line in capsys.readouterr().out.splitlines() if line.startswith("{")))
    assert line.startswith("fail  usage           Results count tokens: ")
    assert "expected the body's tokens (2, 2) in the result; seen (3, 2)" in line
    assert report["passed"] is False
    assert [(one["rule"], one["seen"]) for one in report["rules"] if one["outcome"] == "fail"] == [("usage", "(3, 2)")]


async def test_nobody_at_the_address_and_no_such_model_are_one_line(tmp_path: Any) -> None:
    """What can't be checked at all is an error, not a list of failures."""
    with pytest.raises(errors.Unavailable, match="Nothing answers at"):
        await suite.check(f"unix:{tmp_path}/nobody.sock", seconds=0.2)
    async with lying(Liar) as served:
        with pytest.raises(errors.SettingsError, match="no model 'other', only echo"):
            await suite.check(served.address, model="other")

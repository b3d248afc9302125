"""`haywain engines check`: what is printed of the rules."""

from __future__ import annotations

import asyncio

import msgspec

from engine.check.restarting import by_command
from engine.check.rule import Outcome
from engine.check.suite import check

__all__ = ["command"]


def command(address: str, model: str, seconds: float, as_json: bool, restart: str = "") -> int:
    """Check and print, a line a rule or one JSON object; the exit status: 1 when a rule is broken.

    `restart` is a command of the shell that restarts the engine.
    """
    again = by_command(restart) if restart else None
    tell = (lambda _: None) if as_json else _print
    report = asyncio.run(check(address, model=model, seconds=seconds, restart=again, tell=tell))
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        passed, failed, unseen = (sum(one.outcome == kind for one in report.rules) for kind in ("pass", "fail", "skip"))
        asked = f"{report.engine_id} ({report.backend}), {report.model} at {report.endpoint}: " if report.engine_id else ""
        print(f"{asked}{passed} passed, {failed} failed, {unseen} couldn't be seen")
    return 0 if report.passed else 1


def _print(one: Outcome) -> None:
    line = f"{one.outcome}  {one.rule:15} {one.title}"
    if one.outcome == "fail":
        line += f": expected {one.expected}; seen {one.seen}"
    elif one.outcome == "skip":
        line += f": can't be seen, {one.seen}"
    print(line, flush=True)

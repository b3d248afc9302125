"""The rules, one after the other, each in its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from engine.check import answering, crediting, describing, refusing, restarting, stopping
from engine.check.rule import Broken, NotSeen, Outcome, Rule, name, title
from engine.check.target import Restart, Target
from haywain import errors, openai, rpc
from haywain.engine.v1 import engine_pb2 as pb
from haywain.engine.v1 import engine_pb2_grpc

__all__ = ["RULES", "SECONDS", "Report", "check"]

RULES: list[Rule] = [
    *describing.RULES, *crediting.RULES, *answering.RULES, *refusing.RULES, *stopping.RULES, *restarting.RULES,
]  # fmt: skip
SECONDS = 60.0
_RULE_PART, _PATIENCE_PART, _RESTART_PART = 1 / 5, 1 / 8, 1 / 2
"""of the whole time: what one rule may take at most, what one answer may, and what a restart may"""
_CONNECT_SECONDS = 5.0


class Report(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    address: str
    engine_id: str
    backend: str
    model: str
    endpoint: str
    passed: bool
    rules: list[Outcome]


async def check(
    address: str,
    *,
    model: str = "",
    seconds: float = SECONDS,
    restart: Restart | None = None,
    tell: Callable[[Outcome], None] = lambda _: None,
) -> Report:
    """Check the engine at a gRPC target, in about `seconds` at most, an eighth of that for any answer.

    `restart` restarts the engine, once, at the end. `tell` gets each outcome as it is known. Raises Unavailable when nothing
    listens there, SettingsError when the engine has no such model.
    """
    until = time.monotonic() + seconds
    async with rpc.channel(address) as channel:
        try:
            await asyncio.wait_for(channel.channel_ready(), min(_CONNECT_SECONDS, seconds))
        except TimeoutError:
            raise errors.Unavailable(f"Nothing answers at {address}.") from None
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        try:
            engine = await describing.described(stub, seconds * _PATIENCE_PART)
            target = _target(channel, stub, engine, model, seconds * _PATIENCE_PART)
            target.restart = restart
        except Broken as broken:
            first = Outcome(name(RULES[0]), title(RULES[0]), "fail", 0.0, broken.expected, broken.seen)
            rest = [Outcome(name(one), title(one), "fail", 0.0, "a description", "none") for one in RULES[1:]]
            for outcome in (first, *rest):
                tell(outcome)
            return Report(address, "", "", model, "", False, [first, *rest])
        outcomes = []
        for rule in RULES:
            part = _RESTART_PART if rule in restarting.RULES else _RULE_PART
            outcome = await _follow(rule, target, min(seconds * part, until - time.monotonic()))
            outcomes.append(outcome)
            tell(outcome)
    passed = all(outcome.outcome != "fail" for outcome in outcomes)
    return Report(address, engine.engine_id, engine.backend, target.model.model, target.endpoint, passed, outcomes)


def _target(channel: Any, stub: Any, engine: pb.Engine, model: str, patience: float) -> Target:
    """Choose what is asked: the model named, or the first one; chat where it has it."""
    if not engine.models:
        raise Broken("at least one model", "none")
    names = [one.model for one in engine.models]
    if model and model not in names:
        raise errors.SettingsError(f"the engine has no model {model!r}, only {', '.join(names)}")
    chosen = engine.models[names.index(model) if model else 0]
    endpoint = next((one for one in openai.ENDPOINTS if one in chosen.endpoints), "")
    if not endpoint:
        raise Broken(f"one of {', '.join(openai.ENDPOINTS)} at {chosen.model!r}", ", ".join(chosen.endpoints) or "none")
    return Target(channel, stub, engine, chosen, endpoint, patience)


async def _follow(rule: Rule, target: Target, seconds: float) -> Outcome:
    began = time.monotonic()

    def ended(outcome: Any, expected: str = "", seen: str = "") -> Outcome:
        return Outcome(name(rule), title(rule), outcome, round(time.monotonic() - began, 3), expected, seen)

    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await rule(target)
    except Broken as broken:
        return ended("fail", broken.expected, broken.seen)
    except NotSeen as reason:
        return ended("skip", seen=str(reason))
    except TimeoutError:
        return ended("fail", "an end in time", f"none within {seconds:.1f} s" if seconds > 0 else "no time was left for it")
    except errors.HaywainError as error:
        return ended("fail", "an answer", error.message)
    return ended("pass")

"""Rules: what an engine says of itself."""

from __future__ import annotations

import itertools
import re
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine.check.rule import Broken, NotSeen, Rule, expect
from engine.check.target import CHAT, COMPLETIONS, EMBEDDINGS, Target
from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["RULES", "described"]

_NEEDED = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}


async def describe(target: Target) -> None:
    """DescribeEngine names the engine, its incarnation, slots, models and their endpoints, the same each time."""
    engine = target.engine
    for member in ("engine_id", "incarnation", "backend"):
        expect(getattr(engine, member), f"a {member}", "none")
    expect(engine.slots > 0, "slots above 0", engine.slots)
    names = [name for model in engine.models for name in (model.model, *model.aliases)]
    expect(all(names), "a name for each model", names)
    expect(len(names) == len(set(names)), "each name once, of models and aliases", names)
    for model in engine.models:
        endpoints = list(model.endpoints)
        expect(endpoints and all(one.startswith("/v1/") for one in endpoints), f"endpoints of {model.model!r}: /v1/…", endpoints)
    again = await rpc.call(target.stub.DescribeEngine, pb.DescribeEngineRequest(), timeout=target.patience, wait=False)
    same = (again.engine.engine_id, again.engine.incarnation) == (engine.engine_id, engine.incarnation)
    expect(same, "the same id and incarnation when asked again", f"{again.engine.engine_id} {again.engine.incarnation}")


async def fields(target: Target) -> None:
    """A model's fields are names, sorted, each once, and hold what its endpoints need."""
    if not any(model.fields for model in target.engine.models):
        raise NotSeen("no fields are listed: all are honoured")
    for model in target.engine.models:
        listed = list(model.fields)
        if not listed:
            continue
        strange = [field for field in listed if not re.fullmatch(r"[a-z][a-z0-9_]*", field)]
        expect(not strange, "names of members of a body", strange)
        wrong = next((f"{two!r} behind {one!r}" for one, two in itertools.pairwise(listed) if one >= two), "")
        expect(not wrong, f"fields of {model.model!r} sorted, each once", wrong)
        needed = {"model", *(_NEEDED[endpoint] for endpoint in model.endpoints if endpoint in _NEEDED)}
        expect(needed <= set(listed), f"fields of {model.model!r} with {', '.join(sorted(needed))}", ", ".join(listed))


async def health(target: Target) -> None:
    """grpc.health.v1 says SERVING."""
    stub: Any = health_pb2_grpc.HealthStub(target.channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=target.patience)
    except grpc.aio.AioRpcError as error:
        raise Broken("SERVING", f"{error.code().name} {error.details()}") from None
    expect(answer.status == health_pb2.HealthCheckResponse.SERVING, "SERVING", _status_name(answer.status))


def _status_name(status: Any) -> str:
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


async def described(stub: Any, seconds: float) -> pb.Engine:
    """Ask the engine what it is. Raises Broken."""
    try:
        answer = await rpc.call(stub.DescribeEngine, pb.DescribeEngineRequest(), timeout=seconds, wait=False)
    except errors.HaywainError as error:
        raise Broken("an answer to DescribeEngine", error.message) from None
    engine: pb.Engine = answer.engine
    return engine


RULES: list[Rule] = [describe, fields, health]

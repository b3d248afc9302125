"""Rules: what can't be run is a result that says why, and the stream goes on."""

from __future__ import annotations

import json

from engine.check.rule import Broken, NotSeen, Rule, expect
from engine.check.target import Target
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["RULES"]

_FIELD = "haywain_check_unknown"


async def unknown_model(target: Target) -> None:
    """A model that isn't served is 404 model_not_found."""
    result = await _refused(target, target.short(model="haywain/no-such-model"))
    _says(result, 404, "model_not_found")


async def wrong_endpoint(target: Target) -> None:
    """An endpoint that the model doesn't serve is 400 or 404, with a code."""
    result = await _refused(target, target.short(endpoint="/v1/no-such-endpoint"))
    expect(result.status_code in (400, 404), "status 400 or 404", result.status_code)


async def malformed_json(target: Target) -> None:
    """A body that is no JSON is 400, with a code."""
    result = await _refused(target, target.short(body=b'{"model": "'))
    expect(result.status_code == 400, "status 400", result.status_code)


async def unknown_field(target: Target) -> None:
    """A field that isn't listed is refused, 400, by its name."""
    if not target.model.fields:
        raise NotSeen("no fields are listed: all are honoured")
    result = await _refused(target, target.short(more={_FIELD: 1}))
    expect(result.status_code == 400, "status 400", result.status_code)
    named = result.error.param == _FIELD or _FIELD in result.error.message
    expect(named, f"{_FIELD!r} in the error", f"{result.error.param!r}, {result.error.message!r}")


async def _refused(target: Target, bad: pb.Sequence) -> pb.SequenceResult:
    """Send a bad sequence and a good one behind it; give the bad one's result, an error in every respect."""
    async with target.calling() as caller:
        result, good = await caller.run(bad, target.short())
        await caller.close()
    seen = f"{result.status_code} {result.error.code!r}, {'' if result.retryable else 'not '}retryable"
    expect(400 <= result.status_code < 500 and not result.retryable, "status 4xx, not retryable", seen)
    expect(result.error.code and result.error.message, "an error with code and message", seen)
    try:
        told = json.loads(result.body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        raise Broken('a body {"error":{"message":…}}', result.body[:100].decode("utf-8", "replace")) from None
    expect(told, "a message in the body", repr(told))
    expect(good.status_code == 200, "200 for the good sequence behind it", f"{good.status_code} {good.error.message}")
    return result


def _says(result: pb.SequenceResult, status: int, code: str) -> None:
    seen = f"{result.status_code} {result.error.code}"
    expect((result.status_code, result.error.code) == (status, code), f"{status} {code}", seen)


RULES: list[Rule] = [unknown_model, wrong_endpoint, malformed_json, unknown_field]

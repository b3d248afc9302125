"""Rules: cancels, deadlines, and streams that break."""

from __future__ import annotations

import asyncio

from engine.check.caller import Caller
from engine.check.rule import Rule, expect
from engine.check.target import MOST_SEQUENCES, Target
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["RULES"]

_MOMENT_SECONDS = 0.15
_SOON_SECONDS = 0.3
_LATE_SECONDS = 1.0
"""after a cancel or a deadline, a good answer that comes so late was worked on in spite of it"""


async def cancel(target: Target) -> None:
    """A cancelled sequence ends soon with 499 cancelled, not retryable; one that had ended before has its answer."""
    long = target.long("cancel")
    async with target.calling() as caller:
        await caller.start(long)
        await caller.quiet(_MOMENT_SECONDS)
        asked = _now()
        await caller.cancel(long.sequence_id)
        (result,) = await caller.ended(long.sequence_id)
        _stopped(caller, result, asked, "cancel", (499, "cancelled"))
        await caller.close()


async def cancel_unknown(target: Target) -> None:
    """Cancels of unknown ids, and of sequences that ended, are ignored: no result, no broken stream."""
    first, second = target.short(), target.short()
    async with target.calling() as caller:
        await caller.run(first)
        await caller.cancel(first.sequence_id, 2**63 + 1)
        (result,) = await caller.run(second)
        await caller.close()
        ids = sorted(one.sequence_id for one in caller.came if isinstance(one, pb.SequenceResult))
        strange = [one for one in ids if one not in (first.sequence_id, second.sequence_id)]
    expect(not strange, "no result for an unknown id", strange)
    expect(result.status_code == 200, "200 for the next sequence", f"{result.status_code} {result.error.message}")


async def deadline(target: Target) -> None:
    """A sequence past its deadline ends with 504 row_timeout, not retryable, whether it runs or came too late."""
    past, soon = target.short(seconds=-3_600), target.long("deadline", seconds=_SOON_SECONDS)
    async with target.calling() as caller:
        sent = _now()
        await caller.start(past, soon)
        late, result = await caller.ended(past.sequence_id, soon.sequence_id)
        seen = f"{late.status_code} {late.error.code}"
        expect(seen == "504 row_timeout" and not late.retryable, "504 row_timeout, not retryable, of one that came too late", seen)
        _stopped(caller, result, sent + _SOON_SECONDS, "deadline", (504, "row_timeout"))
        await caller.close()


def _stopped(caller: Caller, result: pb.SequenceResult, at: float, what: str, wanted: tuple[int, str]) -> None:
    late = caller.times[result.sequence_id] - at
    if result.status_code == 200 and late < _LATE_SECONDS:
        return
    seen = f"{result.status_code} {result.error.code} {late:.1f} s after it, {'' if result.retryable else 'not '}retryable"
    right = (result.status_code, result.error.code) == wanted and not result.retryable
    expect(right, f"{wanted[0]} {wanted[1]} soon after the {what}, not retryable", seen)


async def streams_apart(target: Target) -> None:
    """Ids are a stream's own: two streams may use the same at the same time, and each gets its own answer."""
    async with target.calling() as one, target.calling() as two:
        short = target.short("streams_apart: one")
        wrong = target.short(model="haywain/no-such-model", sequence_id=short.sequence_id)
        (good,), (bad,) = await asyncio.gather(one.run(short), two.run(wrong))
        seen = f"{good.status_code} and {bad.status_code}"
        expect(good.status_code == 200 and bad.status_code != 200, "200 on one stream, 404 on the other", seen)
        await one.close()
        await two.close()


async def broken_stream(target: Target) -> None:
    """When a stream breaks, all of its sequences stop, and the next stream is served."""
    async with target.calling() as broken:
        await broken.until(lambda: broken.credits, "credits")
        count = min(target.engine.slots, broken.credits, MOST_SEQUENCES)
        await broken.start(*(target.long("broken_stream") for _ in range(count)))
        await broken.quiet(_MOMENT_SECONDS)
    async with target.calling() as caller:
        await caller.until(lambda: caller.credits, "credits on the next stream")
        (result,) = await caller.run(target.short())
        expect(result.status_code == 200, "200 on the next stream", f"{result.status_code} {result.error.message}")
        await caller.close()


def _now() -> float:
    return asyncio.get_running_loop().time()


RULES: list[Rule] = [cancel, cancel_unknown, deadline, streams_apart, broken_stream]

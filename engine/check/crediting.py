"""Rules: credits and lanes."""

from __future__ import annotations

from engine.check.rule import NotSeen, Rule, expect
from engine.check.target import MOST_SEQUENCES, Target
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["RULES"]

_SURPLUS = 4
_MOMENT_SECONDS = 0.15
_BUSY = (429, 503)


async def credits_first(target: Target) -> None:
    """The first message of a stream grants credits, and holds nothing else."""
    async with target.calling() as caller:
        await caller.until(lambda: caller.first is not None, "credits, before anything was sent")
        first = caller.first or pb.RunResponse()
        expect(first.credits > 0, "credits above 0 in the first message", first.credits)
        expect(not first.results and not first.deltas, "credits alone in the first message", "results or deltas")
        await caller.close()


async def credits_return(target: Target) -> None:
    """A credit comes back for each sequence that ended."""
    async with target.calling() as caller:
        await caller.until(lambda: caller.credits, "credits")
        before = caller.credits
        count = min(before, 2)
        await caller.run(*(target.short() for _ in range(count)))
        await caller.until(lambda: caller.credits >= before + count, f"{count} credits back for {count} results")
        await caller.close()


async def overload(target: Target) -> None:
    """Sequences without credit are refused at once, 429 or 503 and retryable, and cost no credit."""
    async with target.calling() as caller:
        await caller.until(lambda: caller.credits, "credits")
        granted = caller.credits
        if granted > MOST_SEQUENCES:
            raise NotSeen(f"{granted} credits are more than this check uses up ({MOST_SEQUENCES})")
        taken = [target.long("overload") for _ in range(granted)]
        await caller.start(*taken)
        await caller.quiet(_MOMENT_SECONDS)
        if caller.results or caller.credits > granted:
            raise NotSeen("the engine is too fast to be kept busy")
        surplus = [target.short() for _ in range(_SURPLUS)]
        await caller.hurl(surplus)
        refused = await caller.ended(*(one.sequence_id for one in surplus))
        if caller.credits > granted and all(one.status_code == 200 for one in refused):
            raise NotSeen("the engine is too fast to be kept busy")
        for one in refused:
            right = one.status_code in _BUSY and one.retryable and one.error.code
            seen = f"{one.status_code} {one.error.code!r}, {'' if one.retryable else 'not '}retryable"
            expect(right, "429 or 503 with an error code, retryable", seen)
        ids = [one.sequence_id for one in taken]
        await caller.cancel(*ids)
        await caller.ended(*ids)
        await caller.quiet(_MOMENT_SECONDS)
        back = caller.credits - granted
        expect(back == 0 or back >= granted, f"{granted} credits back for {granted} sequences and {_SURPLUS} refused ones", back)
        await caller.close()


async def lanes(target: Target) -> None:
    """Of sequences that wait for a slot, interactive ones go before those of batches."""
    slots = target.engine.slots
    async with target.calling() as caller:
        await caller.until(lambda: caller.credits, "credits")
        waiting = min(4, caller.credits - slots)
        if slots + waiting > MOST_SEQUENCES:
            raise NotSeen(f"{slots} slots are more than this check fills")
        if waiting < 2:
            raise NotSeen(f"{caller.credits} credits don't fill {slots} slots with 2 left that wait")
        fillers = [target.long("lanes") for _ in range(slots)]
        await caller.start(*fillers)
        await caller.quiet(_MOMENT_SECONDS)
        if caller.results:
            raise NotSeen("the engine is too fast for its slots to stay full")
        batch = [target.short(f"Say {number}.") for number in range(1, waiting)]
        urgent = target.short("Say hello.", lane=pb.LANE_INTERACTIVE)
        await caller.hurl([*batch, urgent])
        await caller.quiet(_MOMENT_SECONDS)
        await caller.cancel(fillers[0].sequence_id)
        await caller.ended(urgent.sequence_id, *(one.sequence_id for one in batch))
        at = caller.times[urgent.sequence_id]
        earlier = sum(caller.times[one.sequence_id] < at for one in batch)
        # Beside the slot of the cancelled one, others may have got free by themselves.
        free = sum(caller.times.get(one.sequence_id, at) < at for one in fillers[1:])
        expect(
            earlier <= free, "the interactive sequence's result before those of batches that wait", f"{earlier} of them before it"
        )
        ids = [one.sequence_id for one in fillers]
        await caller.cancel(*ids)
        await caller.ended(*ids)
        await caller.close()


RULES: list[Rule] = [credits_first, credits_return, overload, lanes]

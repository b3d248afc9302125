"""The pool as all schedulers together see it: each knows the same rows that wait, and its own part of what is at engines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from gateway.peers import Peer
from haywain import errors, rpc
from haywain.scheduler.v1 import scheduler_pb2 as pb

__all__ = ["ask_all", "merged"]


async def ask_all(schedulers: Sequence[Peer], within: float) -> pb.GetPoolStatusResponse:
    """Ask every scheduler; those that give no answer are left out. Raises Unavailable when none gives one."""
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(_ask(peer, within)) for peer in schedulers]
    answers = [answer for one in asked if (answer := one.result()) is not None]
    if not answers:
        raise errors.Unavailable(retry_after=1)
    return merged(answers)


async def _ask(peer: Peer, within: float) -> pb.GetPoolStatusResponse | None:
    with contextlib.suppress(errors.HaywainError):
        answer: pb.GetPoolStatusResponse = await rpc.call(peer.stub.GetPoolStatus, pb.GetPoolStatusRequest(), timeout=within)
        return answer
    return None


def merged(answers: Sequence[pb.GetPoolStatusResponse]) -> pb.GetPoolStatusResponse:
    """Put answers together: an engine is as ready as the scheduler says to which it is most."""
    if len(answers) == 1:
        return answers[0]
    engines: dict[str, pb.EngineStatus] = {}
    for status in (status for answer in answers for status in answer.engines):
        known = engines.setdefault(status.engine.engine_id, status)
        if known is not status:
            known.active += status.active
            known.credits += status.credits
            known.ended += status.ended
            known.state = min(known.state, status.state, key=_READINESS.index)
    return pb.GetPoolStatusResponse(
        intake_rows=max(answer.intake_rows for answer in answers),
        intake_capacity=max(answer.intake_capacity for answer in answers),
        slots_active=sum(answer.slots_active for answer in answers),
        slots_capacity=sum(answer.slots_capacity for answer in answers),
        active_batches=max(answer.active_batches for answer in answers),
        engines=[engines[name] for name in sorted(engines)],
    )


_State = pb.EngineStatus.State
_READINESS: list[_State] = [
    pb.EngineStatus.STATE_READY, pb.EngineStatus.STATE_DRAINING, pb.EngineStatus.STATE_QUARANTINED,
    pb.EngineStatus.STATE_CONNECTING, pb.EngineStatus.STATE_LOST, pb.EngineStatus.STATE_UNSPECIFIED,
]  # fmt: skip

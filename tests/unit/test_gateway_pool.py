"""The pool as several schedulers tell it."""

from __future__ import annotations

from gateway.pool import merged
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb


def status(engine_id: str, state: pb.EngineStatus.State, active: int) -> pb.EngineStatus:
    """Make one scheduler's view of an engine."""
    return pb.EngineStatus(engine=engine_pb2.Engine(engine_id=engine_id), state=state, active=active, ended=1)


def test_answers_are_put_together() -> None:
    """Rows that wait are the same for all, what is at engines adds up, and an engine is ready when one can send to it."""
    ready, connecting = pb.EngineStatus.STATE_READY, pb.EngineStatus.STATE_CONNECTING
    one = pb.GetPoolStatusResponse(
        intake_rows=70, intake_capacity=100, slots_active=3, slots_capacity=10, active_batches=2,
        engines=[status("a", connecting, 0), status("b", ready, 3)],
    )  # fmt: skip
    two = pb.GetPoolStatusResponse(
        intake_rows=60, intake_capacity=100, slots_active=4, slots_capacity=10, active_batches=2, engines=[status("a", ready, 4)]
    )
    pool = merged([one, two])
    assert (pool.intake_rows, pool.intake_capacity, pool.slots_active, pool.slots_capacity) == (70, 100, 7, 20)
    assert [(one.engine.engine_id, one.state, one.active, one.ended) for one in pool.engines] == [
        ("a", ready, 4, 2),
        ("b", ready, 3, 1),
    ]

"""Who hears of changes, and when."""

from __future__ import annotations

import asyncio

from scheduler_held import make_held

from haywain.scheduler.v1 import scheduler_pb2 as pb
from services.scheduler.progress import Changes, describe


async def test_an_end_is_told_before_other_changes() -> None:
    """A watcher hears first that it hears; then of any change; soon after that of ends, and later of all else."""
    changes = Changes()
    watching = changes.watch()
    assert await anext(watching) == set()
    changes.add("a")
    assert await anext(watching) == {"a"}
    changes.add("b")
    changes.add("c", urgent=True)
    assert await anext(watching) == {"c"}
    assert await anext(watching) == {"b"}
    await watching.aclose()
    assert not changes._watchers


async def test_what_was_told_is_not_told_again() -> None:
    """A batch that ended is told once, also when nothing else changes: the next news are news."""
    changes = Changes()
    watching = changes.watch()
    await anext(watching)
    changes.add("a", urgent=True)
    assert await anext(watching) == {"a"}
    changes.add("b", urgent=True)
    assert await anext(watching) == {"b"}
    following = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    changes.add("c")
    assert await following == {"c"}
    await watching.aclose()


def test_no_fewer_than_no_rows_run() -> None:
    """Of a batch whose rows were accepted more than once, under leases that were lost, none are said to run, not less than none."""
    batch = make_held(3).batch
    batch.accepted, batch.running = 5, 1
    told = describe(batch, lambda batch: pb.Progress.WAITING_REASON_QUEUED, 1.0)
    assert (told.running, told.queued) == (0, 0)
    assert told.waiting_reason == pb.Progress.WAITING_REASON_UNSPECIFIED

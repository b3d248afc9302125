"""A held shard of a batch in memory, for tests of the scheduler's pure parts."""

from __future__ import annotations

from pathlib import Path
from struct import Struct

from haywain.clock import FakeClock
from services.scheduler.batch import Batch, Held, Submission
from services.scheduler.journal import Journal
from services.scheduler.meter import Meter
from services.scheduler.replay import row_prefix
from services.scheduler.rows import Input, Lines
from services.scheduler.segment import Claimed
from services.scheduler.sharing import Order

__all__ = ["make_held"]

_ENTRY = Struct("<QII")


def make_held(rows: int, *, length: int = 10, recorded: tuple[int, ...] = ()) -> Held:
    """Make a held shard of a batch of its own."""
    submission = Submission(
        batch_id="batch_ab", submit_order=1, tenant="t", endpoint="/v1/chat/completions", lane=3, expire_at=None, input_key="i",
        index_key="x", row_count=rows, body_defaults="", deterministic=False,
    )  # fmt: skip
    marks = bytearray(rows)
    for row in recorded:
        marks[row] = 1
    batch = Batch(
        submission=submission, recorded=marks, input=Input(Path("none")), index=Path("none"),
        lines=Lines(""), prefix=row_prefix("batch_ab"), meter=Meter(FakeClock()),
    )  # fmt: skip
    held = Held(batch, "m", Claimed(0, range(rows), 1), Journal(Path("none"), 0))
    held.load(b"".join(_ENTRY.pack(row * length, length, row + 1) for row in range(rows)), Order(range(rows)))
    batch.held[0] = held
    return held

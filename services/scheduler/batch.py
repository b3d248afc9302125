"""A batch while it runs, in memory: which rows are recorded, which shards are held, what can be sent next.

A row's way:  waiting ──take──▶ in flight ──accept──▶ accepted ──synced──▶ recorded
                 ▲                  │
                 └────give_back─────┘

`accepted` rows have a line on its way to a journal; only `recorded` ones are counted in progress. When a row is recorded the
ledger decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from haywain.engine.v1 import engine_pb2
from services.scheduler.journal import Journal
from services.scheduler.meter import Meter
from services.scheduler.rows import ENTRY_BYTES, Input, Lines, Window, unpack_entry
from services.scheduler.segment import Claimed, Lease, Segment, Tally
from services.scheduler.sharing import Order, Stretch, Stretches

__all__ = ["Attempt", "Batch", "Held", "Key", "Submission", "Tally"]

Key = tuple[str, str, bool, str | None]
"""What an engine is chosen by: model, endpoint, whether it must promise determinism, and the model's digest, None for any."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as SQL has it."""

    batch_id: str
    submit_order: int
    tenant: str
    endpoint: str
    lane: int
    expire_at: float | None
    input_key: str
    index_key: str
    """Blob with the index; empty when `entries` are all of it."""
    row_count: int
    body_defaults: str
    deterministic: bool
    pack: bool = False
    """Whether texts to embed may share a call."""
    rejected_key: str = ""
    """Blob with error lines of lines that are no rows; empty for none."""
    rejected_count: int = 0
    entries: bytes = b""
    stop_reason: int = 0
    start_time: float | None = None
    sealed: str = ""
    recording: str = "journal"
    """Which ledger has its results."""
    changed: int = 0
    """The number of its last change; 0 where nobody else is to see it."""


class Attempt:
    """A row on its way through its tries; one object from the first to the last."""

    __slots__ = ("attempt", "custom_id", "held", "length", "line", "losses", "offset", "pauses", "refusals", "row", "sent_at")

    def __init__(self, held: Held, row: int, offset: int, length: int, line: int) -> None:
        """Offset, length and line number are the row's index entry."""
        self.held = held
        self.row = row
        self.offset = offset
        self.length = length
        self.line = line
        self.custom_id = b""
        self.attempt = 1
        self.losses = self.refusals = self.pauses = 0
        self.sent_at = 0.0


class Held:
    """A shard whose lease is ours: the rows of it that wait."""

    __slots__ = (
        "_index", "_order", "_returned", "_stretches", "batch", "delta", "end", "epoch", "first", "journal", "lost", "model", "seq",
        "sequence", "shard", "unrecorded", "waiting", "window",
    )  # fmt: skip

    def __init__(self, batch: Batch, model: str, claimed: Claimed, journal: Journal) -> None:
        """Rows that the batch says are recorded are skipped; lines of the others go to `journal`."""
        rows = claimed.rows
        self.batch = batch
        self.shard = claimed.shard
        self.model = model
        self.first, self.end = rows.start, rows.stop
        self.epoch = claimed.epoch
        self.journal = journal
        self.seq = 0
        self.delta = Tally()
        """On the disk, but in no segment yet."""
        self.lost = False
        self.unrecorded = self.waiting = batch.recorded.count(0, rows.start, rows.stop)
        """Rows without a line on the disk; rows that can be taken."""
        self._returned: deque[Attempt] = deque()
        self.load(b"", Order(range(len(rows))))
        self.window = Window()
        """Lines read ahead."""
        terms = batch.submission
        self.sequence = engine_pb2.Sequence(
            model=model, endpoint=terms.endpoint, lane=engine_pb2.Lane.Name(terms.lane),
            deterministic=terms.deterministic, pack=terms.pack,
        )  # fmt: skip
        """What all its rows have in common. They have no deadline: a batch that expires is stopped, `batch_expired`."""

    @property
    def key(self) -> Key:
        """What its rows' engines are chosen by, now."""
        return self.batch.key(self.model)

    @property
    def over(self) -> bool:
        """Tell whether nothing of it may run or be recorded any more."""
        return self.lost or self.batch.stop_reason != 0 or self.batch.forgotten

    @property
    def lease(self) -> Lease:
        """What it is fenced by."""
        return self.batch.batch_id, self.shard, self.epoch

    @property
    def has_news(self) -> bool:
        """Tell whether there is something to commit."""
        return not self.lost and (self.delta.rows > 0 or self.unrecorded <= 0)

    def segment(self, start: int) -> Segment:
        """Cut what is on the disk and in no segment yet into one; `start` is where it begins in the journal."""
        batch_id, shard, epoch = self.lease
        tally, self.delta = self.delta, Tally()
        self.seq += 1
        return Segment(
            batch_id=batch_id, shard=shard, epoch=epoch, seq=self.seq - 1, object=self.journal.path.name,
            start_byte=start, end_byte=self.journal.end, tally=tally, done=self.unrecorded <= 0,
        )  # fmt: skip

    def let_go(self) -> None:
        """Close the journal, if no other shard's results go there."""
        if self.journal is not self.batch.journal:
            self.journal.rest()

    def load(self, index: bytes, order: Order) -> None:
        """Give it its part of the batch's index, and the order in which its rows are sent."""
        self._index, self._order, self._stretches = index, order.rows, Stretches(order)

    def take(self, most: int, room: int, engine: str = "") -> list[Attempt]:
        """Take at most `most` rows whose lines fit `room` bytes; one at least, however long, when any waits.

        They are those that come next for an engine; for engines of no name, in the order.
        """
        taken: list[Attempt] = []
        while self._returned and len(taken) < most and (room > 0 or not taken):
            taken.append(self._returned.popleft())
            room -= taken[-1].length
        while len(taken) < most and (room > 0 or not taken) and (stretch := self._stretches.of(engine)) is not None:
            room = self._take_along(stretch, taken, most, room)
        self.waiting = self.waiting - len(taken) if self._stretches else len(self._returned)
        return taken

    def _take_along(self, stretch: Stretch, taken: list[Attempt], most: int, room: int) -> int:
        """Take rows from a stretch; gives the room that is left, none when the next one doesn't fit."""
        recorded, index, order, first, at = self.batch.recorded, self._index, self._order, self.first, stretch.at
        while at < stretch.end and len(taken) < most and (room > 0 or not taken):
            place = order[at]
            if not recorded[first + place]:
                offset, length, line = unpack_entry(index, place * ENTRY_BYTES)
                if taken and length > room:
                    room = 0
                    break
                room -= length
                taken.append(Attempt(self, first + place, offset, length, line))
            at += 1
        stretch.at = at
        return room

    def give_back(self, attempts: Iterable[Attempt]) -> None:
        """Put rows back in front, to be taken again."""
        back = list(attempts)
        self._returned.extendleft(reversed(back))
        self.waiting += len(back)


@dataclass(slots=True, eq=False)
class Batch:
    """A batch that is not sealed yet."""

    submission: Submission
    recorded: bytearray
    """By row: 0 waits or runs, 1 completed, 2 failed (both from the moment it is accepted)."""
    input: Input
    index: Path | bytes
    """Where its index is, or all of it."""
    lines: Lines
    prefix: bytes
    """What its result lines begin with."""
    meter: Meter
    journal: Journal | None = None
    """Its own, where all its results go to one."""
    tally: Tally = field(default_factory=Tally)
    """Recorded rows."""
    accepted: int = 0
    running: int = 0
    stop_reason: int = 0
    forgotten: bool = False
    """SQL has nothing of it any more."""
    order: int = 0
    """Its place in the dispatcher, never another's: those in SQL are given out again."""
    start_time: float | None = None
    held: dict[int, Held] = field(default_factory=dict)
    queued_shards: dict[str, int] = field(default_factory=dict)
    """By model: shards that are neither held here nor done."""
    claiming: set[str] = field(default_factory=set)
    """Models for which a claim is under way."""
    models: tuple[int, ...] = (0,)
    """The first row of each model's."""
    shard_rows: int = 1
    """Rows of its largest shard."""
    elsewhere: int = 0
    """Shards that another scheduler works on, as far as is known here."""
    elsewhere_until: float = 0.0
    """When the first of their leases ends, unless it is renewed; Unix seconds."""
    pins: dict[str, str] = field(default_factory=dict)
    """By model: the digest that its rows keep to."""
    changed: int = 0
    """The last change in SQL that is known here."""

    @property
    def batch_id(self) -> str:
        """Its id."""
        return self.submission.batch_id

    @property
    def ended(self) -> bool:
        """Tell whether it can be sealed."""
        return self.stop_reason != 0 or self.tally.rows >= self.submission.row_count

    @property
    def open_models(self) -> set[str]:
        """Tell of which models rows are left."""
        return {held.model for held in self.held.values() if held.unrecorded} | {
            model for model, shards in self.queued_shards.items() if shards
        }

    def key(self, model: str) -> Key:
        """Tell what engines of one of its models are chosen by."""
        return model, self.submission.endpoint, self.submission.deterministic, self.pins.get(model)

    def count(self, tally: Tally) -> None:
        """Count rows that are recorded by now."""
        self.tally.add(tally)
        self.meter.add(tally.rows, tally.output_tokens)

    def ready(self, model: str) -> int:
        """Count the rows of a model that can be sent at once."""
        return sum(held.waiting for held in self.held.values() if held.model == model)

    def take(self, model: str, most: int, room: int, engine: str = "") -> list[Attempt]:
        """Take rows of a model from one held shard: at most `most`, of `room` bytes in all, those that come next for an engine."""
        for held in self.held.values():
            if held.waiting and held.model == model:
                return held.take(most, room, engine)
        return []

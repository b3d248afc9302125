"""A model of the lease protocol, small enough to be explored whole: every order of every step of two schedulers, faults included.

Each transition is one statement of sql/queries.sql, or one thing that a scheduler does on its own, and they come in any order.
There is no clock: a lease that may have expired is one that anybody may claim, while its holder goes on as if nothing was. So
either of the two is a zombie whenever that can hurt. What a scheduler knows may be old; only SQL is the truth.

    claim ──▶ read ──▶ write* ──▶ commit ──▶ … ──▶ commit, done          take turn ──▶ read ──▶ seal
      ▲                 │ expire, claimed by the other: fenced              ▲             │ expired, taken by the other: fenced
      └─────────────────┘                                                   └─────────────┘

A fault is a lease or a turn that ends while its holder works on, a crash, or a commit whose answer is lost. `Rules` takes a piece
of the protocol away, to see that it is needed. lease_explorer.py goes through it all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["STATEMENTS", "Rows", "Rules", "Scheduler", "Shard", "State", "Step", "steps", "union"]

Rows = int
"""A set of rows, a bit each."""

STATEMENTS = {
    "claim": "claim_shards", "read": "list_shard_segments", "renew": "renew_shard", "commit": "commit_fenced_segment",
    "done": "finish_shard", "stop": "stop_submission", "take turn": "take_turn", "read all": "list_segments",
    "seal": "seal_in_turn",
}  # fmt: skip
"""What in SQL each transition is. `split` is in none yet: every engine has a stream to every scheduler, so nobody needs it."""


@dataclass(frozen=True)
class Rules:
    """The pieces of the protocol that can be taken away."""

    fenced: bool = True
    """A commit names the epoch of its lease."""
    stop_fenced: bool = True
    """A commit is refused once the batch is stopped."""
    keyed: bool = True
    """A commit that is repeated, because its answer was lost, finds itself there."""
    turn_fenced: bool = True
    """What is sealed names its turn."""
    claims_first: bool = True
    """What earlier owners committed is read after the claim, not before."""
    split_fenced: bool = True
    """A split names the epoch of its lease."""


class Shard(NamedTuple):
    """A row of `shards`; `state`: 0 queued, 1 leased, 2 done."""

    rows: Rows
    epoch: int = 0
    state: int = 0
    expired: bool = False


class Segment(NamedTuple):
    """A row of `segments`."""

    shard: int
    epoch: int
    seq: int
    rows: Rows


class Held(NamedTuple):
    """A lease as its holder knows it."""

    shard: int
    epoch: int
    rows: Rows
    recorded: Rows
    """-1 before they were read."""
    synced: Rows = 0
    """On the disk, in no segment."""
    seq: int = 0
    asked: bool = False
    """A commit of them had no answer."""


class Scheduler(NamedTuple):
    """What a scheduler has in memory."""

    held: tuple[Held, ...] = ()
    turn: int = 0
    results: Rows = -1
    """What it read to seal; -1 before."""
    peeked: tuple[tuple[int, Rows], ...] = ()
    """Only where the rules are broken: what it read of shards before it claimed them."""


class State(NamedTuple):
    """Everything."""

    shards: tuple[Shard, ...]
    schedulers: tuple[Scheduler, ...]
    faults: int
    """How many may yet happen."""
    segments: tuple[Segment, ...] = ()
    extra: int = 0
    """Rows in commits that were repeated and counted twice."""
    stopped: bool = False
    turn: int = 0
    turn_free: bool = True
    sealed: Rows | None = None
    seals: int = 0

    @property
    def recorded(self) -> Rows:
        """Give the rows with a committed line."""
        return union(segment.rows for segment in self.segments)

    @property
    def ended(self) -> bool:
        """Tell whether it can be sealed."""
        return self.stopped or all(shard.state == 2 for shard in self.shards)


Step = tuple[str, State]
"""What happens, and what comes of it."""


# -- the transitions ----------------------------------------------------------------------------------------------------------


def steps(state: State, rules: Rules) -> Iterator[Step]:
    """Yield everything that can happen next."""
    if not state.stopped and state.sealed is None:
        yield "stop", state._replace(stopped=True)
    for at, shard in enumerate(state.shards):
        yield from _expire(state, at, shard)
    if not state.turn_free:
        known = any(one.turn == state.turn for one in state.schedulers)
        if state.faults or not known:
            yield "turn expires", state._replace(turn_free=True, faults=state.faults - known)
    for who, mine in enumerate(state.schedulers):
        if state.faults and mine != Scheduler():
            yield f"{who} crashes", _set(state, who, Scheduler())._replace(faults=state.faults - 1)
        for at, shard in enumerate(state.shards):
            yield from _claim(state, rules, who, at, shard)
        for held in mine.held:
            yield from _work(state, rules, who, held)
        yield from _seal(state, rules, who)


def _expire(state: State, at: int, shard: Shard) -> Iterator[Step]:
    """Time goes by. A lease that its holder has forgotten does expire; one that it keeps may, which counts as a fault."""
    if shard.state == 1 and not shard.expired:
        known = any(held[:2] == (at, shard.epoch) for one in state.schedulers for held in one.held)
        if state.faults or not known:
            new = _set_shard(state, at, shard._replace(expired=True))
            yield f"lease of {at} expires", new._replace(faults=state.faults - known)


def _claim(state: State, rules: Rules, who: int, at: int, shard: Shard) -> Iterator[Step]:
    mine = state.schedulers[who]
    if shard.state == 2 or (shard.state == 1 and not shard.expired) or state.stopped:  # after a stop it would lead to nothing
        return
    peeked = dict(mine.peeked)
    if not rules.claims_first and peeked.get(at) is None:
        recorded = _recorded_of(state, at)
        yield f"{who} reads {at}", _set(state, who, mine._replace(peeked=tuple(sorted({**peeked, at: recorded}.items()))))
        return
    new = Held(at, shard.epoch + 1, shard.rows, peeked.pop(at, -1))
    others = tuple(held for held in mine.held if held.shard != at)
    mine = mine._replace(held=tuple(sorted((*others, new))), peeked=tuple(sorted(peeked.items())))
    claimed = Shard(shard.rows, shard.epoch + 1, 1)
    yield f"{who} claims {at}", _set(_set_shard(state, at, claimed), who, mine)


def _work(state: State, rules: Rules, who: int, held: Held) -> Iterator[Step]:
    at, shard = held.shard, state.shards[held.shard]
    owns = shard.epoch == held.epoch and shard.state == 1
    if held.recorded < 0:
        yield f"{who} reads {at}", _keep(state, who, held, held._replace(recorded=_recorded_of(state, at)))
        return
    left = held.rows & ~held.recorded & ~held.synced
    if not held.asked:
        for row in _bits(left):
            yield f"{who} writes row {row.bit_length() - 1}", _keep(state, who, held, held._replace(synced=held.synced | row))
    if shard.expired or not owns:
        renewed = _set_shard(state, at, shard._replace(expired=False)) if owns else _keep(state, who, held, None)
        yield f"{who} renews {at}", renewed
    if held.synced:
        yield from _commit(state, rules, who, held)
    if left.bit_count() > 1 and not held.asked:
        row = _bits(left)[-1]
        if owns or not rules.split_fenced:
            shrunk = _set_shard(state, at, shard._replace(rows=shard.rows & ~row))
            split = shrunk._replace(shards=(*shrunk.shards, Shard(row)))
            yield f"{who} splits {at}", _keep(split, who, held, held._replace(rows=held.rows & ~row))


def _commit(state: State, rules: Rules, who: int, held: Held) -> Iterator[Step]:
    at, shard = held.shard, state.shards[held.shard]
    segment = Segment(at, held.epoch, held.seq, held.synced)
    there = segment in state.segments
    fenced = rules.fenced and (shard.epoch != held.epoch or shard.state != 1)
    if fenced or (rules.stop_fenced and state.stopped) or (there and rules.keyed):
        yield f"{who} commits {at} in vain", _keep(state, who, held, None)  # it counts as lost
        return
    recorded = held.recorded | held.synced
    done = not held.rows & ~recorded
    segments = tuple(sorted({*state.segments, segment}))
    new = state._replace(segments=segments, extra=state.extra + there * held.synced.bit_count())
    if done and shard.epoch == held.epoch:
        new = _set_shard(new, at, shard._replace(state=2, expired=False))
    following = None if done else held._replace(recorded=recorded, synced=0, seq=held.seq + 1, asked=False)
    yield f"{who} commits {at}", _keep(new, who, held, following)
    if state.faults and not held.asked:
        yield f"{who} commits {at}, no answer", _keep(new, who, held, held._replace(asked=True))._replace(faults=state.faults - 1)


def _seal(state: State, rules: Rules, who: int) -> Iterator[Step]:
    mine = state.schedulers[who]
    if state.ended and state.turn_free and state.sealed is None and not mine.turn:
        new = state._replace(turn=state.turn + 1, turn_free=False)
        yield f"{who} takes the turn", _set(new, who, mine._replace(turn=state.turn + 1))
    if mine.turn and mine.results < 0:
        yield f"{who} reads all", _set(state, who, mine._replace(results=state.recorded))
    if mine.results >= 0:
        new = _set(state, who, mine._replace(turn=0, results=-1))
        if mine.turn == state.turn or not rules.turn_fenced:
            new = new._replace(sealed=mine.results, seals=state.seals + 1, turn_free=True)
        yield f"{who} seals", new


def union(some: Iterable[Rows]) -> Rows:
    """Put sets together."""
    found = 0
    for rows in some:
        found |= rows
    return found


def _recorded_of(state: State, at: int) -> Rows:
    return union(segment.rows for segment in state.segments if segment.shard == at)


def _bits(rows: Rows) -> list[Rows]:
    return [1 << at for at in range(rows.bit_length()) if rows >> at & 1]


def _set_shard(state: State, at: int, shard: Shard) -> State:
    return state._replace(shards=(*state.shards[:at], shard, *state.shards[at + 1 :]))


def _set(state: State, who: int, scheduler: Scheduler) -> State:
    return state._replace(schedulers=(*state.schedulers[:who], scheduler, *state.schedulers[who + 1 :]))


def _keep(state: State, who: int, held: Held, following: Held | None) -> State:
    mine = state.schedulers[who]
    kept = [one for one in mine.held if one != held] + ([following] if following is not None else [])
    return _set(state, who, mine._replace(held=tuple(sorted(kept))))

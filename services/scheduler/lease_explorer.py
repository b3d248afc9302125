"""Every state of the lease model, breadth-first, and the invariants that hold in all of them.

No row is recorded twice; no recorded row is lost; a batch is sealed once, with all rows that are recorded, and these are all rows
unless it was stopped; and from everywhere there is a way to the sealed batch.
"""

from __future__ import annotations

from typing import NamedTuple

from services.scheduler.lease_model import Rows, Rules, Scheduler, Shard, State, steps, union

__all__ = ["Broken", "Explored", "explore"]


class Broken(Exception):
    """An invariant doesn't hold; the message says which, and how it came to that."""


class Explored(NamedTuple):
    """What was seen."""

    states: int
    transitions: int
    sealed: int
    """States in which the batch is sealed."""


def explore(rules: Rules, shards: tuple[Rows, ...], faults: int) -> Explored:
    """Go through all states of a batch with these shards and so many faults at most. Raises Broken."""
    start = State(tuple(map(Shard, shards)), (Scheduler(), Scheduler()), faults)
    everything = union(shards)
    came: dict[State, tuple[str, State] | None] = {start: None}
    ways: dict[State, list[State]] = {}
    layer, transitions = [start], 0
    while layer:
        following = []
        for state in layer:
            ways[state] = mine = []
            for label, reached in steps(state, rules):
                transitions += 1
                if (wrong := _wrong(everything, state, reached)) is not None:
                    raise Broken(f"{wrong}: {' · '.join([*_way(came, state), label])}")
                new = _mirrored(reached)
                mine.append(new)
                if new not in came:
                    came[new] = (label, state)
                    following.append(new)
        layer = following
    sealed = [state for state in came if state.sealed is not None]
    if stuck := came.keys() - _leading_to(sealed, ways):
        raise Broken(f"the batch can't be sealed any more: {' · '.join(_way(came, next(iter(stuck))))}")
    return Explored(len(came), transitions, len(sealed))


def _mirrored(state: State) -> State:
    """Give the one of a state and its mirror image that stands for both: it doesn't matter which scheduler is which."""
    one, two = state.schedulers
    return state if one <= two else state._replace(schedulers=(two, one))


def _wrong(everything: Rows, before: State, after: State) -> str | None:
    """Say which invariant a step breaks; `everything` are the batch's rows."""
    recorded = after.recorded
    if sum(segment.rows.bit_count() for segment in after.segments) + after.extra != recorded.bit_count():
        return "a row is recorded twice"
    if before.recorded & ~recorded or union(shard.rows for shard in after.shards) != everything:
        return "a recorded row is lost"
    if after.sealed is not None and after.seals > 1:
        return "the batch is sealed twice"
    if after.sealed is not None and after.sealed != recorded:
        return "what is sealed is not what is recorded"
    if after.sealed is not None and not after.stopped and after.sealed != everything:
        return "rows are missing in what is sealed"
    return None


def _way(came: dict[State, tuple[str, State] | None], state: State) -> list[str]:
    way = []
    while (step := came[state]) is not None:
        label, state = step
        way.append(label)
    return way[::-1]


def _leading_to(ends: list[State], ways: dict[State, list[State]]) -> set[State]:
    back: dict[State, list[State]] = {}
    for state, following in ways.items():
        for new in following:
            back.setdefault(new, []).append(state)
    found, look = set(ends), list(ends)
    while look:
        for state in back.get(look.pop(), ()):
            if state not in found:
                found.add(state)
                look.append(state)
    return found

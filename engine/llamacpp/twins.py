"""Runs that must say the same are run once: the others wait for that one and are told what it said.

Greedy runs with the same prompt and limits are twins. The first is given to the pool; later ones follow it, unless they are more
urgent or want to see it grow. A follower's prompt counts as cached, since it evaluates nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from engine.llamacpp.messages import Begin, Delta, Ended
from engine.llamacpp.pool import Listener

__all__ = ["Twins"]

Key = tuple[bytes, int, tuple[bytes, ...], bytes, str, bool, bool, int, tuple[int, ...], bytes]


class Runner(Protocol):
    """What runs runs: a pool."""

    def submit(self, begins: Iterable[Begin]) -> None:
        """Take runs; never blocks."""

    def cancel(self, runs: Iterable[int]) -> None:
        """Stop runs; each is told as ended, unless it was already."""


class _Group:
    """A run and those who follow it."""

    __slots__ = ("followers", "key", "lane", "wanted")

    def __init__(self, key: Key, lane: int) -> None:
        self.key = key
        self.lane = lane
        self.followers: dict[int, int] = {}
        """with the tokens of their prompts"""
        self.wanted = True
        """whether somebody waits for the run itself"""


class Twins:
    """Between a backend and its pool. A `Listener` of the pool, and to the backend what a pool is."""

    def __init__(self, listener: Listener) -> None:
        """`listener` is told of every run that was submitted; `pool` must be set first."""
        self.pool: Runner
        self._listener = listener
        self._groups: dict[int, _Group] = {}
        self._leads: dict[Key, int] = {}
        self._follows: dict[int, int] = {}

    def submit(self, begins: Iterable[Begin]) -> None:
        """Take runs."""
        alone = []
        for begin in begins:
            key = _key(begin)
            lead = self._leads.get(key) if key is not None else None
            if lead is not None and begin.lane >= self._groups[lead].lane:
                self._groups[lead].followers[begin.run] = len(begin.tokens) // 4
                self._follows[begin.run] = lead
                continue
            if key is not None:
                self._groups[begin.run] = _Group(key, begin.lane)
                self._leads[key] = begin.run
            alone.append(begin)
        self.pool.submit(alone)

    def cancel(self, runs: Iterable[int]) -> None:
        """Stop runs; one that others follow goes on for them."""
        stopped = []
        for run in runs:
            lead = self._follows.pop(run, None)
            group = self._groups.get(run if lead is None else lead)
            if group is None or (lead is None and not group.followers):
                stopped.append(run)
                continue
            if lead is None:
                if not group.wanted:
                    continue
                group.wanted = False
            else:
                del group.followers[run]
                if not group.wanted and not group.followers:
                    stopped.append(lead)
            self._listener.told(Ended(run=run, text="", finish="cancelled", output_tokens=0, run_ms=0))
        for run in stopped:
            if (group := self._groups.get(run)) is not None:
                self._leave(run, group)  # nobody may follow it any more
        if stopped:
            self.pool.cancel(stopped)

    def told(self, event: Delta | Ended) -> None:
        """Pass news of a run on to whoever waits for it."""
        group = self._groups.get(event.run)
        if group is None or isinstance(event, Delta):
            self._listener.told(event)
            return
        self._forget(event.run, group)
        if group.wanted:
            self._listener.told(event)
        for run, tokens in group.followers.items():
            self._follows.pop(run, None)
            self._listener.told(msgspec.structs.replace(event, run=run, cached_tokens=tokens))

    def lost(self, runs: list[int], how: str) -> None:
        """Pass on that runs were lost, and with them those that followed."""
        everyone = []
        for run in runs:
            group = self._groups.get(run)
            if group is None or group.wanted:
                everyone.append(run)
            if group is not None:
                self._forget(run, group)
                everyone += group.followers
                for follower in group.followers:
                    self._follows.pop(follower, None)
        self._listener.lost(everyone, how)

    def gave_up(self, reason: str) -> None:
        """Pass on."""
        self._listener.gave_up(reason)

    def _forget(self, run: int, group: _Group) -> None:
        del self._groups[run]
        self._leave(run, group)

    def _leave(self, run: int, group: _Group) -> None:
        if self._leads.get(group.key) == run:
            del self._leads[group.key]


def _key(begin: Begin) -> Key | None:
    """Tell what a run's text follows from; None when chance plays a part, or when it is watched as it grows."""
    sampling = begin.sampling
    if begin.stream or sampling.temperature > 0:
        return None
    rest = msgspec.structs.replace(sampling, seed=0, top_p=1.0, top_k=0, min_p=0.0)
    told = begin.logprobs, tuple(begin.shown), begin.mark
    return (
        begin.tokens,
        begin.max_output,
        tuple(begin.stops),
        msgspec.msgpack.encode(rest),
        begin.grammar,
        begin.exact,
        begin.pack,
        *told,
    )

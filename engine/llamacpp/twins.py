"""Runs that must say the same are run once: the others wait for that one and are told what it said.

Greedy runs with the same prompt and limits are twins. The first is given to the pool; later ones follow it, unless they are more
urgent or want to see it grow. Those that come when it has ended are told what it said, as long as that is remembered: never what
must be exact, or what somebody waits for. The prompts of all of these count as cached, since nothing is evaluated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from engine.llamacpp.messages import URGENT, Begin, Delta, Ended
from engine.llamacpp.pool import Listener

__all__ = ["Remembered", "Twins"]

REMEMBERED_BYTES: Final = 2**24
_WHOLE: Final = frozenset({"stop", "length"})
"""how a run ends that said all it had to say"""
_OF_AN_ENTRY: Final = 200
"""bytes that a dictionary takes for one, beside what it says"""


class Runner(Protocol):
    """What runs runs: a pool."""

    def submit(self, begins: Iterable[Begin]) -> None:
        """Take runs; never blocks."""

    def cancel(self, runs: Iterable[int]) -> None:
        """Stop runs; each is told as ended, unless it was already."""


class Remembered:
    """What runs said lately, by their keys: the latest that fit in so many bytes."""

    def __init__(self, most: int) -> None:
        """Start empty."""
        self._most = most
        self._size = 0
        self._said: dict[bytes, bytes] = {}

    def add(self, key: bytes, ended: Ended) -> None:
        """Take what a run said, in place of what it said before."""
        self._drop(key)
        said = msgspec.msgpack.encode(ended)
        if len(said) > self._most // 4:
            return  # many others would be forgotten for it
        self._said[key] = said
        self._size += len(said) + _OF_AN_ENTRY
        while self._size > self._most:
            self._drop(next(iter(self._said)))

    def get(self, key: bytes) -> Ended | None:
        """Give it; it is the latest then."""
        said = self._said.pop(key, None)
        if said is None:
            return None
        self._said[key] = said
        return msgspec.msgpack.decode(said, type=Ended)

    def _drop(self, key: bytes) -> None:
        said = self._said.pop(key, None)
        if said is not None:
            self._size -= len(said) + _OF_AN_ENTRY


class _Group:
    """A run and those who follow it."""

    __slots__ = ("exact", "followers", "key", "lane", "wanted")

    def __init__(self, key: bytes, begin: Begin) -> None:
        self.key = key
        self.lane = begin.lane
        self.exact = begin.exact
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
        self._leads: dict[bytes, int] = {}
        self._follows: dict[int, int] = {}
        self._remembered = Remembered(REMEMBERED_BYTES)

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
            if key is not None and begin.lane > URGENT and not begin.exact and (said := self._remembered.get(key)) is not None:
                self._listener.told(_again(said, begin.run, len(begin.tokens) // 4, run_ms=0))
                continue
            if key is not None:
                self._groups[begin.run] = _Group(key, begin)
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
        if event.finish in _WHOLE and group.lane > URGENT and not group.exact:
            self._remembered.add(group.key, event)
        if group.wanted:
            self._listener.told(event)
        for run, tokens in group.followers.items():
            self._follows.pop(run, None)
            self._listener.told(_again(event, run, tokens, event.run_ms))

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


def _again(ended: Ended, run: int, tokens: int, run_ms: int) -> Ended:
    """Say of a run what another one said."""
    return msgspec.structs.replace(ended, run=run, cached_tokens=tokens, run_ms=run_ms)


def _key(begin: Begin) -> bytes | None:
    """Tell what a run's text follows from, digested; None when chance plays a part, or when it is watched as it grows."""
    if begin.stream or begin.sampling.temperature > 0:
        return None
    sampling = msgspec.structs.replace(begin.sampling, seed=0, top_p=1.0, top_k=0, min_p=0.0)
    what = msgspec.msgpack.encode(msgspec.structs.replace(begin, run=0, lane=0, sampling=sampling))
    return hashlib.blake2b(what, digest_size=32).digest()

"""Which run goes to which decoder: integers and tokens only; the pool does what is decided here.

Runs that begin alike go to the decoder that evaluated their beginning. They even wait for it while another one has room, until that
is so far behind that evaluating the beginning once more is the lesser loss. A decoder with room takes, of the runs that wait,

    1. the first whose beginning it had as much of as any other decoder, and most of the prompt
    2. else the first that begins like nothing that any decoder had lately
    3. else the first that begins like what another had, if that one has so much more to do

and nobody is passed by more than a few. What somebody waits for goes at once, in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from engine.llamacpp import policy
from engine.llamacpp.messages import URGENT, Begin
from engine.llamacpp.waiting import Seen, Waiting

__all__ = ["Dealer"]

_AHEAD: Final = 1
"""runs that a decoder has beyond its slots: one takes the place of the next that ends without a step in between"""


class _Known(NamedTuple):
    """A run that waits, and how much of its prompt decoders had lately."""

    begin: Begin
    shares: dict[int, int]
    home: int
    """the decoder that had most; -1: none had enough to speak of"""


class Dealer:
    """The runs that wait, and those that are at decoders. Decoders are numbers."""

    def __init__(self, decoders: int, slots: int, *, embeds: bool = False) -> None:
        """Each has so many slots; texts to embed have nothing to share. None lives yet."""
        self._slots = slots
        self._patience = decoders * slots
        self._passed = 0
        self._waiting = Waiting()
        self._seen = Seen(decoders, 0 if embeds else slots)
        self._runs: list[set[int]] = [set() for _ in range(decoders)]
        self._living: set[int] = set()

    def add(self, begin: Begin) -> None:
        """Take a run."""
        self._waiting.add(begin)

    def discard(self, run: int) -> bool:
        """Forget a run that waits; False when it doesn't."""
        return self._waiting.discard(run)

    def started(self, decoder: int) -> None:
        """Note that a decoder lives, so that it gets runs."""
        self._living.add(decoder)

    def ended(self, decoder: int, run: int) -> None:
        """Note that a decoder's run has ended."""
        self._runs[decoder].discard(run)

    def died(self, decoder: int) -> list[int]:
        """Note that a decoder is gone, and give the runs that went with it."""
        self._living.discard(decoder)
        self._seen.clear(decoder)
        runs, self._runs[decoder] = sorted(self._runs[decoder]), set()
        return runs

    def at(self, decoder: int) -> int:
        """Count a decoder's runs."""
        return len(self._runs[decoder])

    def deal(self) -> tuple[int, Begin] | None:
        """Choose the next run and its decoder; None while there is no room, or all that wait are better off waiting."""
        able = [decoder for decoder in sorted(self._living) if self.at(decoder) < self._slots + _AHEAD]
        if not self._waiting or not able:
            return None
        first = self._waiting.first()
        if first.lane <= URGENT:
            shares = self._seen.shared(first.tokens)
            order = [shares.get(decoder, 0) for decoder in able]
            return self._gives(able[policy.decoder([self.at(decoder) for decoder in able], order, self._slots)], first)
        able.sort(key=self.at)
        for lane in self._waiting.next():
            known = [self._known(begin) for begin in lane]
            backlog = Counter(one.home for one in known)
            late = lane[0] is first and self._passed >= self._patience
            for decoder in able:
                begin = first if late and known[0].home in {-1, decoder} else self._for(decoder, known, backlog)
                if begin is not None:
                    return self._gives(decoder, begin)
        return None

    def _gives(self, decoder: int, begin: Begin) -> tuple[int, Begin]:
        if begin.lane > URGENT:  # those somebody waits for go first, and pass nobody
            self._passed = 0 if begin is self._waiting.first() else self._passed + 1
        self._waiting.discard(begin.run)
        self._runs[decoder].add(begin.run)
        self._seen.add(decoder, begin.tokens)
        return decoder, begin

    def _known(self, begin: Begin) -> _Known:
        shares = self._seen.shared(begin.tokens)
        home = max(shares, key=lambda decoder: (shares[decoder], -self.at(decoder)), default=-1)
        return _Known(begin, shares, home if home >= 0 and shares[home] >= policy.TILE else -1)

    def _for(self, decoder: int, known: Sequence[_Known], backlog: Counter[int]) -> Begin | None:
        """Choose for one decoder."""
        mine, most = None, 0
        for one in known:
            here = one.shares.get(decoder, 0)
            if one.home >= 0 and here > one.shares[one.home] - policy.TILE and here >= most + policy.TILE:
                mine, most = one.begin, here
        if mine is not None:
            return mine
        for one in known:
            if one.home < 0:
                return one.begin
        for one in known:
            behind = self.at(one.home) + backlog[one.home] - self.at(decoder)
            lost = one.shares[one.home] - one.shares.get(decoder, 0)
            own = len(one.begin.tokens) // 4 - one.shares[one.home] + one.begin.max_output
            if policy.worth_moving(behind, lost, own, self._slots):
                return one.begin
        return None

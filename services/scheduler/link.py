"""One Run stream to one incarnation of an engine: what it may still be sent, and what it has and has not answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from haywain.engine.v1 import engine_pb2
from haywain.openai import ENDPOINTS
from services.scheduler.batch import Attempt, Key
from services.scheduler.breaker import Breaker
from services.scheduler.calls import Call
from services.scheduler.results import ResultLines
from services.scheduler.sharing import MEMBERS
from services.scheduler.speed import Tokens
from services.scheduler.stragglers import Pace

__all__ = ["Link", "names_of"]

_UNKNOWN_SECONDS = 60.0
"""What rows are said to take at an engine where none has ended."""


def names_of(engine: engine_pb2.Engine) -> dict[str, engine_pb2.ModelDescription]:
    """Give the engine's models by every id that means them."""
    return {name: model for model in engine.models for name in (*model.aliases, model.model)}


class Link:
    """The stream's book-keeping; `Engines` moves the messages, `Dispatcher` decides."""

    def __init__(self, engine: engine_pb2.Engine, *, pins: bool = False) -> None:
        """Nothing is sent before the engine grants credits. `pins`: batches may keep to one digest."""
        self.engine = engine
        self._pins = pins
        self._models = names_of(engine)
        self._lines: dict[str, ResultLines] = {}
        self.keys = frozenset(self._keys())
        self.credits = 0
        self.attempts: dict[int, Attempt] = {}
        """Rows in flight, by sequence id, the longest there first."""
        self.bytes = 0
        """Size of their lines."""
        self.calls: dict[int, Call] = {}
        self.ghosts: set[int] = set()
        """Sequences that were given up and have not ended at the engine yet."""
        self.cancels: list[int] = []
        """Sequences to cancel with the next message."""
        self.probing = False
        """A suspect is there alone: nothing may be sent until it is empty of rows."""
        self.breaker = Breaker()
        """The engine's, whatever the stream."""
        self.probes: set[int] = set()
        """Sequences that show whether a quarantined engine works again."""
        self.paces: dict[str, Pace] = {}
        """How long its rows take, by model."""
        self.slow = False
        """Far slower than its peers: nothing is sent ahead."""
        self.copied: set[int] = set()
        """Rows here that were at another engine, too, and are not copied again."""
        self.copies: set[int] = set()
        """Rows here that are at another engine, too, and came later."""
        self.looks = False
        """It may look for rows to copy."""
        self.ready = False
        """The engine has spoken."""
        self.draining = False
        self.ended = 0
        self.tokens = Tokens()
        """Of what ended."""
        self.wake = asyncio.Event()

    @property
    def active(self) -> int:
        """Count the sequences sent and not ended."""
        return len(self.attempts) + len(self.calls) + len(self.ghosts)

    @property
    def in_slots(self) -> int:
        """Count those that run: an engine holds the next ones ready, and takes them as slots come free."""
        return min(self.active, self.engine.slots or self.active)

    def room(self, now: float) -> int:
        """Count the sequences that may be sent, by what is known of its engine."""
        return 0 if self.draining else self.breaker.room(now, len(self.probes))

    def busy(self) -> tuple[float, int]:
        """Guess for how many seconds its engine is busy with the rows that it has; and tell how many they are."""
        rounds = -(-len(self.attempts) // max(1, self.engine.slots))
        return rounds * max((pace.usual() for pace in self.paces.values()), default=_UNKNOWN_SECONDS), len(self.attempts)

    def lines(self, model: str) -> ResultLines:
        """Give what builds result lines for a model."""
        found = self._lines.get(model)
        if found is None:
            found = self._lines[model] = ResultLines(self.engine, self._models[model].digest, self.tokens)
        return found

    def digest(self, model: str) -> str:
        """Tell which version of a model it has."""
        return self._models[model].digest

    def place(self, key: Key) -> str:
        """Tell under which name it has a place of its own in a shard's order; none where rows have nothing from each other."""
        return self.engine.engine_id if key[1] in MEMBERS and self._models[key[0]].reuses_prefixes else ""

    def give_up_row(self, sequence_id: int) -> Attempt:
        """Cancel a row in flight."""
        attempt = self.forget_row(sequence_id)
        self.give_up(sequence_id)
        return attempt

    def forget_row(self, sequence_id: int) -> Attempt:
        """Take a row out: it ended, or was not sent after all."""
        attempt = self.attempts.pop(sequence_id)
        self.bytes -= attempt.length
        return attempt

    def give_up(self, sequence_id: int) -> None:
        """Cancel a sequence; whatever the engine says of it later is ignored."""
        self.ghosts.add(sequence_id)
        self.cancels.append(sequence_id)
        self.wake.set()

    def _keys(self) -> Iterator[Key]:
        for name, model in self._models.items():
            for endpoint in model.endpoints or ENDPOINTS:
                for promised in (False, True) if model.deterministic else (False,):
                    yield name, endpoint, promised, None
                    if self._pins:
                        yield name, endpoint, promised, model.digest

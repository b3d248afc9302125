"""A sequence in a decoder, and how it waits there."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from engine.llamacpp import prefixes
from engine.llamacpp.grammar import Grammar
from engine.llamacpp.messages import Begin, Chance
from engine.llamacpp.sampling import Sampler, is_plain_greedy
from engine.llamacpp.text import Text
from engine.llamacpp.vocabulary import Vocabulary

__all__ = ["Entry", "Sequence"]


class Entry(NamedTuple):
    """What waits for a slot; sorted by lane, then by arrival."""

    lane: int
    arrival: int
    begin: Begin
    paused: Sequence | None = None
    """where it had to give its slot up"""

    @property
    def prompt(self) -> prefixes.Tokens:
        """The tokens to evaluate before the next one is chosen."""
        return self.paused.prompt if self.paused is not None else np.frombuffer(self.begin.tokens, np.int32)

    @property
    def unsaid(self) -> int:
        """How many tokens it may still say."""
        return self.begin.max_output - (self.paused.output if self.paused is not None else 0)


class Sequence:
    """A sequence in a slot: prefilling until all of its prompt is evaluated, then decoding."""

    def __init__(self, entry: Entry, vocabulary: Vocabulary) -> None:
        """Begin; it has no slot yet."""
        self.entry = entry
        self.begin = begin = entry.begin
        self.slot = -1
        self.prompt = np.frombuffer(begin.tokens, np.int32)
        self.cached = -1
        self.evaluated = 0
        self.next = -1
        """the token to evaluate next, once decoding"""
        self.tokens: list[int] = []
        """what it said since its prompt was last evaluated"""
        self.output = 0
        self.text = Text(begin.stops)
        self.sampler = self._sampler(vocabulary)
        self.marked = -1
        self.chances: list[tuple[int, Chance]] = []
        """not told yet, each with where its token begins in the text"""
        self.since = time.monotonic()

    def _sampler(self, vocabulary: Vocabulary) -> Sampler | None:
        """Make what chooses tokens where the best one won't do."""
        begin = self.begin
        if is_plain_greedy(begin.sampling) and not begin.grammar:
            return None
        return Sampler(begin.sampling, self.prompt, Grammar(vocabulary, begin.grammar) if begin.grammar else None)

    def sit(self, place: prefixes.Place) -> None:
        """Take a slot, with what it holds of the prompt."""
        self.slot = place.slot
        self.evaluated = place.keep
        if self.cached < 0:
            self.cached = place.keep

    def pause(self) -> Entry:
        """Give the slot up: what it said becomes part of its prompt, and the next token is chosen as it would have been."""
        self.prompt = np.concatenate([self.prompt, np.array(self.tokens, np.int32)])
        self.tokens = []
        self.slot, self.evaluated = -1, 0
        return self.entry._replace(paused=self)

    def says(self, token: int, vocabulary: Vocabulary) -> bool:
        """Add a token to the text; True when a stop string is complete, which then is no part of it."""
        begin, text = self.begin, self.text
        piece = vocabulary.written(token) if token in begin.shown else vocabulary.piece(token)
        stopped = text.add(piece)
        if begin.mark and self.marked < 0 and text.ends(begin.mark, len(piece)):
            self.marked = self.output
        if stopped:
            self.chances = [(start, chance) for start, chance in self.chances if start < text.size]
        return stopped

    def told(self, end: int) -> list[Chance]:
        """Take the chances of the tokens that begin before `end`."""
        taken = [chance for start, chance in self.chances if start < end]
        del self.chances[: len(taken)]
        return taken

    @property
    def sits(self) -> bool:
        """Whether it has a slot."""
        return self.slot >= 0

    @property
    def left(self) -> int:
        """Prompt tokens not evaluated yet."""
        return len(self.prompt) - self.evaluated

    @property
    def unsaid(self) -> int:
        """How many tokens it may still say."""
        return self.begin.max_output - self.output

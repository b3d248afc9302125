"""Choosing a token from logits.

Greedy rows are one argmax over the whole step (loop.py). All else is done here in numpy, a row at a time, with a generator of the
row's own: a seed gives the same tokens whatever runs beside it, as far as the logits do.

With a grammar, the chosen token is looked at; only when it doesn't fit is another one chosen, among those that do. That is as good
as looking at all of them first: what a refused draw leaves is the same distribution over the others.

Order of operations: logit_bias, penalties, temperature, top_k, top_p, min_p. Presence and frequency penalties count generated
tokens only; the repeat penalty looks at the prompt as well.
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

from engine.llamacpp.grammar import Grammar
from engine.llamacpp.messages import Sampling

__all__ = ["Sampler", "StuckError", "is_plain_greedy", "likeliest"]

Logits = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
_BLOCK = 256
"""logits whose sum is taken at once"""
_NEAR = (1e-3, 1e-4, 1e-5, -1.0)
"""what is looked at for the largest weights, one threshold after another: sorting few is fast, and few are enough nearly always"""
_FAR = (1e-4, 1e-5, 1e-7, -1.0)
"""the same for a nucleus, which is larger: the first one is enough for 19 of 20 at temperature 1 and top_p 0.95"""
_PLACE_BITS = np.uint64(32)
_PLACE = np.uint64(2**32 - 1)
_FIRST = 64
"""the best tokens that are held against a grammar before all of them are"""
_LEAST = -9_999.0
"""what stands for a log-probability of minus infinity, which JSON doesn't have"""


class StuckError(ValueError):
    """No token fits the grammar."""


def is_plain_greedy(sampling: Sampling) -> bool:
    """Tell whether the best logit is always the answer."""
    return sampling.temperature <= 0 and not _shifts(sampling)


def _shifts(sampling: Sampling) -> bool:
    penalties = sampling.presence_penalty or sampling.frequency_penalty or sampling.repeat_penalty != 1
    return bool(sampling.logit_bias or penalties)


class Sampler:
    """Chooses the tokens of one sequence."""

    def __init__(self, sampling: Sampling, prompt: npt.NDArray[np.int32], grammar: Grammar | None = None) -> None:
        """`prompt` is what the repeat penalty looks back at; biased tokens must be of the vocabulary. Takes `grammar` over."""
        self._sampling = sampling
        self._grammar = grammar
        self._random = random.Random(sampling.seed)  # noqa: S311 - repeatable on purpose
        self._shifts = _shifts(sampling)
        self._counts: dict[int, int] = {}
        self._seen = set(map(int, prompt)) if sampling.repeat_penalty != 1 else set()
        biases = sampling.logit_bias
        self._bias_tokens = np.fromiter(biases.keys(), np.int64, len(biases))
        self._bias_values = np.fromiter(biases.values(), np.float32, len(biases))

    def choose(self, logits: Logits) -> int:
        """Choose the next token and go on by it; `logits` is left as it is.

        Raises ValueError when they are not numbers, StuckError when nothing fits the grammar.
        """
        if self._shifts:
            logits = self._shifted(logits.copy())
        token = self._chosen(logits)
        grammar = self._grammar
        if grammar is not None:
            if not grammar.permits(token):
                token = self._fitting(logits, grammar)
            grammar.accept(token)
        if self._shifts:
            self._counts[token] = self._counts.get(token, 0) + 1
            if self._sampling.repeat_penalty != 1:
                self._seen.add(token)
        return token

    def _chosen(self, logits: Logits) -> int:
        best = int(logits.argmax())
        top = float(logits[best])
        if not np.isfinite(top):
            raise ValueError("the model's logits are not finite")
        return best if self._sampling.temperature <= 0 else self._drawn(logits, top)

    def _fitting(self, logits: Logits, grammar: Grammar) -> int:
        """Choose among the tokens that fit."""
        if self._sampling.temperature <= 0 and len(logits) > _FIRST:
            fitting = grammar.permitted(np.argpartition(-logits, _FIRST - 1)[:_FIRST])
            if len(fitting):
                return int(fitting[logits[fitting].argmax()])
        fitting = grammar.permitted(np.arange(len(logits)))
        if not len(fitting):
            raise StuckError("no token of the vocabulary fits the grammar")
        return int(fitting[self._chosen(logits[fitting])])

    def _shifted(self, logits: Logits) -> Logits:
        sampling = self._sampling
        logits[self._bias_tokens] += self._bias_values
        if self._seen:
            seen = np.fromiter(self._seen, np.int64, len(self._seen))
            values = logits[seen]
            logits[seen] = np.where(values > 0, values / sampling.repeat_penalty, values * sampling.repeat_penalty)
        if self._counts and (sampling.presence_penalty or sampling.frequency_penalty):
            tokens = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            logits[tokens] -= sampling.presence_penalty + sampling.frequency_penalty * counts
        return logits

    def _drawn(self, logits: Logits, top: float) -> int:
        sampling = self._sampling
        # Relative to the best token, whose weight is 1.
        weights = logits - np.float32(top)
        if sampling.temperature != 1:
            weights /= np.float32(sampling.temperature)
        np.exp(weights, out=weights)
        places: Places | None = None
        if 0 < sampling.top_k < len(weights):
            places = _largest(weights, sampling.top_k)
        if sampling.top_p < 1:
            some = weights if places is None else weights[places]
            kept = nucleus(some, sampling.top_p * float(some.sum(dtype=np.float64)))
            places = kept if places is None else places[kept]
        if sampling.min_p > 0:
            kept = np.flatnonzero((weights if places is None else weights[places]) >= sampling.min_p)
            places = kept if places is None else places[kept]
        uniform = self._random.random()
        return draw(weights, uniform) if places is None else int(places[draw(weights[places], uniform)])


def likeliest(logits: Logits, token: int, count: int) -> tuple[float, list[tuple[int, float]]]:
    """Tell the log-probability of a token, and the `count` likeliest tokens with theirs, the best first."""
    peak = float(logits.max())
    total = peak + float(np.log(np.exp(logits - np.float32(peak)).sum(dtype=np.float64)))
    count = min(count, len(logits))
    places = np.argpartition(-logits, count - 1)[:count] if count else np.empty(0, np.int64)
    # By token where they are equal.
    places = places[np.lexsort((places, -logits[places]))]
    top = [(int(place), max(_LEAST, float(logits[place]) - total)) for place in places]
    return max(_LEAST, float(logits[token]) - total), top


def _largest(weights: Logits, count: int) -> Places:
    """Give the places of the `count` largest weights, in their order."""
    for near in _NEAR:
        places = np.flatnonzero(weights > near)
        if len(places) >= count:
            break
    return np.sort(places[np.argpartition(-weights[places], count - 1)[:count]])


def nucleus(weights: Logits, enough: float) -> Places:
    """Give the places of the largest weights that together reach `enough`, the largest first; at least one."""
    for near in _FAR:
        places = np.flatnonzero(weights > near)
        some = weights[places]
        if float(some.sum(dtype=np.float64)) >= enough:
            break
    # A weight is never below 0, so its bits are in the order of its value. With its place behind them it is one number, and numbers
    # are sorted much faster than places by their weights; equal weights come in the order of their tokens.
    keys = np.sort((~some.view(np.uint32)).astype(np.uint64) << _PLACE_BITS | places.astype(np.uint64))
    ordered = (~(keys >> _PLACE_BITS).astype(np.uint32)).view(np.float32)
    count = int(np.searchsorted(np.cumsum(ordered, dtype=np.float64), enough)) + 1
    return (keys[:count] & _PLACE).astype(np.int64)


def draw(weights: Logits, uniform: float) -> int:
    """Give a place with a chance proportional to its weight; `uniform` in [0, 1) decides.

    Blocks first, then inside one: summing all weights one after another would take most of the time.
    """
    edges = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64))
    target = uniform * float(edges[-1])
    block = min(int(np.searchsorted(edges, target, side="right")), len(edges) - 1)
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK]
    sums = np.cumsum(inside, dtype=np.float64)
    target -= float(edges[block - 1]) if block else 0.0
    place = min(int(np.searchsorted(sums, target, side="right")), len(inside) - 1)
    # Rounding may point behind the last weight that isn't 0.
    while place and inside[place] <= 0:
        place -= 1
    return block * _BLOCK + place

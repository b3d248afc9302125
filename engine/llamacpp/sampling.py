"""Choosing a token from logits.

Greedy rows are one argmax over the whole step (loop.py). All else is done here in numpy, a row at a time, with a generator of the
row's own: a seed gives the same tokens whatever runs beside it, as far as the logits do.

Order of operations: logit_bias, penalties, temperature, top_k, top_p, min_p. Presence and frequency penalties count generated
tokens only; the repeat penalty looks at the prompt as well.
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

from engine.llamacpp.messages import Sampling

__all__ = ["Sampler", "is_plain_greedy"]

Logits = npt.NDArray[np.float32]
_BLOCK = 256
"""logits whose sum is taken at once"""
_NEAR = 16.0
"""logits this far below the best one are rarely among the top_p"""


def is_plain_greedy(sampling: Sampling) -> bool:
    """Tell whether the best logit is always the answer."""
    return sampling.temperature <= 0 and not _shifts(sampling)


def _shifts(sampling: Sampling) -> bool:
    penalties = sampling.presence_penalty or sampling.frequency_penalty or sampling.repeat_penalty != 1
    return bool(sampling.logit_bias or penalties)


class Sampler:
    """Chooses the tokens of one sequence."""

    def __init__(self, sampling: Sampling, prompt: npt.NDArray[np.int32]) -> None:
        """`prompt` is what the repeat penalty looks back at; biased tokens must be of the vocabulary."""
        self._sampling = sampling
        self._random = random.Random(sampling.seed)  # noqa: S311 - repeatable on purpose
        self._shifts = _shifts(sampling)
        self._counts: dict[int, int] = {}
        self._seen = set(map(int, prompt)) if sampling.repeat_penalty != 1 else set()
        biases = sampling.logit_bias
        self._bias_tokens = np.fromiter(biases.keys(), np.int64, len(biases))
        self._bias_values = np.fromiter(biases.values(), np.float32, len(biases))

    def choose(self, logits: Logits) -> int:
        """Choose a token; `logits` is left as it is. Raises ValueError when they are not numbers."""
        if self._shifts:
            logits = self._shifted(logits.copy())
        best = int(logits.argmax())
        top = float(logits[best])
        if not np.isfinite(top):
            raise ValueError("the model's logits are not finite")
        token = best if self._sampling.temperature <= 0 else self._drawn(logits, top)
        if self._shifts:
            self._counts[token] = self._counts.get(token, 0) + 1
            if self._sampling.repeat_penalty != 1:
                self._seen.add(token)
        return token

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
        tokens: npt.NDArray[np.int64] | None = None
        if 0 < sampling.top_k < len(logits):
            tokens = np.argpartition(logits, -sampling.top_k)[-sampling.top_k :]
            tokens.sort()
            logits = logits[tokens]
        # Relative to the best token, whose weight is 1.
        weights = np.exp((logits - np.float32(top)) / np.float32(sampling.temperature))
        if sampling.min_p > 0 or sampling.top_p < 1:
            kept = self._kept(weights)
            weights = weights[kept]
            tokens = kept if tokens is None else tokens[kept]
        place = draw(weights, self._random.random())
        return place if tokens is None else int(tokens[place])

    def _kept(self, weights: Logits) -> npt.NDArray[np.int64]:
        """Give the places of the weights that top_p and min_p leave, in their order."""
        kept = np.flatnonzero(weights >= self._sampling.min_p) if self._sampling.min_p > 0 else np.arange(len(weights))
        if self._sampling.top_p < 1:
            enough = self._sampling.top_p * float(weights.sum(dtype=np.float64))
            nucleus = _nucleus(weights, enough)
            kept = np.intersect1d(kept, nucleus, assume_unique=True)
        return kept


def _nucleus(weights: Logits, enough: float) -> npt.NDArray[np.int64]:
    """Give the places of the largest weights that together reach `enough`; at least one."""
    near = np.flatnonzero(weights > np.exp(-_NEAR))
    if float(weights[near].sum(dtype=np.float64)) < enough:
        near = np.arange(len(weights))
    # Stable, so that equal weights are taken in the order of their tokens.
    order = near[np.argsort(-weights[near], kind="stable")]
    count = int(np.searchsorted(np.cumsum(weights[order], dtype=np.float64), enough)) + 1
    return np.sort(order[:count])


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

"""Choosing tokens."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.llamacpp.messages import Sampling
from engine.llamacpp.sampling import Logits, Sampler, draw, is_plain_greedy, nucleus

NO_PROMPT = np.empty(0, np.int32)


def _logits(size: int = 1_000, seed: int = 1) -> Logits:
    return (np.random.default_rng(seed).standard_normal(size) * 3).astype(np.float32)


def _tokens(sampling: Sampling, count: int, logits: Logits, prompt: np.ndarray = NO_PROMPT) -> list[int]:
    sampler = Sampler(sampling, prompt)
    return [sampler.choose(logits) for _ in range(count)]


def test_no_temperature_is_greedy() -> None:
    """Without temperature the best logit wins, and the fast path knows when that is all there is to do."""
    logits = _logits()
    assert _tokens(Sampling(), 3, logits) == [int(logits.argmax())] * 3
    assert is_plain_greedy(Sampling(top_p=0.5, top_k=3, seed=9))
    assert not is_plain_greedy(Sampling(temperature=0.1))
    assert not is_plain_greedy(Sampling(presence_penalty=0.1))
    assert not is_plain_greedy(Sampling(logit_bias={1: 2.0}))


def test_a_seed_repeats_and_another_one_does_not() -> None:
    """The same seed gives the same tokens; another seed gives others."""
    logits = _logits()
    first = _tokens(Sampling(temperature=1.0, seed=7), 50, logits)
    assert first == _tokens(Sampling(temperature=1.0, seed=7), 50, logits)
    assert first != _tokens(Sampling(temperature=1.0, seed=8), 50, logits)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_the_softmax_says(temperature: float) -> None:
    """Over 6,000 draws every token's share is within five standard deviations of its probability."""
    logits = _logits(600)
    chances = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    chances /= chances.sum()
    draws = 6_000
    counts = np.bincount(_tokens(Sampling(temperature=temperature, seed=3), draws, logits), minlength=600)
    deviation = np.sqrt(draws * chances * (1 - chances))
    assert (np.abs(counts - draws * chances) <= 5 * deviation + 3).all()


def test_top_k_keeps_k_tokens() -> None:
    """Only the k best are ever chosen, and all of them are."""
    logits = _logits()
    best = set(np.argsort(-logits)[:5].tolist())
    assert set(_tokens(Sampling(temperature=2.0, top_k=5, seed=1), 500, logits)) == best
    assert _tokens(Sampling(temperature=2.0, top_k=1, seed=1), 5, logits) == [int(logits.argmax())] * 5


@pytest.mark.parametrize("temperature", [0.7, 1.5])
@pytest.mark.parametrize("top_p", [0.1, 0.6, 0.95, 0.999])
def test_top_p_keeps_the_nucleus(top_p: float, temperature: float) -> None:
    """Chosen are only tokens of the smallest set of best ones whose probabilities reach p."""
    logits = _logits()
    chances = np.exp(logits.astype(np.float64) / temperature)
    chances /= chances.sum()
    order = np.argsort(-chances)
    size = int(np.searchsorted(np.cumsum(chances[order]), top_p)) + 1
    chosen = set(_tokens(Sampling(temperature=temperature, top_p=top_p, seed=2), 800, logits))
    assert chosen <= set(order[: size + 1].tolist())
    assert len(chosen) >= min(size, 20) * 0.5


def test_top_p_of_0_is_greedy_and_flat_logits_need_all_of_them() -> None:
    """The ends of top_p: nothing leaves the best token, and a nucleus may be nearly everything."""
    logits = _logits()
    assert set(_tokens(Sampling(temperature=1.0, top_p=0.0, seed=1), 20, logits)) == {int(logits.argmax())}
    flat = np.zeros(300, np.float32)
    assert len(set(_tokens(Sampling(temperature=1.0, top_p=0.99, seed=1), 3_000, flat))) == 297


@given(
    st.lists(st.sampled_from([0.0, 1e-9, 1e-8, 1e-6, 5e-5, 2e-4, 0.25, 0.25001, 1.0]), min_size=1, max_size=60),
    st.floats(0, 0.9999),
)
def test_a_nucleus_is_in_order_and_equal_weights_by_token(weights: list[float], share: float) -> None:
    """The largest weights come first, equal ones by their tokens, and as many as are enough; however small they are."""
    some = np.array([*weights, 1.0], np.float32)
    enough = share * float(some.sum(dtype=np.float64))
    order = np.argsort(-some, kind="stable")
    sums = np.cumsum(some[order], dtype=np.float64)
    assert nucleus(some, enough).tolist() == order[: int(np.searchsorted(sums, enough)) + 1].tolist()


def test_min_p_drops_what_is_far_below_the_best() -> None:
    """No token less likely than min_p times the best one is chosen."""
    logits = _logits()
    chosen = set(_tokens(Sampling(temperature=1.0, min_p=0.2, seed=1), 500, logits))
    assert chosen == set(np.flatnonzero(np.exp(logits - logits.max()) >= 0.2).tolist())


def test_biases_forbid_and_force() -> None:
    """A bias of -100 keeps a token away, one of 100 forces it; the logits given stay as they are."""
    logits = _logits()
    before = logits.copy()
    best = int(logits.argmax())
    assert _tokens(Sampling(logit_bias={best: -100.0}), 1, logits) == [int(np.argsort(-logits)[1])]
    assert _tokens(Sampling(logit_bias={17: 100.0}, temperature=1.0), 5, logits) == [17] * 5
    assert (logits == before).all()


def test_penalties_count_generated_tokens() -> None:
    """Presence is taken off once, frequency for each time; neither looks at the prompt."""
    logits = np.array([2.0, 1.5, 0.0], np.float32)
    prompt = np.array([0, 0, 0], np.int32)
    assert _tokens(Sampling(presence_penalty=1.0), 4, logits, prompt) == [0, 1, 0, 0]
    assert _tokens(Sampling(frequency_penalty=0.4), 4, logits, prompt) == [0, 0, 1, 0]


def test_the_repeat_penalty_sees_the_prompt() -> None:
    """Tokens of the prompt and of the answer are divided when positive, multiplied when negative."""
    logits = np.array([2.0, 1.5, -1.0, -1.2], np.float32)
    assert _tokens(Sampling(repeat_penalty=1.5), 1, logits, np.array([0], np.int32)) == [1]
    assert _tokens(Sampling(repeat_penalty=1.5), 1, logits[2:], np.array([0], np.int32)) == [1]


def test_logits_that_are_no_numbers_are_refused() -> None:
    """A model that computes nonsense fails the row instead of choosing some token."""
    for value in (np.nan, np.inf):
        logits = _logits()
        logits[4] = value
        with pytest.raises(ValueError, match="not finite"):
            Sampler(Sampling(temperature=1.0), NO_PROMPT).choose(logits)


@given(st.lists(st.sampled_from([0.0, 1e-30, 0.5, 1.0]), min_size=1, max_size=600), st.floats(0, 1, exclude_max=True))
def test_nothing_without_weight_is_drawn(weights: list[float], uniform: float) -> None:
    """A place of weight 0 is never drawn while any other has one."""
    values = np.array([*weights, 1.0], np.float32)
    assert values[draw(values, uniform)] > 0


def test_draw_takes_places_in_order() -> None:
    """The uniform number walks over the weights from first to last."""
    weights = np.array([1.0, 2.0, 1.0] * 200, np.float32)
    uniforms = (np.arange(800) + 0.5) / 800
    counts = collections.Counter(draw(weights, uniform) for uniform in uniforms)
    assert [counts[place] for place in range(600)] == [1, 2, 1] * 200

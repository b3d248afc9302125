"""Where a prompt is put, decided with integers."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.llamacpp import policy, prefixes
from engine.llamacpp.policy import Layout
from engine.llamacpp.prefixes import Held, Place, Tokens, common, place

PLAIN = Layout(flash=False)
CONTEXT = 1_024


def prompt(*parts: tuple[int, int]) -> Tokens:
    """Make a prompt of runs: (seed, length) gives the same tokens every time."""
    runs = [np.random.default_rng(seed).integers(0, 9_999, length) for seed, length in parts]
    return np.concatenate(runs).astype(np.int32)


def held(tokens: Tokens, generated: int = 0, used: int = 0) -> Held:
    """Make a slot that evaluated a prompt as the loop does."""
    slot = Held(CONTEXT)
    start = 0
    while start < len(tokens) - generated:
        size = policy.chunk(len(tokens) - generated - start)
        slot.prefilled(tokens[start : start + size])
        start += size
    for token in tokens[start:]:
        slot.generated(int(token))
    slot.used = used
    return slot


HEAD, OTHER = (1, 300), (2, 300)


def test_nothing_in_common_takes_the_slot_used_longest_ago() -> None:
    """A prompt that begins like nothing goes to the free slot of the oldest use, emptied."""
    slots = [held(prompt(HEAD), used=3), held(prompt(OTHER), used=1), held(prompt((3, 300)), used=2)]
    assert place(prompt((4, 50)), slots, {0, 1, 2}, {}, PLAIN) == Place(1, 1, 0)
    assert place(prompt((4, 50)), slots, {0, 2}, {}, PLAIN) == Place(2, 2, 0)


def test_what_only_one_slot_holds_is_given_away_last() -> None:
    """Of free slots a copy goes before the only one of its kind, and a short prompt before a long one; but not for ever."""
    slots = [held(prompt(HEAD, (5, 20)), used=1), held(prompt(OTHER, (6, 20)), used=3), held(prompt(OTHER, (7, 20)), used=4)]
    slots += [held(prompt((8 + more, 90)), used=90) for more in range(13)]
    assert place(prompt((4, 50)), slots, {0, 1, 2}, {}, PLAIN) == Place(1, 1, 0)
    slots[2] = held(prompt((3, 30)), used=3)
    assert place(prompt((4, 50)), slots, {0, 1, 2}, {}, PLAIN) == Place(2, 2, 0)
    slots[1].used = slots[2].used = 6
    assert place(prompt((4, 50)), slots, {0, 1, 2}, {}, PLAIN) == Place(0, 0, 0)
    slots[1] = Held(CONTEXT)
    assert place(prompt((4, 50)), slots, {0, 1, 2}, {}, PLAIN) == Place(1, 1, 0)


@given(st.integers(4, 16), st.integers(40, 200), st.integers(30, 700), st.data())
def test_what_is_hot_stays(count: int, hot: int, cold: int, data: st.DataObject) -> None:
    """A beginning that comes again before most slots were used is evaluated once, however long what comes in between is."""
    slots, clock = [Held(CONTEXT) for _ in range(count)], 0
    gaps = data.draw(st.lists(st.integers(0, count // 2 - 2), min_size=3, max_size=8))
    for turn, gap in enumerate(gaps):
        for row in [prompt((1, hot), (1_000 + turn, 30)), *(prompt((2_000 + 100 * turn + more, cold)) for more in range(gap))]:
            at = place(row, slots, set(range(count)), {}, PLAIN)
            assert at is not None
            assert at.keep == (hot if turn and row[0] == prompt((1, 1))[0] else 0)
            slots[at.slot].become(slots[at.source], at.keep)
            slots[at.slot].prefilled(row[at.keep :])
            clock += 1
            slots[at.slot].used = slots[at.source].used = clock


def test_a_free_slot_that_begins_alike_is_cut() -> None:
    """A finished sharer's slot is taken as it is, without a copy."""
    slots = [held(prompt((3, 9))), held(prompt(HEAD, (5, 20)), used=9)]
    assert place(prompt(HEAD, (6, 20)), slots, {0, 1}, {}, PLAIN) == Place(1, 1, 300)


def test_what_a_slot_holds_beyond_is_kept_while_another_is_free() -> None:
    """A long conversation isn't cut for its system prompt as long as an older slot can take a copy."""
    slots = [held(prompt((3, 9)), used=1), held(prompt(HEAD, (5, 400)), used=9)]
    assert place(prompt(HEAD, (6, 20)), slots, {0, 1}, {}, PLAIN) == Place(0, 1, 300)
    assert place(prompt(HEAD, (6, 20)), slots, {1}, {}, PLAIN) == Place(1, 1, 300)


def test_a_busy_slot_is_copied_from() -> None:
    """What runs is copied from, for as much as it has evaluated; a few tokens are not worth a copy."""
    slots = [held(prompt(HEAD, (5, 20))), held(prompt((3, 9)), used=4), held(prompt((3, 9)), used=2)]
    assert place(prompt(HEAD, (6, 20)), slots, {1, 2}, {}, PLAIN) == Place(2, 0, 300)
    few = prompt((1, 12), (6, 20))
    assert place(few, [held(few), *slots[1:]], {1, 2}, {}, PLAIN) == Place(2, 0, 30)
    assert place(prompt((1, 12), (6, 20)), [held(prompt((1, 12), (7, 9))), *slots[1:]], {1, 2}, {}, PLAIN) == Place(2, 2, 0)


def test_a_prefix_that_is_coming_is_waited_for() -> None:
    """A prompt waits while a slot evaluates what it would have to evaluate too, and no longer."""
    leader = prompt((1, 270), (5, 20))
    slots = [Held(CONTEXT), Held(CONTEXT)]
    slots[0].prefilled(leader[:128])
    assert place(prompt((1, 270), (6, 20)), slots, {1}, {0: leader}, PLAIN) is None
    assert place(prompt(OTHER), slots, {1}, {0: leader}, PLAIN) == Place(1, 1, 0)
    slots[0].prefilled(leader[128:256])
    assert place(prompt((1, 270), (6, 20)), slots, {1}, {0: leader}, PLAIN) == Place(1, 0, 256)


def test_rows_that_begin_together_wait_a_step_for_a_short_beginning() -> None:
    """Of short rows with a system prompt of 18 tokens one evaluates it, and the others take it; fewer tokens aren't waited for."""
    slots = [Held(CONTEXT), Held(CONTEXT)]
    for flash in (True, False):
        layout = Layout(flash=flash)
        assert place(prompt((1, 18), (6, 17)), slots, {1}, {0: prompt((1, 18), (5, 20))}, layout) is None
        assert place(prompt((1, 12), (6, 17)), slots, {1}, {0: prompt((1, 12), (5, 20))}, layout) == Place(1, 1, 0)


def test_only_what_could_be_taken_is_waited_for() -> None:
    """With flash attention a short prompt takes nothing of large chunks, so it doesn't wait for them either."""
    slots, leader = [Held(CONTEXT), Held(CONTEXT)], prompt((1, 100), (5, 20))
    assert place(prompt((1, 30), (6, 20)), slots, {1}, {0: leader}, Layout(flash=True)) == Place(1, 1, 0)
    assert place(prompt((1, 30), (6, 20)), slots, {1}, {0: leader}, PLAIN) is None


def test_of_an_answer_only_fast_layouts_reuse_what_was_generated() -> None:
    """A later turn finds the earlier answer, unless each token must be computed as it would be alone."""
    turn = prompt(HEAD, (5, 20))
    slots = [held(turn, generated=20)]
    later = np.concatenate([turn, prompt((6, 20))])
    assert place(later, slots, {0}, {}, PLAIN) == Place(0, 0, 320)
    assert place(later, slots, {0}, {}, Layout(flash=False, exact=True)) == Place(0, 0, 256)


@given(st.integers(0, 700), st.integers(1, 700), st.integers(0, 700), st.booleans())
def test_what_is_reused_leaves_two_tokens_or_nothing(shared: int, size: int, donor: int, flash: bool) -> None:
    """Never more than is shared, never all but one, never a handful."""
    kept = policy.reusable(min(shared, size), size, min(policy.tiled(donor), shared) if donor else 0, Layout(flash=flash))
    assert kept == 0 or policy.LEAST <= kept <= min(shared, size - 2)


@given(st.integers(1, 700), st.integers(1, 700), st.integers(0, 700))
def test_with_flash_attention_every_token_goes_the_way_it_would_go_alone(size: int, donor: int, shared: int) -> None:
    """A reused prompt has the same tokens in large chunks as one that is evaluated whole."""
    shared = min(shared, size, donor)
    kept = policy.reusable(shared, size, held(prompt((1, donor))).tiled, Layout(flash=True))
    alone, start = [], 0
    while start < size:
        chunk = policy.chunk(size - start)
        alone += [chunk >= policy.TILE] * chunk
        start += chunk
    ways = [token < policy.tiled(donor) for token in range(kept)]
    start = kept
    while start < size:
        chunk = policy.chunk(size - start)
        ways += [chunk >= policy.TILE] * chunk
        start += chunk
    assert not kept or ways == alone


@pytest.mark.parametrize("seed", range(5))
def test_common_counts_the_tokens_alike(seed: int) -> None:
    """The longest common beginning, found without a loop."""
    chance = random.Random(seed)
    one = [chance.randrange(3) for _ in range(chance.randrange(30))]
    other = [*one[: chance.randrange(len(one) + 1)], *(chance.randrange(3) for _ in range(5))]
    expected = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert common(np.array(one, np.int32), np.array(other, np.int32)) == expected


@given(st.integers(1, 700), st.integers(1, 700), st.integers(0, 700))
def test_exactly_computed_prompts_are_cut_where_they_would_be_anyway(size: int, donor: int, shared: int) -> None:
    """What is taken and what is left are whole chunks of both prompts as they would be evaluated alone."""
    layout = Layout(flash=False, exact=True)
    has = held(prompt((1, donor)))
    kept = policy.reusable(min(shared, size, has.whole), size, has.tiled, layout)
    for length in (size, donor) if kept else ():
        starts, start = [], 0
        while start < kept:
            starts.append(start)
            start += policy.chunk(length - start)
        assert start == kept
        assert starts == list(range(0, kept, policy.CHUNK))


def test_copies_and_cuts_remember_how_tokens_were_computed() -> None:
    """A copy knows no more of a slot than what was copied."""
    source, target = held(prompt(HEAD, (5, 20)), generated=20), Held(CONTEXT)
    target.become(source, 310)
    assert (target.size, target.of_prompt, target.tiled, target.whole) == (310, 300, 256, 256)
    target.cut(200)
    assert (target.size, target.of_prompt, target.tiled, target.whole) == (200, 200, 200, 128)
    assert prefixes.WORTH_COPYING >= policy.LEAST

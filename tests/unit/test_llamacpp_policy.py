"""What a step takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.llamacpp import policy

COUNTS = st.integers(1, 4_000)


def _cuts(prompt: int) -> list[int]:
    sizes = []
    while prompt:
        sizes.append(policy.chunk(prompt))
        prompt -= sizes[-1]
    return sizes


@given(COUNTS)
def test_chunks_add_up_and_none_is_a_single_token(prompt: int) -> None:
    """A prompt's chunks add up to it, none is over the limit, and none of one token is left over."""
    sizes = _cuts(prompt)
    assert sum(sizes) == prompt
    assert max(sizes) <= policy.CHUNK
    assert prompt == 1 or min(sizes) > 1


@given(st.integers(0, 256), st.lists(COUNTS, max_size=20), st.integers(1, 1_024))
def test_a_share_is_a_whole_chunk_or_nothing(decoding: int, remaining: list[int], budget: int) -> None:
    """Load decides when a chunk is prefilled, never where a prompt is cut."""
    shares = policy.share(decoding, remaining, budget)
    assert len(shares) == len(remaining)
    assert all(size in (0, policy.chunk(left)) for size, left in zip(shares, remaining, strict=True))


@given(st.integers(0, 256), st.lists(COUNTS, min_size=1, max_size=20), st.integers(1, 1_024))
def test_the_first_is_served_and_nobody_overtakes(decoding: int, remaining: list[int], budget: int) -> None:
    """The first prompt always gets its chunk; who gets none has only such behind it; the rest stay within the budget."""
    shares = policy.share(decoding, remaining, budget)
    assert shares[0] > 0
    served = [bool(size) for size in shares]
    assert served == sorted(served, reverse=True)
    assert len([size for size in shares if size]) == 1 or decoding + sum(shares) <= budget


def test_fit_clamps_to_the_room() -> None:
    """What may be generated is what was asked for, or the room behind the prompt."""
    assert policy.fit(10, 5, 100) == 5
    assert policy.fit(10, 500, 100) == 90
    assert policy.fit(10, None, 100) == 90
    assert policy.fit(100, 5, 100) == 0
    assert policy.fit(120, None, 100) < 0


def test_slots_follow_from_memory() -> None:
    """A decoder gets the wanted slots, or as many as the memory holds, but one at least."""
    assert policy.slots(16, 23_040, 2_048, 2**29) == 11
    assert policy.slots(16, 1_024, 2_048, 2**29) == 16
    assert policy.slots(16, 2**20, 8_192, 2**29) == 1


def test_runs_go_where_they_are_known_unless_somebody_is_idle() -> None:
    """The least loaded decoder gets a run; one that knows its beginning may have a quarter of its slots more."""
    assert policy.decoder([3, 2, 2], [0, 0, 0], 16) == 1
    assert policy.decoder([5, 2], [500, 0], 16) == 0
    assert policy.decoder([6, 2], [500, 10], 16) == 0
    assert policy.decoder([7, 2], [500, 10], 16) == 1
    assert policy.decoder([1, 0], [500, 0], 2) == 0


def test_a_beginning_is_evaluated_twice_where_waiting_costs_more() -> None:
    """A run moves when its decoder has that many more runs to do as its beginning is worth, and a few."""
    assert not policy.worth_moving(5, lost=0, own=80, slots=20)
    assert policy.worth_moving(6, lost=0, own=80, slots=20)
    assert not policy.worth_moving(10, lost=400, own=80, slots=20)
    assert policy.worth_moving(11, lost=400, own=80, slots=20)


FLASH, PLAIN, UNIFIED = policy.LAYOUTS["flash"], policy.LAYOUTS["plain"], policy.LAYOUTS["unified"]


def test_the_layout_follows_from_the_rows() -> None:
    """Short rows want flash attention, long ones none, and those that share most of themselves one cache."""
    for now in (FLASH, PLAIN, UNIFIED):
        assert policy.layout(now, [90] * 16, 0, 16) == FLASH
        assert policy.layout(now, [600] * 16, 0, 16) == PLAIN
        assert policy.layout(now, [600] * 16, 540 * 15, 16) == UNIFIED


def test_a_layout_stays_where_another_gains_little() -> None:
    """Few rows change nothing, nor do rows between the bounds: a change empties the caches."""
    for now in (FLASH, PLAIN, UNIFIED):
        assert policy.layout(now, [2_000] * 3, 0, 16) == now
    assert policy.layout(FLASH, [150] * 16, 0, 16) == FLASH
    assert policy.layout(PLAIN, [150] * 16, 0, 16) == PLAIN
    for now in (PLAIN, UNIFIED):
        assert policy.layout(now, [600] * 16, 480 * 16, 16) == now


def test_rows_of_several_beginnings_have_a_cache_each() -> None:
    """One long beginning of all 16 rows is looked at best where it lies once; of four beginnings each would look at all."""
    for now in (PLAIN, UNIFIED):
        assert policy.layout(now, [462] * 16, 412 * 15, 16) == UNIFIED
        assert policy.layout(now, [462] * 16, 412 * 12, 16) == PLAIN
        assert policy.layout(now, [1_660] * 16, 1_612 * 14, 16) == UNIFIED


def test_a_layout_stays_while_rows_of_a_kind_come_and_go() -> None:
    """How many rows of a kind there are decides nothing: neither two unrelated ones or four, nor few or many with one beginning."""
    for now in (PLAIN, UNIFIED):
        for rows in range(2, 6):
            assert policy.layout(now, [600] * rows, 0, 4) == PLAIN
        for rows in range(4, 18):
            assert policy.layout(now, [600] * rows, 480 * (rows - 1), 16) == PLAIN
            assert policy.layout(now, [600] * rows, 540 * (rows - 1), 16) == UNIFIED

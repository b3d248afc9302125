"""Which run goes to which decoder."""

from __future__ import annotations

import itertools
import random
from collections import deque

import numpy as np
import pytest

from engine.llamacpp import policy, prefixes
from engine.llamacpp.dealing import Dealer
from engine.llamacpp.messages import Begin, Sampling

STANDARD, EXPEDITED, INTERACTIVE = 3, 2, 1
SLOTS, OUTPUT = 16, 32
PLAIN = policy.Layout(flash=False)

Rows = list[list[int]]


def begin(run: int, prompt: list[int], lane: int = STANDARD) -> Begin:
    """Make a run."""
    tokens = np.array(prompt, np.int32).tobytes()
    return Begin(run=run, tokens=tokens, max_output=OUTPUT, stops=[], sampling=Sampling(), lane=lane, stream=False)


def dealer(decoders: int, slots: int = SLOTS) -> Dealer:
    """Make one whose decoders live."""
    dealer = Dealer(decoders, slots)
    for number in range(decoders):
        dealer.started(number)
    return dealer


def dealt(dealer: Dealer) -> list[tuple[int, int]]:
    """Deal all that can be dealt: (run, decoder)."""
    found = []
    while (one := dealer.deal()) is not None:
        found.append((one[1].run, one[0]))
    return found


def headed(chance: random.Random, rows: int, heads: int, size: int = 500) -> Rows:
    """Make shuffled rows of a few long beginnings."""
    beginnings = [[chance.randrange(40_000) for _ in range(size)] for _ in range(heads)]
    return [[*chance.choice(beginnings), *(chance.randrange(40_000) for _ in range(35))] for _ in range(rows)]


def conversations(chance: random.Random, count: int) -> Rows:
    """Make conversations of four turns, each of which begins with the one before."""
    made = []
    for _ in range(count):
        turn = [chance.randrange(40_000) for _ in range(75)]
        for _ in range(4):
            turn = [*turn, *(chance.randrange(40_000) for _ in range(50))]
            made.append([*turn, 7, 8, 9])
            turn = [*turn, *(chance.randrange(40_000) for _ in range(100))]
    return made


def least(rows: Rows) -> int:
    """Count the tokens of all rows, each beginning once."""
    found, before = 0, list[int]()
    for row in sorted(rows):
        found += len(row) - next((at for at, (a, b) in enumerate(zip(row, before, strict=False)) if a != b), len(before))
        before = row
    return found


class Slots:
    """A decoder's slots, without a model: a row that is let in is evaluated at once, and the oldest one ends first."""

    def __init__(self) -> None:
        """Start empty."""
        self.held = [prefixes.Held(1_024) for _ in range(SLOTS)]
        self.free = set(range(SLOTS))
        self.waiting = deque[Begin]()
        self.running = deque[tuple[int, int]]()
        self.evaluated = self.admissions = 0

    def step(self) -> int | None:
        """Let in what fits, and end a row."""
        while self.waiting and self.free:
            one = self.waiting.popleft()
            prompt = np.frombuffer(one.tokens, np.int32)
            place = prefixes.place(prompt, self.held, self.free, {}, PLAIN)
            assert place is not None
            self.held[place.slot].become(self.held[place.source], place.keep)
            self.held[place.slot].prefilled(prompt[place.keep :])
            self.evaluated += len(prompt) - place.keep
            self.admissions += 1
            self.held[place.slot].used = self.held[place.source].used = self.admissions
            self.free.discard(place.slot)
            self.running.append((one.run, place.slot))
        if not self.running:
            return None
        run, slot = self.running.popleft()
        self.free.add(slot)
        return run


def evaluated(rows: Rows, decoders: int = 2) -> int:
    """Count the prompt tokens that decoders evaluate, with twice their slots submitted ahead."""
    dealer_, slots = dealer(decoders), [Slots() for _ in range(decoders)]
    coming, inside = deque(enumerate(rows)), 0
    while coming or inside:
        while coming and inside < 2 * decoders * SLOTS:
            dealer_.add(begin(*coming.popleft()))
            inside += 1
            while (one := dealer_.deal()) is not None:
                slots[one[0]].waiting.append(one[1])
        for number, decoder in enumerate(slots):
            if (run := decoder.step()) is not None:
                dealer_.ended(number, run)
                inside -= 1
        while (one := dealer_.deal()) is not None:
            slots[one[0]].waiting.append(one[1])
    return sum(decoder.evaluated for decoder in slots)


@pytest.mark.parametrize("seed", range(3))
def test_few_beginnings_are_evaluated_once(seed: int) -> None:
    """28 shuffled rows of 8 beginnings cost hardly more than each beginning once, whichever decoders they go to."""
    rows = headed(random.Random(seed), 28, heads=8)
    assert evaluated(rows) <= 1.12 * least(rows)


@pytest.mark.parametrize("seed", range(3))
def test_many_rows_of_few_beginnings(seed: int) -> None:
    """256 shuffled rows of 8 beginnings, of which the engine knows 64 at a time: a beginning is evaluated again now and then."""
    rows = headed(random.Random(seed), 256, heads=8)
    assert evaluated(rows) <= 1.45 * least(rows)


@pytest.mark.parametrize("count", [7, 64])
def test_turns_find_the_turn_before(count: int) -> None:
    """A conversation's turns go to one decoder, one after another: each token of it is evaluated once."""
    rows = conversations(random.Random(4), count)
    assert evaluated(rows) <= 1.1 * least(rows)


def test_one_beginning_keeps_every_decoder_busy() -> None:
    """Many rows of one beginning go everywhere: evaluating it on each decoder costs less than a decoder that has nothing to do."""
    rows = headed(random.Random(5), 128, heads=1)
    ours = dealer(4)
    for run, row in enumerate(rows):
        ours.add(begin(run, row))
    dealt(ours)
    assert [ours.at(number) for number in range(4)] == [SLOTS + 1] * 4


def test_a_few_rows_of_one_beginning_stay_together() -> None:
    """The others have nothing to do, and still would not be faster."""
    ours = dealer(4)
    for run, row in enumerate(headed(random.Random(5), 4, heads=1)):
        ours.add(begin(run, row))
    assert len({number for _, number in dealt(ours)}) == 1


def test_rows_that_share_nothing_are_spread_evenly() -> None:
    """No decoder has more than one more than another, whatever ends in between."""
    chance, ours = random.Random(3), dealer(3)
    running: list[tuple[int, int]] = []
    for run in range(200):
        ours.add(begin(run, [run, *(chance.randrange(40_000) for _ in range(99))]))
        running += dealt(ours)
        loads = [ours.at(number) for number in range(3)]
        assert max(loads) - min(loads) <= 1
        if len(running) > 30:
            for number in range(3):
                ended = next(one for one in running if one[1] == number)
                running.remove(ended)
                ours.ended(number, ended[0])


def test_lanes_go_before_beginnings() -> None:
    """The more urgent lane goes first whatever the others share, and keeps its order where somebody waits for each answer."""
    alike, other = [7] * 200, [8] * 200
    ours = dealer(1, slots=1)
    ours.add(begin(90, alike))
    ours.add(begin(91, alike))
    assert [run for run, _ in dealt(ours)] == [90, 91]
    for run, (prompt, lane) in enumerate(
        [(other, STANDARD), (alike, STANDARD), (other, INTERACTIVE), (alike, INTERACTIVE), (other, EXPEDITED), (alike, EXPEDITED)]
    ):
        ours.add(begin(run, prompt, lane))
    assert not ours.discard(99)
    order = []
    for last in (90, 2, 3, 5, 4, 0):
        ours.ended(0, last)
        order += [run for run, _ in dealt(ours)]
    assert order == [2, 3, 5, 4, 0, 1]


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("decoders", [1, 2])
def test_nobody_is_passed_for_ever(decoders: int, urgent: bool) -> None:
    """However many sharers come, the first one waits for so many of them and no more; runs somebody waits for change nothing."""
    ours = dealer(decoders, slots=2)
    numbers = itertools.count()
    for _ in range(3 * decoders):
        ours.add(begin(next(numbers), [7] * 200))
    running = deque(dealt(ours))
    ours.add(begin(1_000, [8] * 200))
    passed = 0
    while (1_000, 0) not in running and (1_000, 1) not in running:
        passed += 1
        assert passed <= 3 * 2 * decoders
        if urgent:  # goes first, and is done at once
            ours.add(begin(run := next(numbers), [9, 9], lane=INTERACTIVE))
            last, number = running.popleft()
            ours.ended(number, last)
            [(first, place), *others] = dealt(ours)
            assert first == run
            ours.ended(place, run)
            running += others
        else:
            last, number = running.popleft()
            ours.ended(number, last)
        ours.add(begin(next(numbers), [7] * 200))
        running += dealt(ours)


def test_what_waits_for_a_dead_decoder_goes_elsewhere() -> None:
    """A decoder's runs are told when it dies; nothing waits for what it had evaluated, and it gets nothing until it lives."""
    ours = dealer(2, slots=2)
    for run in range(8):
        ours.add(begin(run, [7] * 2_000))
    first = dealt(ours)
    home = first[0][1]
    assert [number for _, number in first] == [home] * 3
    assert ours.died(home) == sorted(run for run, number in first if number == home)
    rest = dealt(ours)
    assert rest
    assert all(number != home for _, number in rest)
    ours.started(home)
    assert {number for _, number in dealt(ours)} <= {home}

"""Which run goes to a decoder next."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest

from engine.llamacpp.messages import Begin, Sampling
from engine.llamacpp.waiting import BLOCK, PrefixTree, Seen, Waiting

STANDARD, EXPEDITED, INTERACTIVE = 3, 2, 1


def tokens(*numbers: int) -> bytes:
    """Pack tokens."""
    return np.array(numbers, np.int32).tobytes()


def begin(run: int, prompt: bytes, lane: int = STANDARD) -> Begin:
    """Make a run."""
    return Begin(run=run, tokens=prompt, max_output=1, stops=[], sampling=Sampling(), lane=lane, stream=False)


def test_a_tree_tells_the_longest_common_beginning() -> None:
    """For random prompts, coming and going, the tree says what comparing with all of them says, in whole blocks."""
    chance = random.Random(4)
    tree, there = PrefixTree(), list[bytes]()
    for _ in range(600):
        base = chance.choice([b"", *there])[: 4 * BLOCK * chance.randint(0, 5)]
        prompt = base + tokens(*(chance.randrange(3) for _ in range(chance.randint(0, 60))))
        common = [next((place for place, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b),
                       min(len(prompt), len(other))) for other in there]  # fmt: skip
        assert tree.shared(prompt) == max(common, default=0) // 4 // BLOCK * BLOCK
        if there and chance.random() < 0.45:
            tree.remove(there.pop(chance.randrange(len(there))))
        else:
            tree.add(prompt)
            there.append(prompt)
    for prompt in there:
        tree.remove(prompt)
    assert tree._root.edges == {}


def test_only_the_latest_are_remembered() -> None:
    """A prompt is forgotten once as many others came as there are slots; one that embeds remembers nothing."""
    seen = Seen(2)
    prompts = [tokens(*[number] * 40) for number in range(3)]
    for prompt in prompts:
        seen.add(prompt)
    assert [seen.shared(prompt) for prompt in prompts] == [0, 32, 32]
    seen.clear()
    assert seen.shared(prompts[2]) == 0
    nothing = Seen(0)
    nothing.add(prompts[0])
    assert nothing.shared(prompts[0]) == 0


def test_lanes_go_before_beginnings() -> None:
    """The more urgent lane goes first whatever the others share, and keeps its order where somebody waits for each answer."""
    alike, other = tokens(*[7] * 200), tokens(*[8] * 200)
    seen = Seen(4)
    seen.add(alike)
    waiting = Waiting(patience=9)
    for run, (prompt, lane) in enumerate(
        [(other, STANDARD), (alike, STANDARD), (other, INTERACTIVE), (alike, INTERACTIVE), (other, EXPEDITED), (alike, EXPEDITED)]
    ):
        waiting.add(begin(run, prompt, lane))
    assert waiting.discard(99) is False
    assert [waiting.take(seen).run for _ in range(6)] == [2, 3, 5, 4, 1, 0]
    assert not waiting


def test_nobody_is_passed_for_ever() -> None:
    """However many sharers come, the first one waits for so many of them and no more."""
    alike = tokens(*[7] * 200)
    seen = Seen(4)
    seen.add(alike)
    waiting = Waiting(patience=5)
    waiting.add(begin(0, tokens(*[8] * 200)))
    taken = []
    for run in range(1, 20):
        waiting.add(begin(run, alike))
        taken.append(waiting.take(seen).run)
    assert taken.index(0) == 5


@pytest.mark.parametrize(("prefixes", "least"), [(32, 0.6), (64, 0.4)])
def test_sharers_run_one_after_another(prefixes: int, least: float) -> None:
    """Of 512 shuffled rows with many beginnings, twice as many find theirs as in the order in which they came."""
    chance = random.Random(6)
    heads = [[chance.randrange(1_000) for _ in range(128)] for _ in range(prefixes)]
    rows = [begin(run, tokens(*heads[run % prefixes], run)) for run in range(512)]
    chance.shuffle(rows)
    seen = Seen(11)
    plain = 0
    for row in rows:
        plain += seen.shared(row.tokens) > 0
        seen.add(row.tokens)
    seen.clear()
    coming, waiting, found = deque(rows), Waiting(patience=22), 0
    for _ in rows:
        while coming and sum(map(len, waiting._lanes.values())) < 33:
            waiting.add(coming.popleft())
        row = waiting.take(seen)
        found += seen.shared(row.tokens) > 0
        seen.add(row.tokens)
    assert found / len(rows) > max(least, 2 * plain / len(rows)), (found, plain)

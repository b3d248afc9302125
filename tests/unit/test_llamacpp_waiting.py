"""What waits for decoders, and what they had lately."""

from __future__ import annotations

import random

import numpy as np

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
        most = max(common, default=0) // 4 // BLOCK * BLOCK
        assert tree.shared(prompt) == ({7: most} if most else {})
        if there and chance.random() < 0.45:
            tree.remove(there.pop(chance.randrange(len(there))), 7)
        else:
            tree.add(prompt, 7)
            there.append(prompt)
    for prompt in there:
        tree.remove(prompt, 7)
    assert tree._root.edges == {}


def test_only_the_latest_of_each_decoder_are_remembered() -> None:
    """A prompt is forgotten once its decoder got as many others as it has slots; one that embeds remembers nothing."""
    seen = Seen(3, 2)
    prompts = [tokens(*[number] * 40) for number in range(3)]
    for prompt in prompts:
        seen.add(1, prompt)
    seen.add(2, prompts[0] + prompts[2])
    assert [seen.shared(prompt) for prompt in prompts] == [{2: 32}, {1: 32}, {1: 32}]
    seen.clear(1)
    assert [seen.shared(prompt) for prompt in prompts] == [{2: 32}, {}, {}]
    nothing = Seen(1, 0)
    nothing.add(0, prompts[0])
    assert nothing.shared(prompts[0]) == {}


def test_lanes_are_kept_apart_and_in_order() -> None:
    """The more urgent lane comes first; each keeps the order in which its runs came, without those that were taken out."""
    waiting = Waiting()
    for run, lane in enumerate([STANDARD, EXPEDITED, INTERACTIVE, STANDARD, INTERACTIVE]):
        waiting.add(begin(run, b"", lane))
    assert waiting.first().run == 2
    assert waiting.discard(2)
    assert not waiting.discard(2)
    assert [[one.run for one in lane] for lane in waiting.next()] == [[4], [1], [0, 3]]
    assert [waiting.discard(run) for run in range(5)] == [True, True, False, True, True]
    assert not waiting

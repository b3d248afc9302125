"""Rows that must be exact, beside others that needn't."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny_gguf

from engine.llamacpp import policy
from engine.llamacpp.layouts import EXACT
from engine.llamacpp.loop import Loop
from engine.llamacpp.messages import Begin, Ended, Sampling
from engine.llamacpp.model import Model

SLOTS = 4
STANDARD, INTERACTIVE = 3, 1


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """Give a model with a few slots; every test leaves them free."""
    model = Model(tiny_gguf.tiny_gguf(), slots=SLOTS, context_length=tiny_gguf.CONTEXT, batch_tokens=192, threads=1)
    yield model
    model.close()


def begin(run: int, tokens: list[int], **changes: Any) -> Begin:
    """Make a run."""
    settings: dict[str, Any] = {"max_output": 10, "stops": [], "sampling": Sampling(), "lane": STANDARD, "stream": False}
    return Begin(run=run, tokens=np.array(tokens, np.int32).tobytes(), **settings | changes)


def finish(loop: Loop, begins: list[Begin], chance: random.Random | None = None) -> dict[int, Ended]:
    """Run all of them to the end, all at once or, by chance, one now and one then."""
    found: dict[int, Ended] = {}
    coming = begins[::-1]
    while coming or not loop.idle:
        loop.accept([coming.pop() for _ in range(len(coming) if chance is None else min(len(coming), chance.randrange(3)))])
        for event in loop.step():
            if isinstance(event, Ended):
                assert event.run not in found
                found[event.run] = event
    return found


def rows(chance: random.Random, count: int) -> list[list[int]]:
    """Make prompts of a few beginnings."""
    heads = [[chance.randrange(256) for _ in range(size)] for size in (5, 128, 200, 300)]
    return [[*chance.choice(heads), *(chance.randrange(256) for _ in range(chance.randint(1, 60)))] for _ in range(count)]


@pytest.mark.parametrize("seed", range(3))
def test_exact_rows_are_the_same_in_any_company(model: Model, seed: int) -> None:
    """Text and log-probabilities are the same to the last bit alone, and among rows of all kinds that come at any time."""
    chance = random.Random(seed)
    must = [
        begin(run, tokens, exact=True, logprobs=2, sampling=Sampling(temperature=run % 2, seed=run))
        for run, tokens in enumerate(rows(chance, 8))
    ]
    prompts = [*rows(chance, 10), *(np.frombuffer(one.tokens, np.int32).tolist() for one in must)]
    others = [
        begin(100 + number, tokens, lane=chance.choice([INTERACTIVE, STANDARD, STANDARD]), max_output=chance.randint(1, 20))
        for number, tokens in enumerate(prompts)
    ]
    alone = {one.run: finish(Loop(model, policy.AUTO), [one])[one.run] for one in must}
    mixed = [*must, *others]
    chance.shuffle(mixed)
    found = finish(Loop(model, policy.AUTO), mixed, chance)
    assert found.keys() == {one.run for one in mixed}
    assert {end.finish for end in found.values()} <= {"stop", "length"}
    for run, expected in alone.items():
        assert (found[run].text, found[run].chances) == (expected.text, expected.chances)


@pytest.mark.parametrize("wanted", [True, False])
def test_neither_kind_waits_for_ever(model: Model, wanted: bool) -> None:
    """A row of one kind runs though ever more of the other come, and ever more that somebody waits for."""
    loop = Loop(model, policy.AUTO)
    loop.accept([begin(run, [run, 7, 8], exact=not wanted) for run in range(3 * SLOTS)])
    loop.step()
    loop.accept([begin(1_000, [9, 9, 9], exact=wanted)])
    ended = False
    for step in range(300):
        loop.accept([begin(2_000 + step, [step % 256, 5], exact=not wanted)])
        loop.accept([begin(5_000 + step, [3], lane=INTERACTIVE, max_output=1)])
        ended = ended or any(isinstance(event, Ended) and event.run == 1_000 for event in loop.step())
        if ended:
            break
    assert ended


def test_an_urgent_row_never_waits_for_a_layout(model: Model) -> None:
    """It joins whatever runs; when the layout changes under it, it goes on where it was, and says as much."""
    loop = Loop(model, policy.AUTO)
    loop.accept([begin(0, [1, 2, 3], max_output=6), begin(1, [4, 5, 6], exact=True, max_output=6)])
    loop.step()
    assert not model.layout.exact
    loop.accept([begin(2, [7, 8, 9], lane=INTERACTIVE, max_output=30)])
    seen, ends = [], dict[int, Ended]()
    while not loop.idle:
        running = loop.running
        ends |= {event.run: event for event in loop.step() if isinstance(event, Ended)}
        seen.append((model.layout == EXACT, running))
    assert ends.keys() == {0, 1, 2}
    assert any(exact and running == 2 for exact, running in seen)  # it and the exact one, side by side
    assert ends[2].output_tokens == 30 or ends[2].finish == "stop"


def test_a_layout_that_was_chosen_comes_back(model: Model) -> None:
    """Between rows that must be exact, those that needn't run in the layout of the settings."""
    loop = Loop(model, "plain")
    used = []
    for run, exact in enumerate([False, True, False]):
        finish(loop, [begin(run, [1, 2, 3], exact=exact)])
        used.append(model.layout)
    assert used == [policy.LAYOUTS["plain"], EXACT, policy.LAYOUTS["plain"]]


def test_those_somebody_waits_for_leave_the_slow_layout_when_nobody_needs_it(model: Model) -> None:
    """Once no row is left that must be exact, the next one goes on in the layout of the settings, however many come."""
    loop = Loop(model, "plain")
    finish(loop, [begin(0, [1, 2, 3], exact=True)])
    assert model.layout == EXACT
    finish(loop, [begin(1, [4, 5, 6], lane=INTERACTIVE)])
    assert model.layout == policy.LAYOUTS["plain"]

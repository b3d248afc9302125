"""Runs that must say the same."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from engine.llamacpp.messages import Begin, Delta, Ended, Sampling
from engine.llamacpp.twins import Remembered, Twins


class Pool:
    """A pool that keeps what it gets, and tells of what it is asked to stop at once."""

    def __init__(self, twins: Twins) -> None:
        self.twins = twins
        self.begun: list[int] = []

    def submit(self, begins: Iterable[Begin]) -> None:
        """Keep runs."""
        self.begun += [begin.run for begin in begins]

    def cancel(self, runs: Iterable[int]) -> None:
        """End runs that it has."""
        for run in set(runs) & set(self.begun):
            self.end(run, "cancelled")

    def end(self, run: int, finish: str = "stop") -> None:
        """Say that a run has ended."""
        self.begun.remove(run)
        self.twins.told(Ended(run=run, text=f"said by {run}", finish=finish, output_tokens=3, run_ms=1))


class Told:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.ends: dict[int, Ended] = {}
        self.missing: list[int] = []

    def told(self, event: Delta | Ended) -> None:
        """Keep an end; a second one is an error."""
        assert isinstance(event, Ended)
        assert event.run not in self.ends
        self.ends[event.run] = event

    def lost(self, runs: list[int], how: str) -> None:
        """Keep what was lost."""
        self.missing += runs

    def gave_up(self, reason: str) -> None:
        """Nobody gives up here."""
        raise AssertionError(reason)


def made() -> tuple[Twins, Pool, Told]:
    """Give twins between a pool and a listener."""
    told = Told()
    twins = Twins(told)
    twins.pool = pool = Pool(twins)
    return twins, pool, told


def begin(run: int, prompt: int = 0, **changes: Any) -> Begin:
    """Make a greedy run."""
    settings: dict[str, Any] = {"max_output": 24, "stops": [], "sampling": Sampling(), "lane": 3, "stream": False}
    return Begin(run=run, tokens=bytes([prompt, 0, 0, 0] * 5), **settings | changes)


def test_identical_greedy_runs_are_run_once() -> None:
    """All are told what the one said, those that come when it has ended, too; the others' prompts count as cached."""
    twins, pool, told = made()
    twins.submit([begin(1), begin(2), begin(3, sampling=Sampling(seed=8, top_p=0.5))])
    assert pool.begun == [1]
    pool.end(1)
    assert {(end.text, end.cached_tokens) for end in told.ends.values()} == {("said by 1", 0), ("said by 1", 5)}
    assert told.ends[2].cached_tokens == told.ends[3].cached_tokens == 5
    twins.submit([begin(4, lane=2, sampling=Sampling(seed=9))])
    assert pool.begun == []
    assert (told.ends[4].text, told.ends[4].cached_tokens, told.ends[4].run_ms) == ("said by 1", 5, 0)


def test_what_nobody_finished_saying_is_run_again() -> None:
    """Only whole answers are remembered, none that must be exact; and somebody who waits for an answer gets one of his own."""
    for finish in ("cancelled", "error", "stuck"):
        twins, pool, _ = made()
        twins.submit([begin(1)])
        pool.end(1, finish)
        twins.submit([begin(2)])
        assert pool.begun == [2]
    pool.end(2, "length")
    twins.submit([begin(3), begin(4, lane=1), begin(5, exact=True), begin(6, prompt=1)])
    assert pool.begun == [4, 5, 6]
    pool.end(5)
    pool.end(4)
    twins.submit([begin(7, exact=True), begin(8, lane=1)])
    assert pool.begun == [6, 7, 8]


def test_what_was_said_is_remembered_within_bounds() -> None:
    """Of all that is said the latest is kept, what was asked for again as if it were new; what is too large is not kept at all."""
    ended = [Ended(run=run, text="x" * 100, finish="stop", output_tokens=3, run_ms=1) for run in range(5)]
    keys = [bytes([run]) for run in range(5)]
    remembered = Remembered(1_000)
    for key, end in zip(keys[:3], ended, strict=False):
        remembered.add(key, end)
        remembered.add(key, end)
    assert remembered.get(keys[0]) == ended[0]
    remembered.add(keys[3], ended[3])
    remembered.add(keys[4], Ended(run=4, text="x" * 1_000, finish="stop", output_tokens=3, run_ms=1))
    remembered.add(keys[0], ended[0])
    assert [remembered.get(key) for key in keys] == [ended[0], None, *ended[2:4], None]
    for key, end in zip(keys, ended, strict=True):
        remembered.add(key, end)
    assert [remembered.get(key) for key in keys] == [None, None, *ended[2:]]


def test_what_may_differ_is_run() -> None:
    """Another prompt, limit, stop, bias, grammar, chance, more urgency, or being watched make a run of its own."""
    twins, pool, _ = made()
    others = [
        begin(2, prompt=1), begin(3, max_output=5), begin(4, stops=[b"x"]), begin(5, sampling=Sampling(logit_bias={1: 1.0})),
        begin(6, grammar="root ::= [a]"), begin(7, sampling=Sampling(temperature=1.0)), begin(8, lane=1), begin(9, stream=True),
        begin(10, logprobs=2),
    ]  # fmt: skip
    twins.submit([begin(1), *others])
    assert pool.begun == list(range(1, 11))


def test_a_run_that_others_follow_goes_on_when_it_is_cancelled() -> None:
    """It is told as cancelled, and its followers get what it says; without followers it is stopped."""
    twins, pool, told = made()
    twins.submit([begin(1), begin(2), begin(3)])
    twins.cancel([1, 2])
    assert pool.begun == [1]
    assert {run: end.finish for run, end in told.ends.items()} == {1: "cancelled", 2: "cancelled"}
    twins.cancel([1])
    pool.end(1)
    assert told.ends[3].text == "said by 1"
    twins.submit([begin(4, prompt=1), begin(5, prompt=1)])
    twins.cancel([4, 5])
    assert pool.begun == []
    assert told.ends[5].finish == "cancelled"


def test_nobody_follows_a_run_that_is_being_stopped() -> None:
    """What comes after a cancellation is run, though the pool hasn't ended the first yet."""
    twins, pool, told = made()
    twins.submit([begin(1)])
    pool.begun, kept = [], pool.begun
    twins.cancel([1])
    pool.begun = kept
    twins.submit([begin(2)])
    assert pool.begun == [1, 2]
    pool.end(1, "cancelled")
    pool.end(2)
    assert (told.ends[1].finish, told.ends[2].finish) == ("cancelled", "stop")


def test_a_lost_run_takes_its_followers_along() -> None:
    """Everybody who waits for a run hears that it was lost; who was cancelled before doesn't hear it again."""
    twins, pool, told = made()
    twins.submit([begin(1), begin(2), begin(3), begin(4, prompt=1)])
    twins.cancel([1])
    pool.begun.remove(1)
    twins.lost([1], "signal SIGKILL")
    assert sorted(told.missing) == [2, 3]
    pool.end(4)
    twins.submit([begin(5)])
    assert pool.begun == [5]


def test_every_run_ends_once() -> None:
    """Whatever comes, is cancelled, ends and is lost in any order: each run is told exactly once, and nothing is kept."""
    for seed in range(60):
        twins, pool, told = made()
        chance = random.Random(seed)
        runs = 0
        for _ in range(60):
            act = chance.random()
            if act < 0.5:
                runs += 1
                prompt = runs // 5 + chance.randrange(3)
                twins.submit([begin(runs, prompt=prompt, lane=chance.choice([1, 3]), stream=chance.random() < 0.1)])
            elif act < 0.7 and runs:
                gone = told.ends.keys() | set(told.missing)
                twins.cancel([run for run in [chance.randint(1, runs)] if run not in gone])
            elif act < 0.9 and pool.begun:
                pool.end(chance.choice(pool.begun))
            elif pool.begun:
                lost = chance.choice(pool.begun)
                pool.begun.remove(lost)
                twins.lost([lost], "how")
        for run in list(pool.begun):
            pool.end(run)
        assert sorted([*told.ends, *told.missing]) == list(range(1, runs + 1))
        assert [*twins._groups, *twins._leads, *twins._follows] == []

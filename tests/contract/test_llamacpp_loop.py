"""The step loop, on a real model of a few kilobytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny_gguf

from engine.llamacpp import policy
from engine.llamacpp.loop import Loop
from engine.llamacpp.messages import Begin, Cancel, Delta, Ended, FromDecoder, Sampling
from engine.llamacpp.model import Model
from engine.llamacpp.policy import Layout

SLOTS = 6


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """Give a model with six slots; every test leaves them free."""
    model = Model(tiny_gguf.tiny_gguf(), slots=SLOTS, context_length=tiny_gguf.CONTEXT, batch_tokens=192, threads=1)
    yield model
    model.close()


def begin(run: int, tokens: list[int] | str, **changes: Any) -> Begin:
    """Make a run of 24 greedy tokens at most, unless told otherwise."""
    if isinstance(tokens, str):
        tokens = list(tokens.encode())
    settings: dict[str, Any] = {"max_output": 24, "stops": [], "sampling": Sampling(), "lane": 3, "stream": False}
    return Begin(run=run, tokens=np.array(tokens, np.int32).tobytes(), **settings | changes)


def finish(loop: Loop, begins: list[Begin]) -> dict[int, Ended]:
    """Run all of them to the end."""
    loop.accept(begins)
    return ends(events(loop))


def events(loop: Loop) -> list[FromDecoder]:
    """Step until nothing is left to do."""
    told: list[FromDecoder] = []
    while not loop.idle:
        assert loop.running <= SLOTS
        told += loop.step()
    return told


def ends(told: list[FromDecoder]) -> dict[int, Ended]:
    """Pick the ends out, each run's exactly one."""
    found = [event for event in told if isinstance(event, Ended)]
    assert len({event.run for event in found}) == len(found)
    return {event.run: event for event in found}


def prompts(count: int, longest: int = 300) -> list[list[int]]:
    """Make prompts of all lengths."""
    chance = random.Random(5)
    return [[chance.randrange(256) for _ in range(chance.randint(1, longest))] for _ in range(count)]


def test_together_as_alone(model: Model) -> None:
    """48 rows in 6 slots, coming and going, say token for token what each says alone; so they do in the reverse order."""
    begins = [begin(run, tokens) for run, tokens in enumerate(prompts(48))]
    alone = {run: finish(Loop(model), [one])[run] for run, one in enumerate(begins)}
    together = finish(Loop(model), begins)
    backwards = finish(Loop(model), begins[::-1])
    for run, expected in alone.items():
        for other in (together[run], backwards[run]):
            assert (other.text, other.finish, other.output_tokens) == (expected.text, expected.finish, expected.output_tokens)


def sharing(count: int, prefixes: list[int]) -> list[list[int]]:
    """Make prompts that begin with one of a few prefixes of these lengths, or with each other."""
    chance = random.Random(9)
    heads = [[chance.randrange(256) for _ in range(length)] for length in prefixes]
    made: list[list[int]] = []
    for _ in range(count):
        head = chance.choice([*heads, *made[-3:]])
        made.append([*head, *(chance.randrange(256) for _ in range(chance.randint(0, 60)))][:470] or [1])
    return made


@pytest.mark.parametrize(("flash", "exact", "least"), [(True, False, 0.35), (False, False, 0.45), (False, True, 0.3)])
def test_reused_prefixes_change_no_text(model: Model, flash: bool, exact: bool, least: float) -> None:
    """60 rows that share prefixes of all lengths say token for token what each says with nothing in the cache; much is reused."""
    assert model.lay_out(Layout(flash=flash, exact=exact))
    begins = [begin(run, tokens) for run, tokens in enumerate(sharing(60, [20, 63, 100, 128, 150, 257, 300, 384]))]
    alone = {run: finish(Loop(model), [one])[run] for run, one in enumerate(begins)}
    loop = Loop(model)
    together = finish(loop, begins)
    again = finish(loop, begins[::-1])
    model.lay_out(Layout())
    for run, expected in alone.items():
        assert expected.cached_tokens == 0
        for other in (together[run], again[run]):
            assert (other.text, other.output_tokens) == (expected.text, expected.output_tokens), run
            assert 0 <= other.cached_tokens < len(begins[run].tokens) // 4
    share = sum(end.cached_tokens for end in together.values()) / sum(len(one.tokens) // 4 for one in begins)
    assert share > least


def test_the_layout_changes_between_rows_and_loses_none(model: Model) -> None:
    """Short rows, long ones, sharing ones, and short ones again: each runs in the layout that suits it, and all are answered."""
    loop = Loop(model, policy.AUTO)
    chance = random.Random(2)
    kinds = {
        "short": [[chance.randrange(256) for _ in range(20)] for _ in range(9)],
        "long": [[chance.randrange(256) for _ in range(300)] for _ in range(9)],
        "sharing": [[*range(1, 256), *range(100), chance.randrange(256), 3] for _ in range(9)],
    }
    used, run = [], 0
    told: dict[int, Ended] = {}
    for kind in ("short", "long", "sharing", "short"):
        told |= finish(loop, [begin(run + place, tokens) for place, tokens in enumerate(kinds[kind])])
        run += 9
        used.append(model.layout)
    assert sorted(told) == list(range(run))
    assert {end.finish for end in told.values()} <= {"stop", "length"}
    assert used == [policy.LAYOUTS[name] for name in ("flash", "plain", "unified", "flash")]
    model.lay_out(Layout())


def test_rows_that_only_began_begin_again_in_a_better_layout(model: Model) -> None:
    """The first row of a batch comes alone; when the others show what they share, it doesn't keep them waiting."""
    loop = Loop(model, policy.AUTO)
    head = [*range(256), *range(100)]
    loop.accept([begin(0, [*head, 1, 2, 3])])
    loop.step()
    assert loop.running == 1
    loop.accept([begin(run, [*head, run, 2, 3]) for run in range(1, 9)])
    loop.step()
    assert model.layout == policy.LAYOUTS["unified"]
    told = ends(events(loop))
    assert sorted(told) == list(range(9))
    assert [end.cached_tokens for end in told.values()].count(0) == 1
    model.lay_out(Layout())


def test_an_urgent_row_does_not_wait_for_a_change_of_layout(model: Model) -> None:
    """While rows run in the old layout, others wait for their end, but an interactive one joins them."""
    loop = Loop(model, policy.AUTO)
    keep_on = Sampling(logit_bias=_ascii_only())
    loop.accept([begin(run, "short", max_output=60, sampling=keep_on) for run in range(2)])
    loop.step()
    loop.accept([begin(run, [run] * 400) for run in range(10, 14)])
    loop.step()
    assert loop.running == 2
    loop.accept([begin(99, "now", lane=1)])
    told = loop.step()
    assert loop.running > 2
    assert len(ends([*told, *events(loop)])) == 7
    model.lay_out(Layout())


def test_a_shared_prefix_is_evaluated_once(model: Model) -> None:
    """Rows that come together with one prefix wait for the first to evaluate it, in any of the slots, and so do later ones."""
    assert model.lay_out(Layout(flash=False))
    head = [7, *range(250)]
    loop = Loop(model)
    told = finish(loop, [begin(run, [*head, run, 1, 2, 3]) for run in range(20)])
    assert [end.cached_tokens for end in told.values()].count(0) == 1
    assert sum(end.cached_tokens for end in told.values()) == 19 * len(head)
    later = finish(loop, [begin(30, [*head, 99, 98]), begin(31, [*head, 97, 96])])
    assert [end.cached_tokens for end in later.values()] == [len(head)] * 2
    model.lay_out(Layout())


def test_a_later_turn_reuses_the_earlier_ones(model: Model) -> None:
    """A conversation that grows finds all of its past in the slot of the turn before, the answer too."""
    assert model.lay_out(Layout(flash=False))
    loop = Loop(model)
    turn = [random.Random(1).randrange(256) for _ in range(100)]
    only_bytes = Sampling(logit_bias=dict.fromkeys(range(256, tiny_gguf.VOCABULARY), -100.0))
    for run in range(3):
        ended = finish(loop, [begin(run, turn, sampling=only_bytes, stream=False, max_output=20, logprobs=0)])[run]
        # The last token was never evaluated.
        expected = max(0, len(turn) - 12 - 1) if run else 0
        assert ended.cached_tokens == expected
        turn = [*turn, *(chance.piece[0] for chance in ended.chances), *range(12)]
    model.lay_out(Layout())


def test_sampled_rows_repeat_beside_others(model: Model) -> None:
    """A row with a seed says the same alone and beside others; two seeds differ."""
    sampling = Sampling(temperature=1.0, seed=11)
    alone = finish(Loop(model), [begin(0, "once upon", sampling=sampling)])[0].text
    others = [begin(run, tokens, sampling=Sampling(temperature=1.0, seed=run)) for run, tokens in enumerate(prompts(12), 1)]
    together = finish(Loop(model), [*others[:5], begin(0, "once upon", sampling=sampling), *others[5:]])
    assert together[0].text == alone
    assert finish(Loop(model), [begin(0, "once upon", sampling=Sampling(temperature=1.0, seed=12))])[0].text != alone


def test_slots_are_never_exceeded_and_all_used(model: Model) -> None:
    """With more rows than slots, every slot is in use after a step and never more."""
    loop = Loop(model)
    loop.accept([begin(run, "hello") for run in range(20)])
    loop.step()
    assert loop.running == SLOTS
    assert len(ends(events(loop))) == 20


def test_decoding_goes_on_while_a_long_prompt_is_prefilled(model: Model) -> None:
    """A running row gets a token in every step, however long the prompt beside it."""
    loop = Loop(model)
    loop.accept([begin(0, "short", stream=True, max_output=10, stops=[])])
    loop.step()
    loop.accept([begin(1, [7] * 500), begin(2, [8] * 500)])
    for _ in range(9):
        before = loop.running
        loop.step()
        assert before == 3 or loop.running <= 3
    # Ten tokens in ten steps: the row has ended although the prompts had 1,000 tokens.
    assert loop.running == 2
    loop.accept([Cancel(1), Cancel(2)])
    events(loop)


def test_the_urgent_lane_goes_first(model: Model) -> None:
    """Of those that wait, an interactive row gets the next free slot."""
    loop = Loop(model)
    order = [begin(run, "batch", max_output=3) for run in range(12)] + [begin(99, "urgent", max_output=3, lane=1)]
    loop.accept(order[:SLOTS])
    loop.step()
    loop.accept(order[SLOTS:])
    finished = [event.run for event in events(loop) if isinstance(event, Ended)]
    assert finished.index(99) < SLOTS + 6
    assert set(finished[:SLOTS]) == set(range(SLOTS))


def test_deltas_join_to_the_whole_text(model: Model) -> None:
    """What is streamed and what the end brings are together what isn't streamed."""
    whole = finish(Loop(model), [begin(0, "stream me", max_output=60)])[0]
    loop = Loop(model)
    loop.accept([begin(0, "stream me", max_output=60, stream=True)])
    told = events(loop)
    deltas = [event.text for event in told if isinstance(event, Delta)]
    assert len(deltas) > 5
    assert "".join(deltas) + ends(told)[0].text == whole.text
    assert "\ufffd" in whole.text


def test_max_output_is_kept(model: Model) -> None:
    """A row ends with `length` after as many tokens as it may have; one is a possible number."""
    for limit in (1, 2, 17):
        ended = finish(Loop(model), [begin(0, "count", max_output=limit)])[0]
        assert (ended.finish, ended.output_tokens) == ("length", limit)


def test_end_of_generation_stops(model: Model) -> None:
    """Any token that ends a turn stops the row, counts as output and adds no text."""
    for token in (tiny_gguf.EOS, tiny_gguf.IM_END):
        ended = finish(Loop(model), [begin(0, "stop", sampling=Sampling(logit_bias={token: 100.0}))])[0]
        assert (ended.finish, ended.output_tokens, ended.text) == ("stop", 1, "")


def test_control_tokens_add_no_text_and_user_defined_ones_do(model: Model) -> None:
    """A control token in the middle of an answer isn't shown; `<think>` is, because its text means something to the reader."""
    shown = {tiny_gguf.IM_START: "", tiny_gguf.THINK: "<think>"}
    for token, text in shown.items():
        ended = finish(Loop(model), [begin(0, "x", max_output=1, sampling=Sampling(logit_bias={token: 100.0}))])[0]
        assert ended.text == text


def test_stop_strings_end_the_text_over_token_borders(model: Model) -> None:
    """A stop string that spans tokens ends the row before it; its tokens count."""
    say = {"max_output": 40, "sampling": Sampling(logit_bias=_ascii_only())}
    whole = finish(Loop(model), [begin(0, "say", **say)])[0].text
    stop = whole[10:14]
    ended = finish(Loop(model), [begin(0, "say", **say, stops=[b"never said", stop.encode()])])[0]
    assert ended.finish == "stop"
    assert ended.text == whole[: whole.index(stop)]
    assert len(ended.text) < ended.output_tokens <= len(ended.text) + len(stop)


def _ascii_only() -> dict[int, float]:
    return {token: -100.0 for token in range(tiny_gguf.VOCABULARY) if not 33 <= token < 127}


def test_a_cancelled_row_ends_at_the_next_step(model: Model) -> None:
    """Running and waiting rows end once, as cancelled, and their slots go to others; unknown runs are ignored."""
    loop = Loop(model)
    loop.accept([begin(run, "go on", max_output=400) for run in range(SLOTS + 2)])
    loop.step()
    loop.accept([Cancel(run) for run in (*range(SLOTS + 2), 77, 0)])
    told = ends(loop.step())
    assert {run: end.finish for run, end in told.items()} == dict.fromkeys(range(SLOTS + 2), "cancelled")
    assert loop.running == 0
    assert finish(loop, [begin(9, "again", max_output=2)])[9].finish in ("length", "stop")


def test_a_context_may_be_filled_to_its_end(model: Model) -> None:
    """A prompt and an answer that together fill the context are fine."""
    ended = finish(Loop(model), [begin(0, [65] * 500, max_output=12, sampling=Sampling(logit_bias=_ascii_only()))])[0]
    assert (ended.finish, ended.output_tokens) == ("length", 12)

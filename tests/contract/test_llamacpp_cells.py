"""Slots that share fewer cells than they could fill: who is let in, who pauses, and that nobody's text shows it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import tiny_gguf
from llamacpp_parting import parting, run
from llamacpp_running import settings, started
from test_llamacpp_loop import begin

from engine.llamacpp import policy, schema
from engine.llamacpp.backend import create
from engine.llamacpp.cells import Cells
from engine.llamacpp.loop import Loop
from engine.llamacpp.messages import Cancel, Ended, Sampling
from engine.llamacpp.model import Batch, Cache, KvFull, Model
from engine.llamacpp.policy import Layout
from engine.llamacpp.sampling import Logits
from haywain.errors import SettingsError

CELLS = 640


LAST_BITS = 0.05
"""between log-probabilities of 32-bit weights: keys and values are rounded to 16 bits, which makes a last bit a larger one"""


def test_rows_that_pause_say_what_they_say_alone() -> None:
    """Of 30 rows that want four times the cells there are some pause; every token is as likely as it is alone, to the last bits.

    So a row says what it says alone, unless a draw, or two tokens that are as good, lies so near the edge.
    """
    chance = random.Random(3)
    shared = [chance.randrange(256) for _ in range(90)]
    kinds: list[dict[str, Any]] = [
        {"sampling": Sampling()},
        {"sampling": Sampling(temperature=1.0, seed=4, frequency_penalty=0.5, repeat_penalty=1.1)},
        {"sampling": Sampling(temperature=0.8, seed=9), "grammar": schema.ANY_JSON},
    ]
    begins = []
    for number in range(30):
        own = [chance.randrange(256) for _ in range(chance.randint(1, 120))]
        limits = {"max_output": chance.choice([8, 150, 250]), "stream": number % 5 == 0, "logprobs": tiny_gguf.VOCABULARY}
        begins.append(begin(number, (shared if number % 2 else []) + own, **limits, **kinds[number % 3]))
    model = Model(tiny_gguf.tiny_gguf(), slots=6, context_length=512, batch_tokens=192, threads=1, cache=Cache(CELLS))
    assert model.overcommitted
    alone = {one.run: run(Loop(model), [one])[one.run] for one in begins}
    loop = Loop(model, policy.AUTO)
    together = run(loop, begins)
    model.close()
    assert loop.pauses > 3
    parted = [number for number, said in together.items() if parting(said, alone[number], LAST_BITS, tiny_gguf.VOCABULARY) >= 0]
    assert len(parted) < 10
    assert sum(said.end.cached_tokens for said in together.values() if said.end is not None) > 0


def test_the_oldest_and_the_urgent_go_on() -> None:
    """Whoever came first, of the most urgent lane, is never the one that pauses; who is cancelled while it pauses ends."""
    model = Model(tiny_gguf.tiny_gguf(), slots=3, context_length=512, batch_tokens=192, threads=1, cache=Cache(512))
    loop = Loop(model)
    many = {"max_output": 400, "sampling": Sampling(logit_bias={tiny_gguf.EOS: -100, tiny_gguf.IM_END: -100})}
    loop.accept([begin(1, "standard, the first", **many), begin(2, "second", **many), begin(3, "urgent", lane=1, **many)])
    told = []
    while not loop.pauses:
        told += loop.step()
    loop.accept([Cancel(2)])
    while not loop.idle:
        told += loop.step()
    model.close()
    order = [event.run for event in told if isinstance(event, Ended)]
    assert order.index(3) < order.index(1)
    assert {event.run: event.finish for event in told if isinstance(event, Ended)} == {1: "length", 2: "cancelled", 3: "length"}


def test_a_full_cache_is_told_before_the_library_is_asked() -> None:
    """A batch without room leaves everything as it was; what slots share counts once."""
    model = Model(tiny_gguf.tiny_gguf(), slots=3, context_length=256, batch_tokens=192, threads=1, cache=Cache(300))
    for slot, count in ((0, 150), (1, 100)):
        model.batch.clear()
        model.batch.add(slot, np.arange(count, dtype=np.int32), 0, logits=True)
        model.decode(model.batch)
    model.copy(0, 2, 120)
    assert (model.free_cells, model.used_by([0, 2]), model.used_by([1, 2])) == (50, 150, 220)
    model.batch.clear()
    model.batch.add(1, np.arange(60, dtype=np.int32), 100, logits=True)
    with pytest.raises(KvFull, match="60 tokens don't fit 50 free cells"):
        model.decode(model.batch)
    assert model.length(1) == 100
    model.forget(0)
    assert model.free_cells == 80
    model.decode(model.batch)
    with pytest.raises(ValueError, match="unified"):
        model.lay_out(Layout())
    model.close()


def test_cells_are_counted_as_sets() -> None:
    """Whatever slots take, share and drop, in any order, the count is that of a model with sets."""
    chance = random.Random(1)
    cells = Cells(100, 5)
    held: list[list[int]] = [[] for _ in range(5)]
    names = iter(range(10**6))
    for _ in range(2_000):
        slot, other = chance.sample(range(5), 2)
        match chance.randrange(3):
            case 0:
                count = min(chance.randint(1, 20), cells.free)
                cells.grow(slot, count)
                held[slot] += [next(names) for _ in range(count)]
            case 1:
                keep = chance.randint(0, len(held[slot]))
                cells.cut(slot, keep)
                del held[slot][keep:]
            case _:
                keep = chance.randint(0, len(held[other]))
                cells.share(other, slot, keep)
                held[slot] = held[other][:keep]
        assert cells.free == 100 - len(set().union(*held))
        assert cells.used_by([0, 3]) == len({*held[0], *held[3]})
    with pytest.raises(ValueError, match="are free"):
        cells.grow(0, 101)


@pytest.mark.parametrize(
    ("free", "new", "running", "admitted"),
    [
        (100, (90, 10), [], True),
        (100, (91, 10), [], False),
        (1_000, (100, 5_000), [(0, 5_000)] * 14, False),
        (1_000, (200, 5_000), [(0, 5_000)] * 12, False),
        (1_000, (200, 5_000), [(0, 5_000)] * 5, True),
        (1_000, (200, 5_000), [(600, 5_000)], True),
        (1_000, (200, 5_000), [(700, 5_000)], False),
    ],
)
def test_who_is_let_in(free: int, new: tuple[int, int], running: list[tuple[int, int]], admitted: bool) -> None:
    """Prompts count whole, of answers the usual length."""
    assert policy.admits(free, new, running) == admitted


async def test_a_long_context_needs_no_memory_for_every_slot() -> None:
    """With `kv_tokens`, sixteen slots of 512 tokens run in 600 cells; what can't be is refused in one line."""
    async with started(tiny_gguf.tiny_gguf(), workers=1, slots=0, kv_tokens=600) as running:
        assert (running.backend.slots, running.models[0].context_length) == (16, 512)
        results = await running.ended(*[running.begin(f"{number} " * 40, max_tokens=60) for number in range(24)])
        assert [result.status_code for result in results] == [200] * 24
    for changes, says in (({"kv_tokens": 300}, "context_length, 512"), ({"kv_tokens": 600, "layout": "flash"}, "unified")):
        with pytest.raises(SettingsError, match=says):
            create(settings(tiny_gguf.tiny_gguf(), slots=16, **changes))


class Scarce(Model):
    """A model whose library finds no room now and then, whatever was counted."""

    chance = random.Random(1)
    loop: Loop

    def decode(self, batch: Batch) -> Logits:
        """Refuse one batch in five while somebody may pause for it."""
        if self.loop.running > 1 and self.chance.random() < 0.2:
            raise KvFull("no room")
        return super().decode(batch)


def test_a_library_without_room_costs_a_pause() -> None:
    """When the library finds no room for what was counted to fit, the youngest pauses, wherever it is; all say what they would."""
    chance = random.Random(2)
    rows = [[chance.randrange(256) for _ in range(chance.randint(1, 150))] for _ in range(20)]
    said = []
    for kind in (Scarce, Model):
        model = kind(tiny_gguf.tiny_gguf(), slots=4, context_length=512, batch_tokens=600, threads=1, cache=Cache(CELLS))
        loop = Loop(model, policy.AUTO)
        if isinstance(model, Scarce):
            model.loop = loop
        said.append(run(loop, [begin(number, tokens, logprobs=tiny_gguf.VOCABULARY) for number, tokens in enumerate(rows)]))
        assert (loop.pauses > 20) == (kind is Scarce)
        model.close()
    assert sum(parting(one, said[1][number], LAST_BITS, 5) >= 0 for number, one in said[0].items()) < 10


def test_what_is_cold_goes_from_its_end() -> None:
    """Room is made by the last tokens of the slot that was used longest ago: a beginning lives as long as that is enough."""
    model = Model(tiny_gguf.tiny_gguf(), slots=4, context_length=512, batch_tokens=192, threads=1, cache=Cache(600))
    loop = Loop(model)
    heads = [[head, *range(150)] for head in range(2)]
    run(loop, [begin(head, [*heads[head], *([9] * 130)], max_output=1) for head in range(2)])
    run(loop, [begin(2, [7] * 100, max_output=1)])  # 62 more than there are
    found = run(loop, [begin(3 + head, [*heads[head], 8, 8], max_output=1) for head in range(2)])
    model.close()
    assert [said.end.cached_tokens for said in found.values() if said.end is not None] == [151, 151]

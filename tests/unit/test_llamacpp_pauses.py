"""The step loop over a model that is arithmetic: what a row says follows from its own tokens, however often it pauses."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple, cast

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.llamacpp import policy
from engine.llamacpp.cells import Cells
from engine.llamacpp.loop import Loop
from engine.llamacpp.messages import Begin, Cancel, Delta, Ended, Sampling
from engine.llamacpp.model import Model
from engine.llamacpp.policy import Layout
from engine.llamacpp.sampling import Logits

CONTEXT = 200
LETTERS = 30
"""tokens that are a letter; the next one ends a text"""


class Letters:
    """A vocabulary."""

    def ends(self, token: int) -> bool:
        """Tell whether a token ends a text."""
        return token == LETTERS

    def piece(self, token: int) -> bytes:
        """Write a letter."""
        return b"" if token == LETTERS else bytes([65 + token])

    written = piece


class Tokens:
    """A batch: tokens of slots, some with logits wanted."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clear()

    def clear(self) -> None:
        """Empty it."""
        self.parts: list[tuple[int, list[int], int, bool]] = []

    @property
    def size(self) -> int:
        """Count the tokens."""
        return sum(len(tokens) for _, tokens, _, _ in self.parts)

    def add(self, slot: int, tokens: np.ndarray | int, position: int, *, logits: bool) -> None:
        """Append."""
        self.parts.append((slot, [tokens] if isinstance(tokens, int) else tokens.tolist(), position, logits))
        assert self.size <= self.capacity


class Arithmetic:
    """A model whose logits are a checksum of a slot's tokens. It holds them as the library does, and complains as it would."""

    context_length = CONTEXT

    def __init__(self, slots: int, cells: int) -> None:
        self.slots, self.cells = slots, cells or slots * CONTEXT
        self.overcommitted = self.has_one_layout = cells > 0
        self.layout = Layout(flash=False, unified=True) if cells else Layout()
        self.vocabulary, self.batch = Letters(), Tokens(policy.CHUNK + slots)
        self.lay_out(self.layout)

    def lay_out(self, layout: Layout) -> bool:
        """Empty all."""
        self.layout = layout
        self.held: list[list[int]] = [[] for _ in range(self.slots)]
        self._cells = Cells(self.cells, self.slots)
        return True

    @property
    def free_cells(self) -> int:
        """Count those that nobody holds."""
        return self._cells.free if self.overcommitted else self.cells

    def used_by(self, slots: Iterable[int]) -> int:
        """Count those that any of these holds."""
        return self._cells.used_by(slots)

    def length(self, slot: int) -> int:
        """Count a slot's tokens."""
        return len(self.held[slot])

    def forget(self, slot: int, keep: int = 0) -> None:
        """Cut a slot."""
        assert 0 <= keep <= len(self.held[slot])
        del self.held[slot][keep:]
        self._cells.cut(slot, keep)

    def copy(self, source: int, target: int, keep: int) -> None:
        """Copy the beginning of a slot."""
        assert source != target
        assert 0 < keep <= len(self.held[source])
        self.held[target] = self.held[source][:keep]
        self._cells.share(source, target, keep)

    def decode(self, batch: Tokens) -> Logits:
        """Append a batch, for which there must be room, and give the logits that are wanted."""
        assert batch.size <= self.free_cells
        rows = []
        for slot, tokens, position, logits in batch.parts:
            held = self.held[slot]
            assert position == len(held)
            held += tokens
            assert len(held) <= CONTEXT
            self._cells.grow(slot, len(tokens) if self.overcommitted else 0)
            if logits:
                rows.append(np.random.default_rng(zlib.crc32(bytes(held))).normal(size=LETTERS + 1) * 3)
        return np.array(rows, np.float32)


class Row(NamedTuple):
    """A row, when it comes, and when it is cancelled."""

    begin: Begin
    comes: int
    cancelled: int
    """at a step; -1: never"""


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Make rows that share beginnings, of all lengths and ways to be sampled."""
    made = []
    for run in range(draw(st.integers(1, 14))):
        head, own = draw(st.integers(0, 90)), draw(st.integers(1, 60))
        tokens = [*([draw(st.integers(0, 1))] * head), *(zlib.crc32(bytes([run, place])) % LETTERS for place in range(own))]
        penalties = Sampling(frequency_penalty=1.0, repeat_penalty=1.2)
        sampling = draw(st.sampled_from([Sampling(), Sampling(temperature=1.0, seed=run), penalties]))
        begin = Begin(
            run=run,
            tokens=np.array(tokens, np.int32).tobytes(),
            max_output=draw(st.integers(1, CONTEXT - len(tokens))),
            stops=[b"AB"],
            sampling=sampling,
            lane=draw(st.sampled_from([1, 2, 3, 3])),
            stream=draw(st.booleans()),
            exact=draw(st.booleans()),
        )
        made.append(Row(begin, draw(st.integers(0, 30)), draw(st.sampled_from([-1, -1, -1, 5, 40]))))
    return made


def run(model: Arithmetic, rows: Iterable[Row]) -> tuple[dict[int, tuple[str, str, int]], int]:
    """Run rows to the end; what each said, why it ended and how many tokens it had, and how often somebody paused."""
    loop, coming, step = Loop(cast(Model, model), policy.AUTO), sorted(rows, key=lambda row: row.comes), 0
    texts, ends = dict.fromkeys((row.begin.run for row in coming), ""), dict[int, tuple[str, str, int]]()
    tokens = sum(len(row.begin.tokens) // 4 + row.begin.max_output for row in coming)
    while len(ends) < len(texts):
        loop.accept(row.begin for row in coming if row.comes == step)
        loop.accept(Cancel(row.begin.run) for row in coming if row.cancelled == step and row.comes <= step)
        for event in loop.step():
            assert isinstance(event, Delta | Ended)
            texts[event.run] += event.text
            if isinstance(event, Ended):
                assert event.run not in ends
                ends[event.run] = (texts[event.run], event.finish, event.output_tokens)
        step += 1
        assert step < 100 + 10 * tokens  # nobody pauses for ever
    assert loop.idle
    return ends, loop.pauses


@settings(max_examples=40, deadline=None)
@given(rows(), st.integers(1, 5), st.sampled_from([0, CONTEXT, CONTEXT, 250, 400]))
def test_a_row_says_what_it_says_alone(rows: list[Row], slots: int, cells: int) -> None:
    """Whoever comes, pauses, is copied from, cancelled or moved to another layout: texts are the rows' own, and all end once."""
    cells = cells if cells < slots * CONTEXT else 0
    if cells:  # nothing can be promised there
        rows = [row._replace(begin=msgspec.structs.replace(row.begin, exact=False)) for row in rows]
    ends, _ = run(Arithmetic(slots, cells), rows)
    for row in rows:
        alone, _ = run(Arithmetic(1, 0), [row._replace(comes=0, cancelled=-1)])
        if row.cancelled >= row.comes and ends[row.begin.run][1] == "cancelled":
            assert alone[row.begin.run][0].startswith(ends[row.begin.run][0].rstrip("A"))
        else:
            assert ends[row.begin.run] == alone[row.begin.run]


def test_many_pause_and_all_end() -> None:
    """Twelve long rows in cells for one pause; each says what it says alone."""
    rows = [Row(begin_of(run), 0, -1) for run in range(12)]
    ends, pauses = run(Arithmetic(4, CONTEXT), rows)
    assert pauses > 3
    assert ends == {row.begin.run: run(Arithmetic(1, 0), [row])[0][row.begin.run] for row in rows}


def begin_of(run: int) -> Begin:
    """Make a row that says much."""
    tokens = np.array([run, *range(9)], np.int32).tobytes()
    sampling = Sampling(temperature=1.0, seed=run, logit_bias={LETTERS: -100.0})
    return Begin(run=run, tokens=tokens, max_output=150, stops=[], sampling=sampling, lane=3, stream=False)

"""The step loop: continuous batching over the slots of one model.

A step admits waiting sequences to free slots, decodes one token of every running sequence, prefills a chunk of some prompts,
samples, and says what came of it. Sequences come and go between steps; nobody waits for a batch to end.

Where all slots share fewer cells than they could fill, sequences are let in by what is free. When nothing is, what idle slots hold
goes first, the coldest slot's last tokens before others; then the youngest sequence pauses: it waits for a slot, evaluates what it
said as if it were its prompt, and goes on.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable

import numpy as np

from engine.llamacpp import policy, prefixes
from engine.llamacpp.layouts import Layouts, Wish
from engine.llamacpp.messages import Begin, Cancel, Chance, Delta, Ended, FromDecoder
from engine.llamacpp.model import Batch, KvFull, Model
from engine.llamacpp.policy import Layout
from engine.llamacpp.sampling import Logits, StuckError, likeliest
from engine.llamacpp.sequence import Entry, Sequence
from haywain.errors import SettingsError

__all__ = ["Loop"]


class Loop:
    """All sequences of one decoder. For one thread."""

    def __init__(self, model: Model, layout: str = "") -> None:
        """Start with every slot free and empty; `layout` is one of policy.LAYOUTS or policy.EXACT, or empty for the model's own.

        Raises SettingsError when there is no memory for it.
        """
        self._model = model
        self._layouts = Layouts(layout, model.layout, only=model.has_one_layout)
        self._lay_out(self._layouts.first)
        for slot in range(model.slots):
            model.forget(slot)
        self._vocabulary = model.vocabulary
        self._waiting: list[Entry] = []
        self._arrivals = 0
        self._free = set(range(model.slots))
        self._held = [prefixes.Held(model.context_length) for _ in range(model.slots)]
        self._admissions = 0
        self._running: dict[int, Sequence] = {}
        self.pauses = 0
        self._events: list[FromDecoder] = []

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not (self._running or self._waiting or self._events)

    @property
    def running(self) -> int:
        """Slots in use."""
        return len(self._running)

    def accept(self, messages: Iterable[Begin | Cancel]) -> None:
        """Take new sequences and cancellations; both have effect at the next step."""
        for message in messages:
            if isinstance(message, Begin):
                self._arrivals += 1
                heapq.heappush(self._waiting, Entry(message.lane, self._arrivals, message))
            else:
                self._cancel(message.run)

    def step(self) -> list[FromDecoder]:
        """Go one step; tell what happened, in order."""
        self._admit()
        decoding, shares = self._plan()
        # The shape of a computation changes its last bits: what must not depend on others is computed alone.
        for together in [[sequence] for sequence in decoding] if self._model.layout.exact else [decoding]:
            self._decode(together)
        for sequence, size in shares:
            if sequence.sits:  # else it paused meanwhile
                self._prefill(sequence, size)
        events, self._events = self._events, []
        return events

    def _lay_out(self, layout: Layout) -> None:
        if layout != self._model.layout and not self._model.lay_out(layout):
            raise SettingsError("there is no memory for another layout of the KV cache")
        self._held = [prefixes.Held(self._model.context_length) for _ in range(self._model.slots)]

    def _settle(self) -> Wish:
        """Change to the layout that suits the rows at hand, where those that run allow it; tell what would."""
        running = list(self._running.values())
        wish = self._layouts.wish(self._waiting, running, self._model.layout, self._model.slots)
        if wish.now and wish.layout != self._model.layout:
            for sequence in running:
                self._free.add(sequence.slot)
                heapq.heappush(self._waiting, sequence.pause() if sequence.output else sequence.entry)
            self._running.clear()
            self._lay_out(wish.layout)
        return wish

    def _admit(self) -> None:
        """Put waiting sequences into free slots, the urgent ones first; some wait for a prefix that is just being evaluated."""
        if not (self._waiting and self._free):
            return
        wish = self._settle()
        later: list[Entry] = []
        coming = {sequence.slot: sequence.prompt for sequence in self._running.values() if sequence.left}
        while self._waiting and self._free:
            entry = heapq.heappop(self._waiting)
            if not self._layouts.lets_in(entry.begin, wish, self._model.layout):
                later.append(entry)
                continue
            prompt = entry.prompt
            place = prefixes.place(prompt, self._held, self._free, coming, self._model.layout)
            if place is None:
                later.append(entry)
                continue
            if not self._fits(entry, place):
                later.append(entry)
                break
            self._seat(entry.paused or Sequence(entry, self._vocabulary), place)
            coming[place.slot] = prompt
        for entry in later:
            heapq.heappush(self._waiting, entry)

    def _fits(self, entry: Entry, place: prefixes.Place) -> bool:
        """Tell whether there are cells for another sequence, beside what those that run are about to need."""
        if not self._model.overcommitted or not self._running:
            return True
        slots = [sequence.slot for sequence in self._running.values()]
        shared = place.keep if place.source in slots else 0
        running = [(sequence.left, sequence.unsaid) for sequence in self._running.values()]
        free = self._model.cells - self._model.used_by(slots)
        return policy.admits(free, (len(entry.prompt) - shared, entry.unsaid), running)

    def _plan(self) -> tuple[list[Sequence], list[tuple[Sequence, int]]]:
        """Decide who decodes and who prefills how much, within the cells there are."""
        while True:
            decoding, prefilling = self._split()
            shares = self._shares(len(decoding), prefilling)
            if self._has_room(len(decoding) + sum(size for _, size in shares)):
                return decoding, shares

    def _has_room(self, needed: int) -> bool:
        """Make room for so many tokens; False when a sequence had to pause for it, after which less is needed."""
        while (missing := needed - self._model.free_cells) > 0:
            idle = [slot for slot in self._free if self._held[slot].size]
            if not idle:
                self._pause_youngest()
                return False
            coldest = min(idle, key=lambda slot: (self._held[slot].used, slot))
            held = self._held[coldest]
            # From its end, where its own tokens are: what it begins with may be of use yet.
            held.cut(max(0, held.size - max(missing, policy.TILE)))
            self._model.forget(coldest, held.size)
        return True

    def _pause_youngest(self) -> None:
        sequence = max(self._running.values(), key=lambda sequence: sequence.entry[:2])
        self.pauses += 1
        del self._running[sequence.begin.run]
        self._free.add(sequence.slot)
        heapq.heappush(self._waiting, sequence.pause())

    def _seat(self, sequence: Sequence, place: prefixes.Place) -> None:
        """Make a slot hold what its sequence has of its prompt already."""
        slot, source, keep = place
        sequence.sit(place)
        if slot == source:
            self._model.forget(slot, keep)
            self._held[slot].cut(keep)
        else:
            self._model.copy(source, slot, keep)
            self._held[slot].become(self._held[source], keep)
        self._admissions += 1
        self._held[slot].used = self._held[source].used = self._admissions
        self._free.remove(slot)
        self._running[sequence.begin.run] = sequence

    def _split(self) -> tuple[list[Sequence], list[Sequence]]:
        """Give who decodes, by slot, and who prefills, the most urgent first."""
        decoding = [sequence for sequence in self._running.values() if not sequence.left]
        prefilling = [sequence for sequence in self._running.values() if sequence.left]
        decoding.sort(key=lambda sequence: sequence.slot)
        prefilling.sort(key=lambda sequence: sequence.begin.lane)
        return decoding, prefilling

    def _shares(self, decoding: int, prefilling: list[Sequence]) -> list[tuple[Sequence, int]]:
        sizes = policy.share(decoding, [sequence.left for sequence in prefilling], self._model.batch.capacity)
        return [(sequence, size) for sequence, size in zip(prefilling, sizes, strict=True) if size]

    def _decode(self, decoding: list[Sequence]) -> None:
        decoding = [sequence for sequence in decoding if sequence.sits]
        if not decoding:
            return
        batch = self._model.batch
        batch.clear()
        for sequence in decoding:
            batch.add(sequence.slot, sequence.next, self._model.length(sequence.slot), logits=True)
        logits = self._evaluate(batch)
        if logits is None:
            return
        for sequence in decoding:
            self._held[sequence.slot].generated(sequence.next)
        self._sample(decoding, logits)

    def _prefill(self, sequence: Sequence, size: int) -> None:
        batch = self._model.batch
        batch.clear()
        chunk = sequence.prompt[sequence.evaluated : sequence.evaluated + size]
        batch.add(sequence.slot, chunk, sequence.evaluated, logits=size == sequence.left)
        logits = self._evaluate(batch)
        if logits is None:
            return
        sequence.evaluated += size
        self._held[sequence.slot].prefilled(chunk)
        if not sequence.left:
            self._sample([sequence], logits)

    def _evaluate(self, batch: Batch) -> Logits | None:
        """Evaluate a batch; None when the KV cache had no room for it, and a sequence paused."""
        try:
            return self._model.decode(batch)
        except KvFull:
            if len(self._running) < 2:
                raise
            self._pause_youngest()
            return None

    def _sample(self, sequences: list[Sequence], logits: Logits) -> None:
        best = logits.argmax(axis=1).tolist()
        for sequence, row, token in zip(sequences, logits, best, strict=True):
            try:
                if sequence.sampler is not None:
                    token = sequence.sampler.choose(row)  # noqa: PLW2901 - the best one was a guess
                elif not np.isfinite(row[token]):
                    raise ValueError("the model's logits are not finite")
            except StuckError:
                self._end(sequence, "stuck")
            except ValueError:
                self._end(sequence, "error")
            else:
                if sequence.begin.logprobs >= 0:
                    sequence.chances.append((sequence.text.size, self._chance(row, token, sequence.begin.logprobs)))
                self._append(sequence, token)

    def _chance(self, logits: Logits, token: int, count: int) -> Chance:
        written = self._vocabulary.written
        logprob, top = likeliest(logits, token, count)
        return Chance(written(token), logprob, [(written(other), chance) for other, chance in top])

    def _append(self, sequence: Sequence, token: int) -> None:
        sequence.next = token
        sequence.tokens.append(token)
        sequence.output += 1
        if self._vocabulary.ends(token):
            del sequence.chances[-1:]  # it is no part of the text
            self._end(sequence, "stop")
        elif sequence.says(token, self._vocabulary):
            self._end(sequence, "stop")
        elif sequence.output >= sequence.begin.max_output:
            self._end(sequence, "length")
        elif sequence.begin.stream and (text := sequence.text.take()):
            self._events.append(Delta(sequence.begin.run, text, sequence.told(sequence.text.told)))

    def _end(self, sequence: Sequence, finish: str) -> None:
        del self._running[sequence.begin.run]
        self._free.add(sequence.slot)
        run_ms = int((time.monotonic() - sequence.since) * 1000)
        ended = Ended(
            run=sequence.begin.run,
            text=sequence.text.rest(),
            finish=finish,
            output_tokens=sequence.output,
            run_ms=run_ms,
            cached_tokens=sequence.cached,
            chances=[chance for _, chance in sequence.chances],
            marked=sequence.marked,
        )
        self._events.append(ended)

    def _cancel(self, run: int) -> None:
        sequence = self._running.get(run)
        if sequence is not None:
            self._end(sequence, "cancelled")
            return
        kept = [entry for entry in self._waiting if entry.begin.run != run]
        if len(kept) < len(self._waiting):
            self._waiting = kept
            heapq.heapify(self._waiting)
            self._events.append(Ended(run=run, text="", finish="cancelled", output_tokens=0, run_ms=0))

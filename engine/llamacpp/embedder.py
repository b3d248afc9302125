"""The step loop of a model that embeds: texts wait, and a step takes as many of them as one call is good for."""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence

import numpy as np

from engine.llamacpp import policy
from engine.llamacpp.embedding_model import EmbeddingModel
from engine.llamacpp.messages import Begin, Cancel, Ended, FromDecoder

__all__ = ["Embedder"]

_Entry = tuple[int, int, Begin]
"""what waits: by lane, then by arrival"""


class Embedder:
    """All texts of one decoder; to it what a Loop is. For one thread."""

    def __init__(self, model: EmbeddingModel, pack: int) -> None:
        """Texts that may share a call do so up to `pack` tokens; the vectors of others are always the same."""
        self._model = model
        self._budget = min(pack, model.context_length)
        self._waiting: list[_Entry] = []
        self._arrivals = 0
        self._events: list[FromDecoder] = []

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not (self._waiting or self._events)

    def accept(self, messages: Sequence[Begin | Cancel]) -> None:
        """Take new texts and cancellations."""
        for message in messages:
            if isinstance(message, Begin):
                self._arrivals += 1
                heapq.heappush(self._waiting, (message.lane, self._arrivals, message))
            else:
                self._cancel(message.run)

    def step(self) -> list[FromDecoder]:
        """Embed the next texts; tell what came of them."""
        if self._waiting:
            since = time.monotonic()
            first = self._take()
            vectors = self._model.embed([np.frombuffer(entry[2].tokens, np.int32) for entry in first])
            run_ms = int((time.monotonic() - since) * 1000)
            for (_, _, begin), vector in zip(first, vectors, strict=True):
                finish = "stop" if np.isfinite(vector).all() else "error"
                self._events.append(
                    Ended(run=begin.run, text="", finish=finish, output_tokens=0, run_ms=run_ms, vector=vector.tobytes())
                )
        events, self._events = self._events, []
        return events

    def _take(self) -> list[_Entry]:
        """Take the texts of the next call: the first that waits and, where it may share, the next ones that may, too."""
        first = heapq.nsmallest(self._model.slots, self._waiting)
        if not (self._budget and first[0][2].pack):
            return [heapq.heappop(self._waiting)]
        alike = [entry for entry in first if entry[2].pack]
        taken = alike[: policy.pack([len(entry[2].tokens) // 4 for entry in alike], self._budget, len(alike))]
        runs = {entry[2].run for entry in taken}
        self._waiting = [entry for entry in self._waiting if entry[2].run not in runs]
        heapq.heapify(self._waiting)
        return taken

    def _cancel(self, run: int) -> None:
        kept = [entry for entry in self._waiting if entry[2].run != run]
        if len(kept) < len(self._waiting):
            self._waiting = kept
            heapq.heapify(self._waiting)
            self._events.append(Ended(run=run, text="", finish="cancelled", output_tokens=0, run_ms=0))

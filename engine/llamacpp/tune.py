"""Find the settings that suit this machine and model: run the backend with a few of them, and keep what is clearly better.

One thing is tried after the other, with the best of those before: decoders and threads, slots, 16-bit copies. Half of the rows are
short, half have a common beginning. A setting that somebody chose is not touched.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.llamacpp import policy, transcode
from engine.llamacpp.backend import DEFAULT_SLOTS, LlamaCppBackend, cores
from engine.llamacpp.vocabulary import Vocabulary
from engine.tuned import NAMES, Tuned, write
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import SettingsError
from haywain.settings import LlamaCppSettings, Settings

__all__ = ["tune"]

_BETTER: Final = 1.05
"""what is faster by less is noise"""
_TRIES: Final = 7
"""that are expected, to share the time among"""
_WORDS: Final = (
    *("the", "of", "and", "to", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with", "as", "his", "they"),
    *("be", "at", "one", "have", "this", "from", "or", "by", "hot", "word", "but", "what", "some", "we", "can", "out"),
)
_MOST_WAIT: Final = 4
"""a try takes this many times its share at most, where the model is too slow for it"""

Say = Callable[[str], None]


class _Load:
    """An Emit that keeps a backend full of rows and counts what comes."""

    def __init__(self, backend: LlamaCppBackend) -> None:
        self._backend = backend
        self._endpoint = ""
        self._context = 0
        self._count = 0
        self.rows = self.tokens = 0
        self.failure = ""

    def fill(self, model: pb.ModelDescription) -> None:
        """Begin with as many rows as an engine may have at a time."""
        self._endpoint = "/v1/embeddings" if "/v1/embeddings" in model.endpoints else "/v1/completions"
        self._context = model.context_length
        self._backend.submit([self._row() for _ in range(2 * self._backend.slots)])

    def _row(self) -> pb.Sequence:
        """Make the next row; lengths vary, so that rows don't end together."""
        self._count += 1
        chance = random.Random(self._count)  # noqa: S311 - repeatable on purpose
        size = max(1, min(150, self._context // 16))
        common = " ".join(_WORDS[place % len(_WORDS)] for place in range(size)) if self._count % 2 else ""
        text = f"{common} {self._count} " + " ".join(chance.choices(_WORDS, k=max(1, min(24, self._context // 26))))
        body: dict[str, Any] = {"model": "tune", "input": text}
        if self._endpoint == "/v1/completions":
            body = {"model": "tune", "prompt": text, "max_tokens": chance.randint(8, 40)}
        request = json.dumps(body).encode()
        return pb.Sequence(sequence_id=self._count, model="tune", endpoint=self._endpoint, request=request, lane=pb.LANE_STANDARD)

    def delta(self, sequence_id: int, body: bytes) -> None:
        """Nothing is streamed."""

    def result(self, result: pb.SequenceResult) -> None:
        """Count a row and send the next."""
        if result.status_code != 200:
            self.failure = self.failure or result.error.message
            return
        self.rows += 1
        self.tokens += result.usage.output_tokens or result.usage.input_tokens
        if not self.failure:
            self._backend.submit([self._row()])

    def died(self, reason: str) -> None:
        """Note why."""
        self.failure = reason


async def _measure(settings: LlamaCppSettings, seconds: float) -> float:
    """Give tokens a second. Raises SettingsError for what can't run here."""
    backend = LlamaCppBackend(settings)
    load = _Load(backend)
    try:
        (model,) = await backend.start(load)
        load.fill(model)
        await asyncio.sleep(seconds / 4)
        rows, tokens, begun = load.rows, load.tokens, time.monotonic()
        spent = 0.0
        while not load.failure and (spent < seconds * 3 / 4 or load.rows - rows < backend.slots) and spent < _MOST_WAIT * seconds:
            await asyncio.sleep(min(0.1, seconds / 10))
            spent = time.monotonic() - begun
        if load.failure:
            raise SettingsError(load.failure)
        return (load.tokens - tokens) / spent
    finally:
        await backend.close()


def _groups(given: LlamaCppSettings) -> Iterator[list[dict[str, int | str]]]:
    """Give what is tried, one group after the other; only of settings that are the defaults."""
    defaults, available = LlamaCppSettings(), cores()
    free = {name for name in NAMES if getattr(given, name) == getattr(defaults, name)}
    if {"workers", "threads"} <= free:
        pairs = policy.divisions(available)[1:]  # the first is what the defaults are
        yield [{"workers": workers, "threads": threads} for workers, threads in pairs]
    if "slots" in free:
        yield [{"slots": slots} for slots in (DEFAULT_SLOTS // 2, DEFAULT_SLOTS, 2 * DEFAULT_SLOTS)]
    if "transcode" in free and _may_be_copied(Path(given.model_path)):
        yield [{"transcode": "on"}, {"transcode": "off"}]


def _may_be_copied(path: Path) -> bool:
    vocabulary = Vocabulary.load(path)
    try:
        return transcode.wanted("on", path, vocabulary)
    finally:
        vocabulary.close()


async def tune(settings: Settings, seconds: float, say: Say) -> Tuned:
    """Measure for about so many seconds, tell a table, and write what was chosen. Raises SettingsError when nothing runs."""
    given = settings.engine.llamacpp
    share = seconds / _TRIES
    busy = os.getloadavg()[0]
    if busy > cores() / 2:
        say(f"This machine is busy (load {busy:.1f}): figures will mean little.")
    say(f"{'settings':<44}{'tokens/s':>10}")
    chosen: dict[str, int | str] = {}
    best = await _measure(given, share)
    say(f"{'as they are':<44}{best:>10.1f}")
    for group in _groups(given):
        better: dict[str, int | str] = {}
        for changes in group:
            tried = msgspec.structs.replace(given, **(chosen | changes))
            name = ", ".join(f"{key} {value}" for key, value in (chosen | changes).items())
            try:
                found = await _measure(tried, share)
            except SettingsError as error:
                say(f"{name:<44}  {error.message}")
                continue
            say(f"{name:<44}{found:>10.1f}")
            if found > best * _BETTER:
                best, better = found, changes
        chosen |= better
    tuned = _tuned(Path(given.model_path), chosen, best)
    write(settings, tuned)
    return tuned


def _tuned(path: Path, chosen: dict[str, int | str], best: float) -> Tuned:
    status = path.stat()
    return Tuned(
        model_path=str(path.absolute()),
        model_size=status.st_size,
        model_mtime_ns=status.st_mtime_ns,
        cores=cores(),
        chosen=chosen,
        tokens_per_second=round(best, 1),
    )

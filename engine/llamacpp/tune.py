"""Find the settings that suit this machine and model: run the backend with a few of them, and keep what is clearly better.

One thing is tried after the other, with the best of those before: decoders and threads, slots, 16-bit copies, tokens a step,
layouts. What seems better is measured once more, and the worse figure counts. Half of the rows are short, half have a common
beginning. A setting that somebody chose is not touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from engine.llamacpp import gpu, policy, transcode, weights
from engine.llamacpp.backend import DEFAULT_SLOTS, LlamaCppBackend, cores, wanted
from engine.llamacpp.messages import Open
from engine.llamacpp.vocabulary import Vocabulary
from engine.tuned import NAMES, Tuned, write
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import SettingsError
from haywain.settings import LlamaCppSettings, Settings

__all__ = ["Group", "Tuning", "tune"]

_BETTER: Final = 1.05
"""what is faster by less is noise"""
_MUCH_BETTER: Final = 1.15
"""what a layout must be to be kept to: it is one for all rows then, where `auto` follows them"""
_WORDS: Final = (
    *("the", "of", "and", "to", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with", "as", "his", "they"),
    *("be", "at", "one", "have", "this", "from", "or", "by", "hot", "word", "but", "what", "some", "we", "can", "out"),
)
_MOST_WAIT: Final = 3
"""a try takes this many times as long as the settings as they are, at most: what is slower isn't better"""

Changes = dict[str, int | str]
Say = Callable[[str], None]


class Group(NamedTuple):
    """Values of the same settings."""

    tries: list[Changes]
    better: float = _BETTER
    """what the best of them must be, of the best so far"""


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
        size = max(1, min(100, self._context // 16))
        common = " ".join(_WORDS[place % len(_WORDS)] for place in range(size)) if self._count % 2 else ""
        text = f"{common} {self._count} " + " ".join(chance.choices(_WORDS, k=max(1, min(24, self._context // 26))))
        body: dict[str, Any] = {"model": "tune", "input": text}
        if self._endpoint == "/v1/completions":
            body = {"model": "tune", "prompt": text, "max_tokens": chance.randint(6, 24)}
        sequence = pb.Sequence(sequence_id=self._count, model="tune", endpoint=self._endpoint, lane=pb.LANE_STANDARD)
        sequence.request = json.dumps(body).encode()
        sequence.stream = self._endpoint == "/v1/completions"  # tokens are counted when they come
        return sequence

    def delta(self, sequence_id: int, body: bytes) -> None:
        """Count a token."""
        self.tokens += 1

    def result(self, result: pb.SequenceResult) -> None:
        """Count a row and send the next."""
        if result.status_code != 200:
            self.failure = self.failure or result.error.message
            return
        self.rows += 1
        if self._endpoint != "/v1/completions":
            self.tokens += result.usage.input_tokens
        if not self.failure:
            self._backend.submit([self._row()])

    def died(self, reason: str) -> None:
        """Note why."""
        self.failure = reason


async def _measure(settings: LlamaCppSettings, seconds: float, most: float = math.inf) -> float:
    """Give tokens a second, measured for about `seconds`, start included, or `most` where the model is slow.

    Raises SettingsError for what can't run here.
    """
    began = time.monotonic()
    backend = LlamaCppBackend(settings)
    load = _Load(backend)

    async def wait(rows: int, until: float) -> float:
        """Wait for so many rows more, and until then; give the seconds it took."""
        rows, begun = load.rows + rows, time.monotonic()
        now = begun
        while not load.failure and (load.rows < rows or now < until) and now - began < most:
            await asyncio.sleep(min(0.05, seconds / 10))
            now = time.monotonic()
        if load.failure:
            raise SettingsError(load.failure)
        return now - begun

    try:
        (model,) = await backend.start(load)
        load.fill(model)
        # They begin together: it takes some time until as many begin as end.
        rows = (backend.slots + 1) // 2
        await wait(rows, 0.0)
        tokens = load.tokens
        spent = await wait(rows, began + seconds)
        return (load.tokens - tokens) / spent if spent else 0.0
    finally:
        await backend.close()


class Tuning:
    """What is known while it goes on."""

    def __init__(self, given: LlamaCppSettings, say: Say, *, offered: bool) -> None:
        """Look at the model's file; `offered` says whether there is a GPU. Raises SettingsError."""
        self._given = given
        self._offered = offered
        self.offloads = gpu.offloads(given.gpu_layers, offered=offered)
        self._say = say
        self._path = Path(given.model_path)
        weights.check(self._path)
        self._vocabulary = Vocabulary.load(self._path)
        self._most = 0.0
        self.chosen: Changes = {}
        self.best = 0.0

    def close(self) -> None:
        """Let go of the file."""
        self._vocabulary.close()

    def groups(self) -> list[Group]:
        """List what is tried, in turns; only of settings that are the defaults."""
        given, defaults = self._given, LlamaCppSettings()
        free = {name for name in NAMES if getattr(given, name) == getattr(defaults, name)}
        groups = []
        if {"workers", "threads"} <= free and not self.offloads:
            pairs = policy.divisions(cores())[1:]  # the first is what the defaults are
            groups.append(Group([{"workers": workers, "threads": threads} for workers, threads in pairs]))
        if "slots" in free:
            groups.append(Group([{"slots": slots} for slots in (DEFAULT_SLOTS // 2, DEFAULT_SLOTS, 2 * DEFAULT_SLOTS)]))
        if "transcode" in free:
            groups.append(Group([{"transcode": "on"}, {"transcode": "off"}]))
        _, _, opened = self._comes_to(given)
        if "batch_tokens" in free and not opened.pooling:
            groups.append(Group([{"batch_tokens": (1 + chunks) * policy.CHUNK} for chunks in (2, 4)]))
        if "layout" in free and not (opened.pooling or opened.cells or given.deterministic or given.kv_type != policy.F16):
            groups.append(Group([{"layout": name} for name in policy.LAYOUTS if name != policy.AUTO], _MUCH_BETTER))
        return groups

    async def begin(self, seconds: float) -> None:
        """Measure the settings as they are. Raises SettingsError when that can't run."""
        self._say(f"{'settings':<64}{'tokens/s':>10}")
        began = time.monotonic()
        self.best = await _measure(self._given, seconds)
        self._most = _MOST_WAIT * (time.monotonic() - began)
        self._say(f"{'as they are':<64}{self.best:>10.1f}")

    async def keep_the_best(self, group: Group, seconds: float) -> None:
        """Try a group; `seconds` for each of its tries."""
        best, better = self.best, Changes()
        for changes in group.tries:
            found = await self._try(changes, seconds, best * (1.0 if better else group.better))
            if found > best * (1.0 if better else group.better):
                best, better = found, changes
        self.best, self.chosen = best, self.chosen | better

    async def _try(self, changes: Changes, seconds: float, enough: float) -> float:
        """Measure, and once more where it was `enough`; 0 for what can't run, or is nothing new."""
        tried = self._with(changes)
        name = ", ".join(f"{key} {value}" for key, value in (self.chosen | changes).items())
        try:
            if self._comes_to(tried) == self._comes_to(self._with({})):
                return 0.0
            found = await _measure(tried, seconds, self._most)
            if found > enough:
                found = min(found, await _measure(tried, seconds, self._most))
        except SettingsError as error:
            self._say(f"{name:<64}  {error.message}")
            return 0.0
        self._say(f"{name:<64}{found:>10.1f}")
        return found

    def _with(self, changes: Changes) -> LlamaCppSettings:
        return msgspec.structs.replace(self._given, **(self.chosen | changes))

    def _comes_to(self, settings: LlamaCppSettings) -> tuple[int, bool, Open]:
        """Tell what settings mean for decoders; what means the same isn't measured."""
        settings = gpu.suited(settings, cores(), offered=self._offered)
        copied = transcode.wanted(settings.transcode, self._path, self._vocabulary)
        return settings.workers, copied, wanted(settings, self._path, self._vocabulary, settings.workers)


async def tune(settings: Settings, seconds: float, say: Say) -> Tuned:
    """Measure for about so many seconds, tell a table, and write what was chosen. Raises SettingsError when nothing runs."""
    given = settings.engine.llamacpp
    busy = os.getloadavg()[0]
    if busy > cores() / 2:
        say(f"This machine is busy (load {busy:.1f}): figures will mean little.")
    with contextlib.closing(Tuning(given, say, offered=gpu.offered())) as tuning:
        groups = tuning.groups()
        share = seconds / (1 + sum(len(group.tries) for group in groups))
        await tuning.begin(share)
        for group in groups:
            await tuning.keep_the_best(group, share)
        tuned = _tuned(Path(given.model_path), tuning)
    write(settings, tuned)
    return tuned


def _tuned(path: Path, tuning: Tuning) -> Tuned:
    status = path.stat()
    return Tuned(
        model_path=str(path.absolute()),
        model_size=status.st_size,
        model_mtime_ns=status.st_mtime_ns,
        cores=cores(),
        gpu=tuning.offloads,
        chosen=tuning.chosen,
        tokens_per_second=round(tuning.best, 1),
    )

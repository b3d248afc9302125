"""What GET /metrics tells of the decoders of a pool: their counts, summed over all that ever lived, and how each is now."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from engine.llamacpp.messages import Ended, Figures
from engine.llamacpp.tally import STEP_SECONDS
from haywain.engine.v1 import engine_pb2 as pb
from haywain.metrics import REGISTRY, figure

__all__ = ["DecoderFigures"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_COUNTERS = {
    "haywain_prompt_tokens": "Prompt tokens given to decoders.",
    "haywain_cached_prompt_tokens": "Prompt tokens of ended sequences that were in the KV cache already.",
    "haywain_generated_tokens": "Tokens that were generated.",
    "haywain_decoder_deaths": "Decoder processes that died.",
}


class DecoderFigures(Collector):
    """Gathers what decoders tell; asked by the registry from `begin` to `end`."""

    def __init__(self, decoders: int, slots: int, cells: int) -> None:
        """Each decoder has so many slots, and room for `cells` tokens."""
        self._slots, self._cells = slots, cells
        self._now: list[Figures | None] = [None] * decoders
        self._pids: list[int] = [0] * decoders
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._steps = [0] * (len(STEP_SECONDS) + 1)
        self._seconds = self._library = 0.0

    def begin(self) -> None:
        """Let the registry ask."""
        REGISTRY.register(self)

    def end(self) -> None:
        """Be asked no more."""
        with contextlib.suppress(KeyError):
            REGISTRY.unregister(self)

    def started(self, decoder: int, pid: int) -> None:
        """Note that a decoder lives."""
        self._pids[decoder] = pid

    def given(self, tokens: int) -> None:
        """Count a prompt that a decoder was given."""
        self._counts["haywain_prompt_tokens"] += tokens

    def ended(self, event: Ended) -> None:
        """Count what a sequence that ended didn't have to evaluate."""
        self._counts["haywain_cached_prompt_tokens"] += event.cached_tokens

    def told(self, decoder: int, figures: Figures) -> None:
        """Take what a decoder told."""
        self._now[decoder] = figures
        self._counts["haywain_generated_tokens"] += figures.generated
        self._steps = [one + more for one, more in zip(self._steps, figures.steps, strict=True)]
        self._seconds += figures.step_seconds
        self._library += figures.library_seconds

    def died(self, decoder: int) -> None:
        """Note that a decoder is gone."""
        self._now[decoder], self._pids[decoder] = None, 0
        self._counts["haywain_decoder_deaths"] += 1

    @property
    def load(self) -> pb.Load:
        """Sum up how all of them are now."""
        living = [now for now in self._now if now is not None]
        steps = sum(sum(now.steps) for now in living)
        return pb.Load(
            running=sum(now.running for now in living),
            kv_used=sum(now.kv_used for now in living),
            kv_capacity=len(self._now) * self._cells,
            step_seconds=sum(now.step_seconds for now in living) / steps if steps else 0.0,
        )

    def collect(self) -> Iterable[Metric]:
        """Tell."""
        for name, what in _COUNTERS.items():
            family = CounterMetricFamily(name, what)
            family.add_metric((), self._counts[name])
            yield family
        steps = HistogramMetricFamily("haywain_step_seconds", "What decoders' steps took.")
        bounds = [*(str(bound) for bound in STEP_SECONDS), "+Inf"]
        buckets = [(bound, float(count)) for bound, count in zip(bounds, itertools.accumulate(self._steps), strict=True)]
        steps.add_metric((), buckets, self._seconds)
        yield steps
        library = CounterMetricFamily("haywain_library_seconds", "Of what steps took, that inside llama.cpp's evaluation.")
        library.add_metric((), self._library)
        yield library
        yield from self._gauges()

    def _gauges(self) -> Iterator[Metric]:
        decoders = [(str(number),) for number in range(len(self._now))]
        running = [0 if now is None else now.running for now in self._now]
        used = [0 if now is None else now.kv_used for now in self._now]
        yield figure("haywain_decoder_slots", "A decoder's slots.", dict.fromkeys(decoders, self._slots), "decoder")
        yield figure("haywain_decoder_running", "Sequences in its slots.", dict(zip(decoders, running, strict=True)), "decoder")
        yield figure("haywain_kv_capacity_cells", "Tokens its KV cache can hold.", dict.fromkeys(decoders, self._cells), "decoder")
        yield figure("haywain_kv_used_cells", "Tokens its slots hold.", dict(zip(decoders, used, strict=True)), "decoder")
        memory = dict(zip(decoders, map(_resident, self._pids), strict=True))
        yield figure("haywain_decoder_resident_memory_bytes", "Its memory, weights it shares included.", memory, "decoder")


def _resident(pid: int) -> float:
    """Tell a process's resident memory in bytes; 0 when it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return float(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES if pid else 0.0
    return 0.0

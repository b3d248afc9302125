"""What /metrics tells of llama.cpp's decoders."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from llamacpp_running import Running, started
from prometheus_client import Metric

from engine.llamacpp.messages import Figures
from engine.llamacpp.tally import STEP_SECONDS, Tally, Usage
from haywain.metrics import REGISTRY

DOCS = Path(__file__).parent.parent.parent / "docs" / "operations.md"


def told() -> dict[str, Metric]:
    """Ask the registry; what decoders are about, by name."""
    ours = tuple(f"haywain_{name}" for name in ("decoder", "kv", "step", "library", "prompt", "cached", "generated"))
    return {family.name: family for family in REGISTRY.collect() if family.name.startswith(ours)}


def total(name: str) -> float:
    """Ask the registry; the sum of a family's samples."""
    return sum(sample.value for sample in told()[name].samples)


def test_steps_are_put_in_buckets() -> None:
    """A step counts where its time belongs, the last bucket has all that are longer; what was told is told once."""
    tally = Tally(Usage(0, 0, 7, 2.0))
    for seconds in (0.0005, 0.001, 0.0011, 100.0):
        tally.stepped(seconds)
    figures = tally.take(Usage(3, 40, 12, 2.5))
    assert figures.library_seconds == 0.5
    assert (figures.running, figures.kv_used, figures.generated) == (3, 40, 5)
    assert figures.steps == [2, 1, *[0] * (len(STEP_SECONDS) - 2), 1]
    assert figures.step_seconds == pytest.approx(100.0026)
    assert tally.take(Usage(0, 0, 12, 2.5)) == Figures(
        running=0, kv_used=0, generated=0, steps=[0] * (len(STEP_SECONDS) + 1), step_seconds=0.0
    )


async def _twice(running: Running, prompt: str) -> tuple[int, int]:
    """Run two prompts that begin alike, one after the other; the tokens that were generated, and those found in a cache."""
    results = [await running.chat(f"{prompt} {number}", max_tokens=5) for number in range(2)]
    assert [result.status_code for result in results] == [200, 200]
    return sum(result.usage.output_tokens for result in results), sum(result.usage.cached_tokens for result in results)


async def test_tokens_and_steps_are_counted() -> None:
    """Prompt, cached and generated tokens are those of the answers; each step is in a bucket; slots hold what they evaluated."""
    assert not told()
    async with started(workers=1) as running:
        output, cached = await _twice(running, "a long text " * 30)
        assert cached > 0
        assert total("haywain_generated_tokens") == output
        assert total("haywain_cached_prompt_tokens") == cached
        assert total("haywain_prompt_tokens") > cached
        steps = {(sample.name, sample.labels.get("le")): sample.value for sample in told()["haywain_step_seconds"].samples}
        count = steps[("haywain_step_seconds_bucket", "+Inf")]
        assert count >= output
        assert steps[("haywain_step_seconds_sum", None)] > total("haywain_library_seconds") > 0
        assert total("haywain_decoder_slots") == 3
        assert total("haywain_decoder_running") == 0
        assert 0 < total("haywain_kv_used_cells") <= total("haywain_kv_capacity_cells")
        assert total("haywain_decoder_resident_memory_bytes") > 1_000_000
        load = running.backend.load
        assert (load.running, load.kv_used) == (0, total("haywain_kv_used_cells"))
        assert (load.kv_capacity, load.step_seconds > 0) == (total("haywain_kv_capacity_cells"), True)
    assert not told()


async def test_a_death_is_counted() -> None:
    """A decoder that died holds nothing, and counts as a death; the one that takes its place tells again."""
    async with started(workers=1) as running:
        await running.chat("hello")
        os.kill(running.backend.decoder_pids[0], signal.SIGKILL)
        result = await running.chat("hello again")
        while result.retryable:
            result = await running.chat("hello again")
        assert result.status_code == 200
        assert total("haywain_decoder_deaths") == 1


async def test_the_table_is_what_there_is() -> None:
    """docs/operations.md lists what decoders tell, with types and labels."""
    rows = re.findall(r"^\| `(haywain_\w+)` \| (\w+) \| (\w*) ?\| llama\.cpp: .* \|$", DOCS.read_text(), re.MULTILINE)
    async with started(workers=1):
        found = {
            (name, family.type, ",".join(sorted({label for sample in family.samples for label in sample.labels} - {"le"})))
            for name, family in told().items()
        }
    assert {(name.removesuffix("_total"), kind, label) for name, kind, label in rows} == found

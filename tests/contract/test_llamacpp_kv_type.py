"""A KV cache of 8-bit numbers: half the memory, the layout that it needs, and a text that is nearly the same."""

from __future__ import annotations

import os
from pathlib import Path

import minilm
import pytest
import tiny_gguf
from llamacpp_running import settings, started
from test_llamacpp_loop import begin, ends

from engine.llamacpp import memory, policy
from engine.llamacpp.backend import create, wanted
from engine.llamacpp.loop import Loop
from engine.llamacpp.model import Cache, Model
from engine.llamacpp.policy import Layout
from engine.llamacpp.vocabulary import Vocabulary
from haywain import demo_model
from haywain.errors import SettingsError

PROMPT = "<|im_start|>user\nName the capital of {}.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def path() -> Path:
    """Tell where the demo model is, whose heads have 64 numbers; the tiny one's are too small."""
    path = Path(os.environ.get("HAYWAIN_TEST_MODEL") or demo_model.cached())
    assert path.exists(), f"{path} is missing: fetch it with `haywain demo-model`, or set HAYWAIN_TEST_MODEL"
    return path


def test_what_it_cannot_go_with_is_refused(path: Path) -> None:
    """Other types, other layouts, what needs them, models whose heads don't fit, and those that keep nothing: in one line each."""
    eight = {"kv_type": "q8_0"}
    cases = [
        (path, {"kv_type": "q4_0"}, "expected one of: f16, q8_0"),
        (path, eight | {"layout": "plain"}, "'flash' only"),
        (path, eight | {"deterministic": True}, "'flash' only"),
        (path, eight | {"kv_tokens": 4_096}, "'flash' only"),
        (tiny_gguf.tiny_gguf(), eight, "multiple of 32"),
        (minilm.minilm_gguf(), eight, "embeds"),
    ]
    for model, changes, says in cases:
        with pytest.raises(SettingsError, match=says) as raised:
            create(settings(model, **changes))
        assert "\n" not in raised.value.message


def test_it_takes_half_the_memory(path: Path) -> None:
    """The need is counted and named; where the number of slots is left open, there are more of them."""
    vocabulary = Vocabulary.load(path)
    usual, eight = (wanted(settings(path, slots=0, kv_type=kind).llamacpp, path, vocabulary, 2) for kind in (policy.F16, "q8_0"))
    needs = [memory.need(one, vocabulary, 2) for one in (usual, eight)]
    vocabulary.close()
    assert (usual.slots, eight.slots) == (11, 16)
    assert needs[1].cache * 16 * usual.slots == needs[0].cache * 8.5 * eight.slots
    assert "KV cache (q8_0)" in str(needs[1])
    assert "q8_0" not in str(needs[0])


def test_rows_say_nearly_the_same(path: Path) -> None:
    """Prompts that begin alike are answered as with 16 bits, for the most part; another layout never reaches the library."""
    said = []
    for kind in (policy.F16, "q8_0"):
        model = Model(path, slots=4, context_length=256, batch_tokens=192, threads=1, cache=Cache(kind=kind))
        loop = Loop(model, policy.AUTO)
        prompts = [model.vocabulary.tokenise(PROMPT.format(land), special=True) for land in ("France", "Italy", "Spain", "Japan")]
        loop.accept([begin(run, prompt, max_output=6) for run, prompt in enumerate(prompts)])
        told = []
        while not loop.idle:
            told += loop.step()
        said.append([end.text for _, end in sorted(ends(told).items())])
        if kind != policy.F16:
            with pytest.raises(ValueError, match="flash attention"):
                model.lay_out(Layout(flash=False))
        model.close()
    assert "Paris" in said[1][0]
    assert sum(one == other for one, other in zip(*said, strict=True)) >= 2


async def test_nothing_is_promised_with_it(path: Path) -> None:
    """The engine says that it can't be deterministic, so that such batches are refused; others run."""
    async with started(path, workers=1, slots=2, context_length=256, transcode="off", kv_type="q8_0") as running:
        assert not running.models[0].deterministic
        result = await running.results.of(running.begin("Name the capital of France.", max_tokens=4))
    assert result.status_code == 200

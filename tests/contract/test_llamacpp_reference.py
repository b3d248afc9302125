"""Token for token against llama-cpp-python's own one-sequence `Llama`, and prompts at the edges of what can be asked."""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
import tiny_gguf
from llamacpp_parting import Said, parting, run
from llamacpp_running import Running, started
from test_llamacpp_loop import begin

from engine.llamacpp import policy
from engine.llamacpp.loop import Loop
from engine.llamacpp.model import Model
from engine.llamacpp.native import amx_is_compiled_in
from engine.llamacpp.prepare import Preparer
from engine.llamacpp.vocabulary import Vocabulary
from engine.prompt import ChatTemplate
from haywain import demo_model
from haywain.engine.v1 import engine_pb2 as pb

QUESTIONS = ["Name the capital of France.", "Count from one to ten.", "What is water made of?", "Who wrote Hamlet? " * 8]
QUANTISED = 1.0
"""between log-probabilities of 4-bit weights: what they are multiplied with is rounded to 8 bits, so a last bit may be 1 of 127"""


@pytest.fixture(autouse=True)
def no_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the library's class off the AMX kernels that can end the process; it has no argument for that."""
    defaults = llama_cpp.llama_cpp.llama_model_default_params

    def parameters() -> Any:
        made = defaults()
        made.use_extra_bufts = not amx_is_compiled_in()
        return made

    monkeypatch.setattr(llama_cpp.llama_cpp, "llama_model_default_params", parameters)


def alone(path: Path, prompts: list[list[int]], most: int, *, flash: bool = False) -> list[tuple[bytes, int]]:
    """Generate greedily with the library's own class, one prompt after the other; give bytes and tokens of each answer."""
    reference = llama_cpp.Llama(
        str(path), n_ctx=512, n_batch=policy.CHUNK, n_threads=1, n_threads_batch=1, flash_attn=flash, verbose=False
    )
    vocabulary = Vocabulary.load(path)
    answers = []
    for prompt in prompts:
        reference.reset()
        said: list[int] = []
        for token in reference.generate(prompt, temp=0.0, repeat_penalty=1.0):
            said.append(token)
            if vocabulary.ends(token) or len(said) == most:
                break
        answers.append((b"".join(map(vocabulary.piece, said)), len(said)))
    vocabulary.close()
    reference.close()
    return answers


def together(path: Path, prompts: list[list[int]], most: int, layout: str) -> list[Said]:
    """Run all prompts side by side in six slots."""
    model = Model(path, slots=6, context_length=512, batch_tokens=192, threads=1)
    told = run(Loop(model, layout), [begin(place, prompt, max_output=most, logprobs=20) for place, prompt in enumerate(prompts)])
    model.close()
    return [told[place] for place in range(len(prompts))]


def texts(answers: list[tuple[bytes, int]]) -> list[tuple[str, int]]:
    """Decode what the library said."""
    return [(data.decode("utf-8", "replace"), count) for data, count in answers]


def counted(answers: list[Said]) -> list[tuple[str, int]]:
    """Give text and tokens of ours."""
    return [(text, count) for text, _, count in (said.whole for said in answers)]


@pytest.mark.parametrize("layout", ["flash", "plain", "unified", policy.EXACT])
def test_exact_weights_give_the_library_s_own_tokens(layout: str) -> None:
    """With 32-bit weights, 24 prompts of 1 to 300 tokens say side by side what `Llama` says one at a time, in each layout."""
    chance = random.Random(7)
    prompts = [[chance.randrange(256) for _ in range(chance.choice([1, 2, 20, 127, 128, 129, 130, 257, 300]))] for _ in range(24)]
    path = tiny_gguf.tiny_gguf()
    wanted = alone(path, prompts, 20, flash=layout == "flash")
    assert counted(together(path, prompts, 20, layout)) == texts(wanted)


def test_a_quantised_model_gives_the_library_s_own_tokens() -> None:
    """So does a Q4_1 model in the layout that is computed row by row; in the others tokens are as likely, to within a bound.

    A greedy row parts there only where another token is nearly as likely as the best one.
    """
    path = Path(os.environ.get("HAYWAIN_TEST_MODEL") or demo_model.cached())
    vocabulary = Vocabulary.load(path)
    template = ChatTemplate(vocabulary)
    prompts = [template.tokens([{"role": "user", "content": question}]) for question in QUESTIONS]
    vocabulary.close()
    exact = together(path, prompts, 8, policy.EXACT)
    assert counted(exact) == texts(alone(path, prompts, 8))
    for layout in ("flash", "plain", "unified"):
        for said, expected in zip(together(path, prompts, 8, layout), exact, strict=True):
            place = parting(said, expected, QUANTISED, 5)
            if place >= 0:
                one, other = said.chances[place], expected.chances[place]
                assert other.logprob - dict(other.top)[one.piece] <= 2 * QUANTISED


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """Run the tiny model."""
    async with started(tiny_gguf.tiny_gguf(), workers=1) as running:
        yield running


def choice(result: Any) -> dict[str, Any]:
    """Take an answer's only choice."""
    assert result.status_code == 200, result.body
    (only,) = json.loads(result.body)["choices"]
    return dict(only)


async def test_characters_that_span_tokens_are_streamed_whole(running: Running) -> None:
    """Text whose every character takes two to four tokens comes in chunks of whole characters that join to it."""
    text = "\u00e4\u00df \u65e5\u672c\u8a9e \U0001f389\U0001f469\u200d\U0001f680 \u0639"
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [text]}}}
    sequence = running.begin("say it", response_format=shape, max_tokens=200, stream=True)
    (result,) = await running.ended(sequence)
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in running.results.deltas[sequence]]
    assert json.loads("".join(deltas)) == json.loads(choice(result)["message"]["content"]) == text
    assert len([delta for delta in deltas if delta]) >= len(text)
    assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize("prompt", ["", "<|im_start|>", "<|im_end|><|im_end|>", "\u0000", [tiny_gguf.EOS] * 3, " " * 300])
async def test_prompts_of_nearly_nothing_are_answered(running: Running, prompt: Any) -> None:
    """An empty prompt, one of special tokens alone, of a zero byte, of spaces: each gets an answer."""
    said = choice(await running.complete(prompt, max_tokens=4))
    assert said["finish_reason"] in ("stop", "length")


async def test_a_huge_prompt_is_refused_with_both_numbers(running: Running) -> None:
    """100,000 characters don't fit, which is said with the limit and the size; the next row runs."""
    result = await running.chat("x" * 100_000)
    assert (result.status_code, result.error.code) == (400, "context_length_exceeded")
    assert "512" in result.error.message
    assert "1000" in result.error.message
    assert (await running.chat("small")).status_code == 200


async def test_how_much_may_be_said(running: Running) -> None:
    """`max_tokens` 0 is refused, 1 gives one token, a huge one ends with the context, one past every count is refused."""
    stay = {str(token): -100 for token in (tiny_gguf.EOS, tiny_gguf.IM_END)}
    assert (await running.chat(max_tokens=0)).error.param == "max_tokens"
    one = await running.chat(max_tokens=1, logit_bias=stay)
    assert (one.usage.output_tokens, choice(one)["finish_reason"]) == (1, "length")
    huge = await running.chat(max_tokens=2**31 - 1, logit_bias=stay)
    assert (huge.usage.input_tokens + huge.usage.output_tokens, choice(huge)["finish_reason"]) == (512, "length")
    assert (await running.chat(max_tokens=2**31)).error.param == "max_tokens"


def test_bos_is_there_once() -> None:
    """A model that wants a beginning-of-text token gets one, whether or not its template or its caller wrote it."""
    vocabulary = Vocabulary.load(tiny_gguf.tiny_gguf(add_bos=True))
    assert vocabulary.adds_bos
    tokens = ChatTemplate(vocabulary).tokens([{"role": "user", "content": "hello"}])
    assert tokens[0] == tiny_gguf.IM_START != tokens[1]
    preparer = Preparer(vocabulary, 512)
    bos = vocabulary.text(tiny_gguf.IM_START)
    for prompt in ("hello", bos + "hello", "", bos):
        request = json.dumps({"model": "tiny", "prompt": prompt}).encode()
        (prepared,) = preparer.prepare(pb.Sequence(model="tiny", endpoint="/v1/completions", request=request)).prompts
        wanted = [tiny_gguf.IM_START, *vocabulary.tokenise(prompt.removeprefix(bos), special=False)]
        assert np.frombuffer(prepared.tokens, np.int32).tolist() == wanted
    vocabulary.close()

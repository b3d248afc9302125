"""SmolLM2-135M-Instruct in the backend: small, but a model that knows things."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.llamacpp.backend import LlamaCppBackend, create
from haywain import demo_model
from haywain.engine.v1 import engine_pb2 as pb
from haywain.settings import EngineSettings, LlamaCppSettings

MODEL = "smollm2-135m-instruct"
ENDPOINT = "/v1/chat/completions"
QUESTIONS = [
    "Name the capital of France.",
    "What is water made of?",
    "Count from one to ten.",
    "Write one sentence about the sea.",
    "Who wrote Hamlet?",
    "What colour is the sky on a clear day?",
    "Translate 'good morning' into Spanish.",
    "Why do leaves fall in autumn? Explain it to a child, in a few short sentences.",
]


class Results:
    """An Emit that hands results to those who wait for them."""

    def __init__(self) -> None:
        self.results: dict[int, asyncio.Future[pb.SequenceResult]] = {}

    def delta(self, sequence_id: int, body: bytes) -> None:
        """Nothing is streamed here."""
        raise AssertionError(body)

    def result(self, result: pb.SequenceResult) -> None:
        """Keep the end."""
        self.results[result.sequence_id].set_result(result)

    def died(self, reason: str) -> None:
        """Nothing dies here."""
        raise AssertionError(reason)


@pytest.fixture(scope="module")
def path() -> Path:
    """Tell where the model is: HAYWAIN_TEST_MODEL, or the cache that `make test` fills. Without it this fails, not skips."""
    path = Path(os.environ.get("HAYWAIN_TEST_MODEL") or demo_model.cached())
    assert path.exists(), f"{path} is missing: fetch it with `haywain demo-model`, or set HAYWAIN_TEST_MODEL"
    return path


@pytest.fixture
async def ask(path: Path) -> AsyncIterator[Any]:
    """Give a function that asks questions all at once and gives the answers' bodies; two decoders of four slots."""
    async with asking(path) as ask:
        yield ask


@contextlib.asynccontextmanager
async def asking(path: Path, **changes: Any) -> AsyncIterator[Any]:
    """Run a backend for such a function."""
    settings = LlamaCppSettings(model_path=str(path), model=MODEL, workers=2, slots=4, context_length=512, **changes)
    backend: LlamaCppBackend = create(EngineSettings(llamacpp=settings))
    emit = Results()
    await backend.start(emit)

    async def ask(questions: list[str], lane: pb.Lane = pb.LANE_STANDARD, **fields: Any) -> list[dict[str, Any]]:
        futures = []
        for question in questions:
            sequence_id = len(emit.results) + 1
            emit.results[sequence_id] = asyncio.get_running_loop().create_future()
            futures.append(emit.results[sequence_id])
            messages = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": question}]
            request = json.dumps({"model": MODEL, "messages": messages, "max_tokens": 32} | fields).encode()
            sequence = pb.Sequence(sequence_id=sequence_id, model=MODEL, endpoint=ENDPOINT, request=request, lane=lane)
            backend.submit([sequence])
        return [json.loads(result.body) for result in await asyncio.wait_for(asyncio.gather(*futures), 200)]

    yield ask
    await backend.close()


async def test_the_capital_of_france(ask: Any) -> None:
    """The model's own template is used, its answer makes sense, ends by itself, and is counted in tokens."""
    (body,) = await ask(["Name the capital of France."])
    (choice,) = body["choices"]
    assert "Paris" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens"] == 26
    assert body["usage"]["completion_tokens"] == 8
    assert body["system_fingerprint"].startswith("fp_")


async def test_eight_rows_together_as_one_at_a_time(ask: Any) -> None:
    """Greedy answers of eight rows at once over two decoders are, word for word, those of one row at a time."""
    together = [body["choices"] for body in await ask(QUESTIONS)]
    alone = [(await ask([question], pb.LANE_INTERACTIVE))[0]["choices"] for question in QUESTIONS]
    assert together == alone


async def test_a_seed_repeats_a_sampled_answer(ask: Any) -> None:
    """A sampled answer repeats with its seed, beside other rows too."""
    sampling = {"temperature": 0.8, "top_p": 0.9, "seed": 42, "max_tokens": 16}
    (alone,) = await ask([QUESTIONS[3]], **sampling)
    beside = await ask(QUESTIONS, **sampling)
    assert beside[3]["choices"] == alone["choices"]


async def test_deterministic_answers_are_the_same_beside_anything(path: Path) -> None:
    """With `deterministic`, sampled answers with a long shared beginning are the same alone, together, and shuffled."""
    questions = [
        "Please answer as briefly as you can, in one sentence and without repeating the question. " * 4 + one for one in QUESTIONS
    ]
    sampling = {"temperature": 1.0, "seed": 3, "max_tokens": 12}
    async with asking(path, deterministic=True) as ask:
        together = [body["choices"] for body in await ask(questions[:6], **sampling)]
        shuffled = [body["choices"] for body in await ask(questions[5::-1], **sampling)]
        alone = [(await ask([question], **sampling))[0]["choices"] for question in questions[:3]]
    assert shuffled[::-1] == together
    assert alone == together[:3]

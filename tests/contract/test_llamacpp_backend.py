"""The backend with its decoder processes, on a model of a few kilobytes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tiny_gguf
from llamacpp_running import ENDPOINT, Results, Running, settings, started

from engine.llamacpp.backend import LlamaCppBackend, create
from haywain import openai
from haywain.engine.v1 import engine_pb2 as pb
from haywain.metrics import REGISTRY

LANES = (pb.LANE_INTERACTIVE, pb.LANE_EXPEDITED, pb.LANE_STANDARD)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """Give a running backend."""
    async with started() as running:
        yield running


def content(result: pb.SequenceResult) -> str:
    """Take the first choice's text."""
    assert result.status_code == 200, result.body
    return str(json.loads(result.body)["choices"][0]["message"]["content"])


async def test_the_model_is_described(running: Running) -> None:
    """The description names the model, its digest, context, endpoint and the fields it honours, and promises no more."""
    (model,) = running.models
    assert model.model == "tiny"
    assert list(model.aliases) == ["tiny-random"]
    assert model.digest.startswith("sha256:")
    assert model.context_length == tiny_gguf.CONTEXT
    assert list(model.endpoints) == [ENDPOINT, "/v1/completions"]
    assert set(model.fields) == openai.CHAT_FIELDS - openai.TOOL_FIELDS | openai.COMPLETION_FIELDS
    assert model.deterministic
    assert running.backend.slots == 6
    assert len(running.backend.decoder_pids) == 2


async def test_a_chat_is_answered(running: Running) -> None:
    """An answer has OpenAI's shape and real token counts."""
    result = await running.chat("Hi", max_tokens=5)
    body = json.loads(result.body)
    assert body["object"] == "chat.completion"
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    # ⟦im_start⟧ u s er \n H i ⟦im_end⟧ \n ⟦im_start⟧ a s s i s t a n t \n
    assert body["usage"]["prompt_tokens"] == result.usage.input_tokens == 20
    assert body["usage"]["completion_tokens"] == result.usage.output_tokens == 5
    assert not result.HasField("seed")


async def test_many_rows_say_what_each_says_alone(running: Running) -> None:
    """40 rows at once over both decoders equal the same rows one after another."""
    alone = [content(await running.chat(f"row {n % 20}", lane=pb.LANE_INTERACTIVE)) for n in range(20)]
    together = await running.ended(*(running.begin(f"row {n % 20}") for n in range(40)))
    assert [content(result) for result in together] == alone * 2


async def test_sharers_evaluate_what_they_share_once_a_decoder() -> None:
    """30 rows with one long beginning report nearly all of it as cached; texts stay the same where no cells are shared."""
    async with started(layout="plain") as running:
        head = "You classify messages. " * 8
        alone = [content(await running.chat(f"{head} {n}", lane=pb.LANE_INTERACTIVE)) for n in range(4)]
        results = await running.ended(*(running.begin(f"{head} {n}") for n in range(30)))
        assert [content(result) for result in results[:4]] == alone
        cached = [result.usage.cached_tokens for result in results]
        assert cached.count(0) <= 1  # the decoder that had none of it
        assert min(filter(None, cached)) >= 128
        assert [json.loads(result.body)["usage"]["prompt_tokens_details"]["cached_tokens"] for result in results] == cached


async def test_choices_share_their_prompt(running: Running) -> None:
    """The prompt of `n` choices is counted once, and as cached only what no choice had to evaluate."""
    first = await running.chat("choose " * 30, n=3, temperature=1.0)
    again = await running.chat("choose " * 30, n=3, temperature=1.0)
    assert (first.usage.cached_tokens, again.usage.cached_tokens > 100) == (0, True)
    assert first.usage.input_tokens == again.usage.input_tokens < 300


async def test_of_choices_one_evaluates_their_prompt() -> None:
    """A decoder evaluates the prompt of eight choices once: all but its last tokens are cached for the other seven."""
    async with started(workers=1, slots=8) as running:
        await running.chat("once " * 40, n=8, temperature=1.0, max_tokens=1)
        found = {family.name: family for family in REGISTRY.collect()}
        given, cached = (found[f"haywain_{name}_tokens"].samples[0].value for name in ("prompt", "cached_prompt"))
        assert cached == 7 * (given / 8 - 2)


async def test_a_stream_brings_chunks_then_the_result(running: Running) -> None:
    """Role, content, finish, usage, in that order, and together they are the whole answer."""
    sequence_id = running.begin("stream", stream=True, stream_options={"include_usage": True}, max_tokens=30)
    (result,) = await running.ended(sequence_id)
    chunks = running.results.deltas[sequence_id]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"]]
    assert "".join(texts) == content(result)
    assert len([text for text in texts if text]) > 3
    assert chunks[-2]["choices"][0]["finish_reason"] in ("stop", "length")
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == result.usage.output_tokens
    assert len({chunk["id"] for chunk in chunks} | {json.loads(result.body)["id"]}) == 1


async def test_choices_are_rows_of_their_own(running: Running) -> None:
    """`n` answers come in order, sampled apart, repeatable by seed, with usage summed; more than the slots hold is fine."""
    results = [await running.chat(n=9, seed=5, temperature=1.0) for _ in range(2)]
    bodies = [json.loads(result.body) for result in results]
    texts = [[choice["message"]["content"] for choice in body["choices"]] for body in bodies]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 9
    assert [choice["index"] for choice in bodies[0]["choices"]] == list(range(9))
    assert results[0].usage.output_tokens > 9
    assert results[0].seed == 5


async def test_an_unseeded_sample_tells_its_seed(running: Running) -> None:
    """Without a seed one is drawn and told, and it repeats the answer."""
    first = await running.chat(temperature=1.0)
    assert first.HasField("seed")
    assert content(await running.chat(temperature=1.0, seed=first.seed)) == content(first)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"content": "x" * 600}, "context_length_exceeded", "messages"),
        ({"tools": []}, "unsupported_parameter", "tools"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "invalid_value", "response_format"),
        ({"logit_bias": {"300": 1}}, "invalid_value", "logit_bias"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"messages": [{"rolez": "user"}]}, "unknown_parameter", "messages[0].rolez"),
        ({"chat_template_kwargs": {"messages": []}}, "invalid_value", "chat_template_kwargs.messages"),
    ],
)
async def test_a_bad_row_is_refused_with_its_field(running: Running, fields: dict[str, Any], code: str, param: str) -> None:
    """Errors of the request are 400 rows with code and field, never retryable."""
    result = await running.chat(**fields)
    assert (result.status_code, result.error.code, result.retryable) == (400, code, False)
    assert json.loads(result.body)["error"]["code"] == code
    assert result.error.param == param


async def test_an_overflow_names_both_numbers(running: Running) -> None:
    """A prompt over the context says how long it is and what the limit is."""
    result = await running.chat("x" * 600)
    assert str(tiny_gguf.CONTEXT) in result.error.message
    assert str(600 + 18) in result.error.message


async def test_the_answer_is_clamped_to_the_room(running: Running) -> None:
    """More tokens than the context has room for are not an error: the answer ends with `length` where the context does."""
    keep_on = {str(token): -100 for token in (tiny_gguf.EOS, tiny_gguf.IM_END)}
    for limit in (100_000, ...):
        result = await running.chat("x" * 450, max_tokens=limit, logit_bias=keep_on)
        assert json.loads(result.body)["choices"][0]["finish_reason"] == "length"
        assert result.usage.input_tokens + result.usage.output_tokens == tiny_gguf.CONTEXT


async def test_cancelling_stops_what_runs_what_waits_and_what_is_new(running: Running) -> None:
    """Every cancelled sequence ends once with 499, wherever it was; unknown ids are ignored; the rest goes on."""
    keep_on = {str(token): -100 for token in (tiny_gguf.EOS, tiny_gguf.IM_END)}
    first = running.begin(stream=True, max_tokens=400, logit_bias=keep_on)
    others = [running.begin(max_tokens=400, logit_bias=keep_on) for _ in range(30)]
    await asyncio.wait_for(running.results.began.wait(), 30)
    new = running.begin(max_tokens=400)
    running.backend.cancel([first, *others[:29], new, 12345])
    results = await running.ended(first, *others[:29], new)
    assert {(result.status_code, result.error.code) for result in results} == {(499, "cancelled")}
    assert (await running.ended(others[29]))[0].status_code == 200
    running.backend.cancel([first])
    assert (await running.chat()).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
async def test_a_decoder_that_dies_costs_a_retry_and_comes_back(running: Running, number: signal.Signals) -> None:
    """Its sequences are answered as retryable 503s, those of the other decoder go on, and a new decoder takes its place."""
    keep_on = {str(token): -100 for token in (tiny_gguf.EOS, tiny_gguf.IM_END)}
    ids = [running.begin(stream=True, max_tokens=400, logit_bias=keep_on) for _ in range(6)]
    await asyncio.wait_for(running.results.began.wait(), 30)
    before = running.backend.decoder_pids
    os.kill(before[0], number)
    results = await running.ended(*ids)
    lost = [result for result in results if result.status_code != 200]
    assert 1 <= len(lost) <= 5
    assert {(result.status_code, result.error.code, result.retryable) for result in lost} == {(503, "engine_error", True)}
    assert all(number.name in result.error.message for result in lost)
    assert [result.status_code for result in await running.ended(*(running.begin() for _ in range(12)))] == [200] * 12
    async with asyncio.timeout(30):
        while len(running.backend.decoder_pids) < 2:
            assert (await running.chat()).status_code == 200
    assert before[1] in running.backend.decoder_pids
    assert not running.results.death.done()


async def test_rows_wait_while_every_decoder_is_being_restarted(running: Running) -> None:
    """With all decoders dead, new rows wait for one instead of failing."""
    keep_on = {str(token): -100 for token in (tiny_gguf.EOS, tiny_gguf.IM_END)}
    ids = [running.begin(stream=True, max_tokens=400, logit_bias=keep_on) for _ in range(6)]
    await asyncio.wait_for(running.results.began.wait(), 30)
    for pid in running.backend.decoder_pids:
        os.kill(pid, signal.SIGKILL)
    lost = [result for result in await running.ended(*ids) if result.retryable]
    assert lost
    assert [result.status_code for result in await running.ended(*(running.begin() for _ in range(12)))] == [200] * 12


async def test_every_sequence_ends_once_whatever_happens(running: Running) -> None:
    """Rows of every kind and lane, cancels and killed decoders in between: each row gets exactly one result, and a sensible one."""
    chance = random.Random(3)
    ids: list[int] = []
    for turn in range(90):
        fields: dict[str, Any] = {"max_tokens": chance.randint(1, 60), "n": chance.choice([1, 1, 1, 3])}
        if chance.random() < 0.4:
            fields |= {"temperature": 1.0, "seed": turn}
        if chance.random() < 0.3:
            fields["stream"] = True
        ids.append(running.begin("x" * chance.choice([1, 30, 200, 700]), lane=chance.choice(LANES), **fields))
        if chance.random() < 0.2:
            running.backend.cancel([chance.choice(ids)])
        if turn % 30 == 15 and (pids := running.backend.decoder_pids):
            os.kill(chance.choice(pids), signal.SIGKILL)
        if chance.random() < 0.5:
            await running.ended(chance.choice(ids))
    results = await running.ended(*ids)
    assert {result.status_code for result in results} <= {200, 400, 499, 503}
    assert all(result.retryable == (result.status_code == 503) for result in results)
    assert [result.status_code for result in results].count(200) > 15
    assert content(await running.chat()) == content(await running.chat())


async def test_a_decoder_that_hangs_is_replaced() -> None:
    """One that says nothing while it has work is killed; its rows are retryable, and the next ones are answered."""
    backend = LlamaCppBackend(settings(tiny_gguf.tiny_gguf(), workers=1).llamacpp, silence_seconds=0.5)
    results = Results()
    running = Running(backend, results, await backend.start(results))
    try:
        os.kill(backend.decoder_pids[0], signal.SIGSTOP)
        assert (await running.chat()).retryable
        assert (await running.chat()).status_code == 200
    finally:
        await backend.close()


async def test_a_model_that_went_away_ends_the_backend(tmp_path: Path) -> None:
    """When a decoder can't be started any more, the backend says that it died, with the reason, and doesn't try for ever."""
    path = tmp_path / "gone.gguf"
    path.write_bytes(tiny_gguf.tiny_gguf().read_bytes())
    backend = create(settings(path, workers=1))
    results = Results()
    await backend.start(results)
    try:
        path.write_bytes(b"GGUF, but no more")
        os.kill(backend.decoder_pids[0], signal.SIGKILL)
        assert "has changed" in await asyncio.wait_for(results.death, 30)
    finally:
        await backend.close()


async def test_nothing_is_emitted_after_close() -> None:
    """Closing in the middle of work ends the processes and leaves every sequence unanswered."""
    backend = create(settings(tiny_gguf.tiny_gguf()))
    results = Results()
    running = Running(backend, results, await backend.start(results))
    ids = [running.begin(max_tokens=400) for _ in range(20)]
    await backend.close()
    assert not any(results.of(sequence_id).done() for sequence_id in ids)
    assert backend.decoder_pids == []

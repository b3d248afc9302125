"""Answers of the backend: log-probabilities, formats that are enforced, and /v1/completions. On a model of a few kilobytes."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
import tiny_gguf
from llamacpp_running import Running, started

from haywain.engine.v1 import engine_pb2 as pb

COMPLETIONS = "/v1/completions"
KEEP_ON = {str(token): -100 for token in (tiny_gguf.EOS, tiny_gguf.IM_END)}


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """Give a running backend of two decoders with three slots."""
    async with started() as running:
        yield running


def body(result: pb.SequenceResult) -> dict[str, Any]:
    """Decode an answer that must have gone well."""
    assert result.status_code == 200, result.body
    answer: dict[str, Any] = json.loads(result.body)
    return answer


async def test_logprobs_are_a_distribution(running: Running) -> None:
    """Every generated token is told with its log-probability and 20 others, the best first; greedy takes the best."""
    (choice,) = body(await running.chat(logprobs=True, top_logprobs=20, max_tokens=6, logit_bias=KEEP_ON))["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 6
    assert b"".join(bytes(one["bytes"]) for one in content).decode("utf-8", "replace") == choice["message"]["content"]
    for one in content:
        chances = [other["logprob"] for other in one["top_logprobs"]]
        assert len(chances) == 20
        assert chances == sorted(chances, reverse=True)
        assert 0 < sum(map(math.exp, chances)) <= 1.000001
        assert one["logprob"] == chances[0]
        assert one["token"] == one["top_logprobs"][0]["token"] == bytes(one["bytes"]).decode("utf-8", "replace")


async def test_logprobs_are_of_the_model_and_of_the_text(running: Running) -> None:
    """A forced token keeps its own low probability; tokens behind a stop string and the ending one aren't told; none by default."""
    forced = body(await running.chat(logprobs=True, logit_bias={"65": 100}, max_tokens=1))["choices"][0]["logprobs"]["content"]
    assert forced[0]["bytes"] == [65]
    assert forced[0]["logprob"] < -1
    assert forced[0]["top_logprobs"] == []
    ended = body(await running.chat(logprobs=True, logit_bias={str(tiny_gguf.EOS): 100}))["choices"][0]
    assert (ended["finish_reason"], ended["logprobs"]["content"]) == ("stop", [])
    stopped = body(await running.chat(logprobs=True, logit_bias={"65": 100}, stop=["AA"]))["choices"][0]
    assert (stopped["message"]["content"], stopped["logprobs"]["content"]) == ("", [])
    assert body(await running.chat())["choices"][0]["logprobs"] is None


async def test_streamed_logprobs_are_the_same(running: Running) -> None:
    """Chunks bring the tokens of their text; together they are what isn't streamed."""
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 30, "logit_bias": KEEP_ON}
    whole = body(await running.chat(**fields))["choices"][0]["logprobs"]["content"]
    sequence_id = running.begin(stream=True, **fields)
    await running.ended(sequence_id)
    told = [chunk["choices"][0]["logprobs"] for chunk in running.results.deltas[sequence_id] if chunk["choices"]]
    assert [one for logprobs in told if logprobs for one in logprobs["content"]] == whole


async def test_json_is_enforced(running: Running) -> None:
    """A model that babbles answers in JSON of the schema, greedy and sampled, alone and beside free rows."""
    wanted = {
        "type": "object",
        "properties": {"label": {"enum": ["spam", "ham"]}, "sure": {"type": "boolean"}, "note": {"type": "string", "maxLength": 4}},
        "required": ["label", "sure", "note"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": wanted}}
    rows = [running.begin(f"row {n}", response_format=form, max_tokens=200, temperature=n % 2, seed=n) for n in range(12)]
    free = [running.begin(f"row {n}", temperature=n % 2, seed=n) for n in range(12)]
    for result in await running.ended(*rows):
        (choice,) = body(result)["choices"]
        answer = json.loads(choice["message"]["content"])
        assert choice["finish_reason"] == "stop"
        assert answer.keys() == {"label", "sure", "note"}
        assert answer["label"] in ("spam", "ham")
        assert len(answer["note"].encode("utf-16-le")) <= 16
    assert {result.status_code for result in await running.ended(*free)} == {200}


async def test_json_object_and_its_cut(running: Running) -> None:
    """json_object gives an object, or the beginning of one when max_tokens cuts it off."""
    (choice,) = body(await running.chat(response_format={"type": "json_object"}, max_tokens=12))["choices"]
    assert choice["message"]["content"].lstrip().startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


async def test_an_output_that_nothing_fits_fails_the_row_alone(running: Running) -> None:
    """A schema that is left-recursive is refused; the decoders live on."""
    itself = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    pids = running.backend.decoder_pids
    result = await running.chat(response_format={"type": "json_schema", "json_schema": {"schema": itself}})
    assert (result.status_code, result.error.param) == (400, "response_format")
    assert body(await running.chat())["choices"]
    assert running.backend.decoder_pids == pids


async def test_completions_take_every_form_of_prompt(running: Running) -> None:
    """A text, token ids, and lists of either: one choice each, in order, the same for the same prompt; usage is summed."""
    both = body(await running.complete(["once", "upon"]))
    assert both["object"] == "text_completion"
    assert [choice["index"] for choice in both["choices"]] == [0, 1]
    ids = body(await running.complete([list(b"once"), list(b"upon")]))
    assert [choice["text"] for choice in ids["choices"]] == [choice["text"] for choice in both["choices"]]
    one = body(await running.complete(list(b"upon")))
    assert one["choices"][0]["text"] == both["choices"][1]["text"]
    assert both["usage"]["prompt_tokens"] == 8
    assert body(await running.complete("", max_tokens=1))["usage"]["prompt_tokens"] == 1


async def test_completions_have_n_choices_a_prompt(running: Running) -> None:
    """`n` choices of each prompt follow one another; a prompt counts once; 16 tokens by default."""
    answer = body(await running.complete(["a", "b"], n=3, temperature=1.0, seed=4, max_tokens=..., logit_bias=KEEP_ON))
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(set(texts)) == 6
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["usage"]["completion_tokens"] == 6 * 16
    alone = body(await running.complete("b", n=3, temperature=1.0, seed=4, max_tokens=..., logit_bias=KEEP_ON))
    assert [choice["text"] for choice in alone["choices"]] == texts[3:]


async def test_control_texts_in_a_prompt_are_control_tokens(running: Running) -> None:
    """A raw prompt is the caller's own: it may be a chat that was rendered elsewhere, and then the answer is the chat's."""
    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    chat = body(await running.chat("hello"))
    text = body(await running.complete(rendered))
    assert text["choices"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert text["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"]


async def test_echo_puts_the_prompt_in_front(running: Running) -> None:
    """With echo a choice begins with its prompt, given as text or tokens, streamed or not."""
    plain = body(await running.complete("once"))["choices"][0]["text"]
    for prompt in ("once", list(b"once")):
        assert body(await running.complete(prompt, echo=True))["choices"][0]["text"] == "once" + plain
    sequence_id = running.begin(..., endpoint=COMPLETIONS, prompt="once", echo=True, stream=True, messages=...)
    await running.ended(sequence_id)
    chunks = running.results.deltas[sequence_id]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "once" + plain
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


async def test_completions_tell_logprobs_in_their_own_shape(running: Running) -> None:
    """Four lists of one length; offsets point into the text."""
    (choice,) = body(await running.complete("once", logprobs=2, max_tokens=10, logit_bias=KEEP_ON))["choices"]
    told = choice["logprobs"]
    assert {len(told[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {10}
    assert all(len(top) <= 2 for top in told["top_logprobs"])
    assert told["text_offset"][0] == 0


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": "x" * 600}, "context_length_exceeded", "prompt"),
        ({"prompt": [1, 99_999]}, "invalid_value", "prompt"),
        ({"prompt": "a", "suffix": "b"}, "unsupported_parameter", "suffix"),
        ({"prompt": "a", "best_of": 2}, "unsupported_parameter", "best_of"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "invalid_value", "echo"),
        ({"prompt": ["a", "x" * 600]}, "context_length_exceeded", "prompt"),
    ],
)
async def test_a_bad_completion_is_refused_with_its_field(running: Running, fields: dict[str, Any], code: str, param: str) -> None:
    """Errors of the request are 400 rows with code and field."""
    result = await running.complete(**fields)
    assert (result.status_code, result.error.code, result.error.param) == (400, code, param)


async def test_a_model_without_a_template_serves_completions_only() -> None:
    """A base model says that it answers /v1/completions, and does."""
    async with started(tiny_gguf.tiny_gguf(template=None)) as running:
        (model,) = running.models
        assert list(model.endpoints) == [COMPLETIONS]
        assert "prompt" in model.fields
        assert "messages" not in model.fields
        assert body(await running.complete("once"))["choices"][0]["text"]
        assert (await running.chat()).error.code == "unsupported_endpoint"


async def test_everything_at_once(running: Running) -> None:
    """A schema, two choices, log-probabilities and a stop string, drawn: streamed it is what it is whole, each choice by itself."""
    wanted = {
        "type": "object",
        "properties": {"name": {"enum": ["\u00c4da", "Bo"]}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    asked: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": wanted}}}
    asked |= {"n": 2, "temperature": 1.0, "seed": 3, "logprobs": True, "top_logprobs": 1, "stop": ['"age"'], "max_tokens": 60}
    asked |= {"asked": {"deterministic": True}}
    whole = body(await running.chat(**asked))["choices"]
    sequence_id = running.begin(stream=True, **asked)
    await running.ended(sequence_id)
    for choice in whole:
        told = [one for chunk in running.results.deltas[sequence_id] for one in chunk["choices"] if one["index"] == choice["index"]]
        text = choice["message"]["content"]
        assert "".join(one["delta"].get("content") or "" for one in told) == text
        assert [one for chunk in told if chunk["logprobs"] for one in chunk["logprobs"]["content"]] == choice["logprobs"]["content"]
        assert [one["finish_reason"] for one in told if one["finish_reason"]] == [choice["finish_reason"]] == ["stop"]
        assert any(text.replace(" ", "").replace("\n", "") == f'{{"name":"{name}",' for name in ("\u00c4da", "Bo"))

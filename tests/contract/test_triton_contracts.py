"""Each contract, on mocks in the real Triton server: what is asked by which tensors, and what is made of the answers."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from triton_fixture import TritonServer
from triton_running import CHAT, COMPLETIONS, EMBEDDINGS, Running, seen, settings, started

from haywain.settings import TritonContractSettings

SAMPLED = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 5, "stop": ["END"], "max_tokens": 9}


async def test_vllm_takes_everything_as_json_and_tells_everything(triton: TritonServer, tmp_path: Path) -> None:
    """vLLM's tensors: sampling as JSON, never the prompt in the answer, usage and finish reason from the model."""
    async with started(settings(triton, "vllm_mock", tmp_path)) as running:
        assert sorted(running.model.endpoints) == [CHAT, COMPLETIONS]
        assert {"min_p", "repeat_penalty", "max_completion_tokens"} <= set(running.model.fields)
        assert not {"logit_bias", "tools", "max_context_length"} & set(running.model.fields)
        body = await running.ask(COMPLETIONS, prompt="epsilon one two", presence_penalty=1, repeat_penalty=1.1, **SAMPLED)
        assert body["choices"][0] == {"index": 0, "text": "epsilon one two", "finish_reason": "stop", "logprobs": None}
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 3)
    asked = await seen(triton, "epsilon")
    assert asked["tensors"]["exclude_input_in_output"] == [True]
    assert asked["tensors"]["stream"] == [False]
    for member in ('"top_k":7', '"seed":5', '"stop":["END"]', '"repetition_penalty":1.1', '"presence_penalty":1.0'):
        assert member in asked["json"]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMATS = ({"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}, {"type": "json_object"}, {"type": "text"})


async def test_vllm_guides_decoding_by_its_json(triton: TritonServer) -> None:
    """A schema, or JSON of any kind, goes out as `guided_decoding`, JSON in a text; a text is asked for without."""
    async with started(settings(triton, "vllm_mock")) as running:
        for number, wanted in enumerate(FORMATS):
            await running.ask(COMPLETIONS, prompt=f"guided {number}", response_format=wanted)
    asked = [json.loads((await seen(triton, f"guided {number}"))["json"]).get("guided_decoding") for number in range(3)]
    assert [given and json.loads(given) for given in asked] == [{"json": SCHEMA}, {"json_object": True}, None]


async def test_tensorrt_llm_guides_decoding_by_two_tensors(triton: TritonServer) -> None:
    """The kind of guide, and the schema where there is one; without the tensors the field is refused by name."""
    async with started(settings(triton, "ensemble")) as running:
        for number, wanted in enumerate(FORMATS):
            await running.ask(COMPLETIONS, prompt=f"steered {number}", response_format=wanted)
    async with started(settings(triton, "ensemble_old")) as running:
        refused = await running.refused(COMPLETIONS, prompt="steered", response_format={"type": "json_object"})
        assert (refused.error.code, refused.error.param) == ("unsupported_parameter", "response_format")
    names = ("guided_decoding_guide_type", "guided_decoding_guide")
    asked = [(await seen(triton, f"steered {number}"))["tensors"] for number in range(3)]
    told = [[tensors.get(name) for name in names] for tensors in asked]
    assert told == [[["json_schema"], [json.dumps(SCHEMA, separators=(",", ":"))]], [["json"], None], [None, None]]


async def test_vllm_tells_log_probabilities(triton: TritonServer, tmp_path: Path) -> None:
    """The chosen token's and those of the likeliest, in both of OpenAI's shapes, streamed too; none behind a stop string."""
    async with started(settings(triton, "vllm_mock", tmp_path)) as running:
        messages = [{"role": "user", "content": "chi"}]
        body = await running.ask(CHAT, messages=messages, logprobs=True, top_logprobs=2)
        content = body["choices"][0]["logprobs"]["content"]
        assert "".join(entry["token"] for entry in content) == body["choices"][0]["message"]["content"]
        assert content[1] == {
            "token": " chi", "logprob": -1.5, "bytes": list(b" chi"),
            "top_logprobs": [
                {"token": " chi1", "logprob": -0.5, "bytes": list(b" chi1")},
                {"token": " chi2", "logprob": -1.0, "bytes": list(b" chi2")},
            ],
        }  # fmt: skip
        assert [entry["top_logprobs"] for entry in (await _chances(running, CHAT, messages=messages, logprobs=True))] == [[]] * 3
        number = running.submit(CHAT, messages=messages, logprobs=True, stream=True)
        whole = json.loads((await running.end(number)).body)["choices"][0]["logprobs"]["content"]
        chunks = [chunk["choices"][0] for chunk in running.results.deltas[number]]
        pieces = [entry for chunk in chunks for entry in (chunk["logprobs"] or {"content": []})["content"]]
        assert [entry["token"] for entry in pieces] == [entry["token"] for entry in whole] == ["<user>", " chi", " <assistant>"]
        told = (await running.ask(COMPLETIONS, prompt="psi one END two", stop=" END", logprobs=1))["choices"][0]
        assert (told["text"], told["logprobs"]["tokens"], told["logprobs"]["text_offset"]) == ("psi one", ["psi", " one"], [0, 3])
        assert told["logprobs"]["top_logprobs"] == [{"psi1": -0.5}, {" one1": -0.5}]
        refused = await running.refused(COMPLETIONS, prompt="psi", logprobs=1, echo=True)
        assert refused.error.param == "echo"


async def _chances(running: Running, endpoint: str, **body: object) -> list[dict[str, Any]]:
    choice = (await running.ask(endpoint, **body))["choices"][0]
    return list(choice["logprobs"]["content"])


async def test_without_a_temperature_the_most_likely_token_is_asked_for(triton: TritonServer) -> None:
    """As on every engine: vLLM is sent temperature 0, TensorRT-LLM top_k 1."""
    async with started(settings(triton, "vllm_mock")) as running:
        await running.ask(COMPLETIONS, prompt="zeta")
    async with started(settings(triton, "ensemble")) as running:
        await running.ask(COMPLETIONS, prompt="zeta2")
    assert '"temperature":0.0' in (await seen(triton, "zeta"))["json"]
    tensors = (await seen(triton, "zeta2"))["tensors"]
    assert tensors["top_k"] == [1]
    assert "temperature" not in tensors


async def test_a_seed_is_chosen_where_none_is_given_and_told(triton: TritonServer) -> None:
    """A sampled request without a seed gets one, the provenance tells it, and choice i uses the seed plus i."""
    async with started(settings(triton, "ensemble")) as running:
        result = await running.end(running.submit(COMPLETIONS, prompt="seeded", temperature=1, n=3))
        assert result.HasField("seed")
    await seen(triton, "seeded", 3)
    seeds = sorted(asked["tensors"]["seed"][0] for asked in triton.requests("seeded"))
    assert seeds == [result.seed, result.seed + 1, result.seed + 2]


async def test_tensorrt_llm_has_no_finish_reason_so_it_is_derived(triton: TritonServer) -> None:
    """The ensemble counts tokens: an answer as long as allowed was cut; the provenance says who said so."""
    async with started(settings(triton, "ensemble")) as running:
        assert running.backend.slots == 4
        assert "min_p" not in running.model.fields
        result = await running.end(running.submit(COMPLETIONS, prompt="theta one two", **SAMPLED | {"max_tokens": 2}))
        assert list(result.derived) == ["finish_reason"]
        assert b'"finish_reason":"length"' in result.body
        assert (result.usage.input_tokens, result.usage.output_tokens) == (3, 2)
    tensors = (await seen(triton, "theta"))["tensors"]
    assert tensors["stop_words"] == ["END"]
    assert tensors["temperature"] == [0.5]
    assert tensors["top_p"] == [pytest.approx(0.9)]
    assert tensors["top_k"] == [7]


async def test_an_old_release_is_met_by_its_own_names_and_types(triton: TritonServer) -> None:
    """`random_seed`, `streaming`, unsigned counts, as older TensorRT-LLM releases have them; usage is estimated and marked so."""
    async with started(settings(triton, "ensemble_old")) as running:
        assert "frequency_penalty" not in running.model.fields
        number = running.submit(COMPLETIONS, prompt="iota one two three", stream=True, **SAMPLED)
        result = await running.end(number)
        assert sorted(result.derived) == ["finish_reason", "usage"]
        assert result.usage.output_tokens == 5  # 18 bytes
        texts = [chunk["choices"][0]["text"] for chunk in running.results.deltas[number]]
        assert texts == ["iota", " one", " two", " three", ""]
    tensors = (await seen(triton, "iota"))["tensors"]
    assert tensors["random_seed"] == [5]
    assert tensors["streaming"] == [True]


async def test_llmapi_is_not_decoupled_and_streams_in_one_piece(triton: TritonServer, tmp_path: Path) -> None:
    """TensorRT-LLM's llmapi model answers once: a stream has one piece of text, its end and what was asked for."""
    async with started(settings(triton, "llmapi", tmp_path)) as running:
        messages = [{"role": "user", "content": "kappa"}]
        number = running.submit(CHAT, messages=messages, stream=True, stream_options={"include_usage": True}, **SAMPLED)
        result = await running.end(number)
        assert list(result.derived) == ["usage"]
        chunks = running.results.deltas[number]
        assert [chunk["choices"][0]["delta"] for chunk in chunks[:-1]] == [
            {"role": "assistant", "content": ""},
            {"content": "<user> kappa <assistant>"},
            {},
        ]
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
        assert chunks[-1]["usage"]["total_tokens"] == 12
    tensors = (await seen(triton, "kappa"))["tensors"]
    assert tensors["sampling_param_stop"] == ["END"]
    assert tensors["streaming"] == [False]


async def test_any_other_model_runs_by_a_mapping_in_the_settings(triton: TritonServer) -> None:
    """Names, types and constants as the operator wrote them; what isn't named isn't honoured."""
    contract = TritonContractSettings(
        prompt="QUESTION",
        text="ANSWER",
        max_tokens="LIMIT",
        temperature="HEAT",
        output_tokens="COUNT",
        constants={"MODE": "plain", "RAW": "true"},
    )
    async with started(settings(triton, "custom", contract=contract, served_as="mine")) as running:
        assert running.model.model == "mine"
        assert "top_p" not in running.model.fields
        refused = await running.refused(COMPLETIONS, prompt="lambda", top_p=0.5)
        assert (refused.error.code, refused.error.param) == ("unsupported_parameter", "top_p")
        body = await running.ask(COMPLETIONS, prompt="lambda one two", max_tokens=2, temperature=0.25, echo=True)
        assert body["choices"][0]["text"] == "lambda one twolambda one"
        assert body["choices"][0]["finish_reason"] == "length"
    tensors = (await seen(triton, "lambda"))["tensors"]
    assert tensors == {"QUESTION": ["lambda one two"], "LIMIT": [2], "HEAT": [0.25], "MODE": ["plain"], "RAW": [True]}


async def test_a_model_of_vectors_answers_embeddings(triton: TritonServer) -> None:
    """Texts in, vectors out, in the order of the inputs, as numbers or base64; a chat is not its business."""
    async with started(settings(triton, "sentences")) as running:
        assert list(running.model.endpoints) == [EMBEDDINGS]
        body = await running.ask(EMBEDDINGS, input=["mu one", "mu"])
        assert [entry["embedding"] for entry in body["data"]] == [[6.0, 2.0, 0.5], [2.0, 1.0, 0.5]]
        body = await running.ask(EMBEDDINGS, input="mu", encoding_format="base64")
        assert struct.unpack("<3f", base64.b64decode(body["data"][0]["embedding"])) == (2.0, 1.0, 0.5)
        refused = await running.refused(EMBEDDINGS, input="mu", dimensions=2)
        assert refused.error.param == "dimensions"


async def test_a_stop_string_ends_an_answer_that_the_model_let_run_on(triton: TritonServer) -> None:
    """The text ends before the stop string, in a stream as well, and the model is told to stop."""
    async with started(settings(triton, "vllm_mock")) as running:
        words = "nu one two STOP [ms=20] three four five"
        body = await running.ask(COMPLETIONS, prompt=words, stop=" STOP")
        assert body["choices"][0] == {"index": 0, "text": "nu one two", "finish_reason": "stop", "logprobs": None}
        number = running.submit(COMPLETIONS, prompt=words + " six", stop=["two STO", "zzz"], stream=True)
        await running.end(number)
        assert "".join(chunk["choices"][0]["text"] for chunk in running.results.deltas[number]) == "nu one "
    assert (await seen(triton, "six"))["outcome"].startswith("cancelled")


async def test_several_prompts_and_choices_are_one_answer(triton: TritonServer) -> None:
    """Two prompts with two choices each are four requests to Triton and one answer; a prompt counts once for its choices."""
    async with started(settings(triton, "vllm_mock")) as running:
        body = await running.ask(COMPLETIONS, prompt=["xi a", "xi b c"], n=2)
        assert [choice["text"] for choice in body["choices"]] == ["xi a", "xi a", "xi b c", "xi b c"]
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (5, 10)
        refused = await running.refused(COMPLETIONS, prompt=[1, 2])
        assert refused.error.code == "invalid_value"

"""Contracts: which of a model's tensors carries what. Found from the model's tensors, or written in the settings; never by a name.

A contract is data. Where releases differ in a tensor's name, all names are listed and the one that is there is taken; its type and
shape are the model's (engine/triton/fitted.py). A field of a request for which the model has no tensor is not honoured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from haywain.errors import SettingsError
from haywain.settings import TritonContractSettings

__all__ = ["CONTRACTS", "Contract", "Names", "of_settings"]

Names = tuple[str, ...]


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """Names of tensors by what they carry; of several names the first that the model has."""

    name: str
    prompt: Names
    text: Names = ()
    embedding: Names = ()
    """a vector of numbers, for a model that embeds"""
    marks: Names = ()
    """inputs by which a model is known to be of this contract, besides prompt and answer"""
    fields: Mapping[str, Names] = {}
    """inputs by the field of a request that they carry"""
    parameters: Names = ()
    """an input that carries many fields as JSON"""
    members: Mapping[str, str] = {}
    """fields in that JSON, by the field of a request"""
    guided: tuple[str, str] = ("", "")
    """an input by which a release is known that can guide decoding, and the member of that JSON for it, JSON in a text"""
    guide: Names = ()
    """or two inputs: the kind of guide (`json`, `json_schema`), and the schema"""
    ask_logprobs: Names = ()
    """an input that asks for log-probabilities"""
    logprobs: Names = ()
    """their output: for each token a JSON object of candidates, the chosen one first"""
    stream: Names = ()
    constants: Mapping[str, Any] = {}
    """inputs that always have the same value; left out where the model has no such tensor"""
    fillers: Mapping[str, Any] = {}
    """values of inputs that some releases want in every request"""
    finish_reason: Names = ()
    input_tokens: Names = ()
    output_tokens: Names = ()
    """tokens since the last response"""
    greedy_top_k: bool = False
    """the most likely token is asked for by `top_k` 1, rather than by `temperature` 0"""


_TRT_SAMPLING: Final = {
    "temperature": ("temperature",),
    "top_k": ("top_k", "runtime_top_k"),
    "top_p": ("top_p", "runtime_top_p"),
    "min_p": ("min_p",),
    "seed": ("seed", "random_seed"),
    "stop": ("stop_words",),
    "presence_penalty": ("presence_penalty",),
    "frequency_penalty": ("frequency_penalty",),
    "repeat_penalty": ("repetition_penalty",),
}

CONTRACTS: Final = (
    # https://github.com/triton-inference-server/vllm_backend/blob/main/src/model.py
    Contract(
        name="vllm",
        prompt=("text_input",),
        text=("text_output",),
        marks=("sampling_parameters",),
        parameters=("sampling_parameters",),
        members={
            "max_tokens": "max_tokens",
            "temperature": "temperature",
            "top_p": "top_p",
            "top_k": "top_k",
            "min_p": "min_p",
            "seed": "seed",
            "stop": "stop",
            "presence_penalty": "presence_penalty",
            "frequency_penalty": "frequency_penalty",
            "repeat_penalty": "repetition_penalty",
        },
        guided=("embedding_request", "guided_decoding"),
        ask_logprobs=("return_logprobs",),
        logprobs=("logprobs",),
        stream=("stream",),
        constants={
            "exclude_input_in_output": True,
            "return_finish_reason": True,
            "return_num_input_tokens": True,
            "return_num_output_tokens": True,
        },
        finish_reason=("finish_reason",),
        input_tokens=("num_input_tokens",),
        output_tokens=("num_output_tokens",),
    ),
    # https://github.com/NVIDIA/TensorRT-LLM/tree/main/triton_backend/all_models/llmapi
    Contract(
        name="llmapi",
        prompt=("text_input",),
        text=("text_output",),
        marks=("sampling_param_max_tokens",),
        fields={
            "max_tokens": ("sampling_param_max_tokens",),
            "temperature": ("sampling_param_temperature",),
            "top_k": ("sampling_param_top_k",),
            "top_p": ("sampling_param_top_p",),
            "seed": ("sampling_param_seed",),
            "stop": ("sampling_param_stop",),
            "presence_penalty": ("sampling_param_presence_penalty",),
            "frequency_penalty": ("sampling_param_frequency_penalty",),
        },
        stream=("streaming", "stream"),
        constants={"sampling_param_exclude_input_from_output": True, "return_finish_reason": True},
        finish_reason=("finish_reason",),
        input_tokens=("num_input_tokens",),
        output_tokens=("num_output_tokens",),
        greedy_top_k=True,
    ),
    # https://github.com/NVIDIA/TensorRT-LLM/tree/main/triton_backend/all_models/inflight_batcher_llm: ensemble, tensorrt_llm_bls
    Contract(
        name="tensorrt_llm",
        prompt=("text_input",),
        text=("text_output",),
        marks=("max_tokens",),
        fields={"max_tokens": ("max_tokens",), **_TRT_SAMPLING},
        guide=("guided_decoding_guide_type", "guided_decoding_guide"),
        stream=("stream", "streaming"),
        constants={"exclude_input_in_output": True, "return_num_input_tokens": True, "return_num_output_tokens": True},
        fillers={"bad_words": "", "stop_words": "", "beam_width": 1},
        input_tokens=("num_input_tokens",),
        output_tokens=("num_output_tokens",),
        greedy_top_k=True,
    ),
    Contract(
        name="embeddings",
        prompt=("text", "text_input", "TEXT", "input_text", "query", "texts"),
        embedding=("embeddings", "embedding", "sentence_embedding", "sentence_embeddings", "EMBEDDINGS", "EMBEDDING"),
    ),
)
"""the ones that are found by themselves, in this order"""


def of_settings(settings: TritonContractSettings) -> Contract | None:
    """Read the contract that the settings write out, None when they don't."""
    if settings == TritonContractSettings():
        return None
    if not settings.prompt or bool(settings.text) == bool(settings.embedding):
        raise SettingsError("engine.triton.contract needs the names of prompt, and of either text or embedding")
    carried = (
        "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty",
        "repeat_penalty",
    )  # fmt: skip

    def names(role: str) -> Names:
        name: str = getattr(settings, role)
        return (name,) if name else ()

    vllm = CONTRACTS[0]
    return Contract(
        name="settings",
        prompt=names("prompt"),
        text=names("text"),
        embedding=names("embedding"),
        marks=tuple(name for role in (*carried, "parameters", "stream") for name in names(role)) + tuple(settings.constants),
        fields={field: names(field) for field in carried if names(field)},
        parameters=names("parameters"),
        members=vllm.members if settings.parameters else {},
        stream=names("stream"),
        constants=settings.constants,
        finish_reason=names("finish_reason"),
        input_tokens=names("input_tokens"),
        output_tokens=names("output_tokens"),
        greedy_top_k=not settings.temperature and bool(settings.top_k),
    )

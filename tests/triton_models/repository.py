"""The model repository of the tests' Triton: a model for each contract, and some that are odd. Written as config.pbtxt texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

__all__ = ["MODELS", "write"]

_HERE = Path(__file__).parent

_VLLM_IN = {
    "text_input": "STRING [1]", "stream": "BOOL [1] ?", "sampling_parameters": "STRING [1] ?",
    "exclude_input_in_output": "BOOL [1] ?", "return_finish_reason": "BOOL [1] ?", "return_num_input_tokens": "BOOL [1] ?",
    "return_num_output_tokens": "BOOL [1] ?",
}  # fmt: skip
_VLLM_OUT = {
    "text_output": "STRING [-1]", "finish_reason": "STRING [-1]", "num_input_tokens": "UINT32 [1]",
    "num_output_tokens": "UINT32 [-1]",
}  # fmt: skip
_VLLM_NOW_IN = _VLLM_IN | {"return_logprobs": "BOOL [1] ?", "embedding_request": "STRING [1] ?"}
"""of releases that tell log-probabilities and guide decoding"""
_VLLM_NAMES = {
    "prompt": "text_input", "text": "text_output", "stream": "stream", "json": "sampling_parameters", "finish": "finish_reason",
    "input_tokens": "num_input_tokens", "output_tokens": "num_output_tokens",
}  # fmt: skip
_TRT_NAMES = {"prompt": "text_input", "text": "text_output", "max_tokens": "max_tokens", "stop": "stop_words"}

MODELS: dict[str, dict[str, object]] = {
    "vllm_mock": {
        "in": _VLLM_NOW_IN,
        "out": _VLLM_OUT | {"logprobs": "STRING [-1]"},
        "names": _VLLM_NAMES | {"logprobs": "logprobs"},
        "decoupled": True,
    },
    "ensemble": {
        "in": {
            "text_input": "STRING [1]", "max_tokens": "INT32 [1]", "bad_words": "STRING [-1] ?", "stop_words": "STRING [-1] ?",
            "exclude_input_in_output": "BOOL [1] ?", "top_k": "INT32 [1] ?", "top_p": "FP32 [1] ?", "temperature": "FP32 [1] ?",
            "repetition_penalty": "FP32 [1] ?", "presence_penalty": "FP32 [1] ?", "frequency_penalty": "FP32 [1] ?",
            "seed": "UINT64 [1] ?", "return_num_input_tokens": "BOOL [1] ?", "return_num_output_tokens": "BOOL [1] ?",
            "stream": "BOOL [1] ?", "guided_decoding_guide_type": "STRING [1] ?", "guided_decoding_guide": "STRING [1] ?",
        },
        "out": {"text_output": "STRING [-1]", "num_input_tokens": "INT32 [1]", "num_output_tokens": "INT32 [1]"},
        "names": _TRT_NAMES | {"stream": "stream", "input_tokens": "num_input_tokens", "output_tokens": "num_output_tokens"},
        "decoupled": True,
        "batch": 4,
    },
    "ensemble_old": {
        "in": {
            "text_input": "STRING [1]", "max_tokens": "UINT32 [1]", "stop_words": "STRING [-1] ?", "top_k": "UINT32 [1] ?",
            "top_p": "FP32 [1] ?", "temperature": "FP32 [1] ?", "random_seed": "UINT64 [1] ?", "streaming": "BOOL [1] ?",
        },
        "out": {"text_output": "STRING [-1]"},
        "names": _TRT_NAMES | {"stream": "streaming"},
        "decoupled": True,
        "batch": 4,
    },
    "llmapi": {
        "in": {
            "text_input": "STRING [-1]", "streaming": "BOOL [1] ?", "sampling_param_max_tokens": "INT32 [1] ?",
            "sampling_param_temperature": "FP32 [1] ?", "sampling_param_top_k": "INT32 [1] ?", "sampling_param_top_p": "FP32 [1] ?",
            "sampling_param_stop": "STRING [-1] ?", "sampling_param_seed": "UINT64 [1] ?",
            "sampling_param_exclude_input_from_output": "BOOL [1] ?", "return_finish_reason": "BOOL [1] ?",
        },
        "out": {"text_output": "STRING [-1]", "finish_reason": "STRING [-1]"},
        "names": {
            "prompt": "text_input", "text": "text_output", "stream": "streaming", "max_tokens": "sampling_param_max_tokens",
            "stop": "sampling_param_stop", "finish": "finish_reason",
        },
        "decoupled": False,
    },
    "custom": {
        "in": {"QUESTION": "STRING [1]", "LIMIT": "INT64 [1] ?", "HEAT": "FP64 [1] ?", "MODE": "STRING [1] ?", "RAW": "BOOL [1] ?"},
        "out": {"ANSWER": "STRING [1]", "COUNT": "UINT16 [1]"},
        "names": {"prompt": "QUESTION", "text": "ANSWER", "max_tokens": "LIMIT", "output_tokens": "COUNT"},
        "decoupled": False,
        "batch": 8,
    },
    "sentences": {
        "in": {"text": "STRING [1]"},
        "out": {"embeddings": "FP32 [3]"},
        "names": {"prompt": "text", "vector": "embeddings"},
        "decoupled": False,
        "batch": 8,
    },
    "pictures": {
        "in": {"image": "FP32 [3, 224, 224]"},
        "out": {"scores": "FP32 [1000]"},
        "names": {"prompt": "image", "text": "scores"},
        "decoupled": False,
    },
    "narrow": {
        "in": _VLLM_IN,
        "out": _VLLM_OUT,
        "names": _VLLM_NAMES,
        "decoupled": False,
        "batch": 1,
        "more": "dynamic_batching { default_queue_policy { max_queue_size: 1 } }",
    },
}  # fmt: skip
"""name: tensors (`?`: optional), what the mock's roles are called, and how it runs; `more` is put into the configuration"""


def write(folder: Path, log: Path, gguf: Path, settings: Mapping[str, str] | None = None) -> None:
    """Write all models; the mocks log to `log`, and the real one reads `gguf`. `settings` are more parameters of every mock."""
    for name, model in MODELS.items():
        parameters = {"names": json.dumps(model["names"]), "log": str(log), **(settings or {})}
        _model(folder / name, "mock.py", model, parameters)
    real = {"in": _VLLM_IN, "out": _VLLM_OUT, "decoupled": True}
    _model(folder / "smollm2", "llama.py", real, {"gguf": str(gguf)})


def _model(folder: Path, program: str, model: Mapping[str, object], parameters: Mapping[str, str]) -> None:
    (folder / "1").mkdir(parents=True)
    shutil.copyfile(_HERE / program, folder / "1" / "model.py")
    lines = [f'name: "{folder.name}"', 'backend: "python"', f"max_batch_size: {model.get('batch', 0)}"]
    for kind, tensors in (("input", model["in"]), ("output", model["out"])):
        assert isinstance(tensors, dict)
        for name, text in tensors.items():
            type_, _, rest = text.partition(" ")
            optional = " optional: true" if rest.endswith("?") else ""
            lines.append(f'{kind} {{ name: "{name}" data_type: TYPE_{type_} dims: {rest.rstrip(" ?")}{optional} }}')
    for key, value in parameters.items():
        lines.append(f"parameters {{ key: {json.dumps(key)} value {{ string_value: {json.dumps(value)} }} }}")
    lines.append(f"model_transaction_policy {{ decoupled: {str(model['decoupled']).lower()} }}")
    lines.append("instance_group [{ kind: KIND_CPU count: 1 }]")
    lines.append(str(model.get("more", "")))
    (folder / "config.pbtxt").write_text("\n".join(lines) + "\n", "utf-8")

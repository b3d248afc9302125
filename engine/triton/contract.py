"""Contracts: which of a model's tensors carries what. Found from the model's tensors, or written in the settings; never by a name.

A contract is data. Where releases differ in a tensor's name, all names are listed and the one that is there is taken; its type and
shape are the model's. A field of a request for which the model has no tensor is not honoured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from engine.triton.interface import Interface, Tensor
from engine.triton.tensors import DATATYPES, encode
from haywain.errors import SettingsError
from haywain.settings import TritonContractSettings

__all__ = ["CONTRACTS", "Contract", "Fitted", "find", "of_settings"]

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


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """A contract with a model's own tensors."""

    name: str
    interface: Interface
    prompt: Tensor
    text: Tensor | None
    embedding: Tensor | None
    fields: Mapping[str, Tensor]
    parameters: Tensor | None
    members: Mapping[str, str]
    stream: Tensor | None
    constants: Mapping[str, tuple[Tensor, bytes]]
    finish_reason: Tensor | None
    input_tokens: Tensor | None
    output_tokens: Tensor | None
    greedy_top_k: bool

    @property
    def honoured(self) -> frozenset[str]:
        """Fields of a request that a tensor carries."""
        return frozenset(self.fields) | frozenset(self.members if self.parameters is not None else ())

    @property
    def accumulates(self) -> bool:
        """Whether each response holds the whole text so far; a setting of TensorRT-LLM's models."""
        return self.interface.parameters.get("accumulate_tokens", "").lower() == "true"


class _MisfitError(Exception):
    """Why a model isn't of a contract."""


def find(interface: Interface, settings: TritonContractSettings) -> Fitted:
    """Find the contract of a model. Raises SettingsError that says which tensors it has and what was expected."""
    written = of_settings(settings)
    where = f"Triton's model {interface.model!r}"
    if written is not None:
        try:
            return _fit(interface, written)
        except _MisfitError as error:
            raise SettingsError(f"{where} doesn't fit engine.triton.contract: {error}; it has {interface}") from None
    reasons = []
    for contract in CONTRACTS:
        try:
            return _fit(interface, contract)
        except _MisfitError as error:
            reasons.append(f"{contract.name}: {error}")
    raise SettingsError(
        f"{where} fits no contract ({'; '.join(reasons)}); it has {interface}; name its tensors in engine.triton.contract"
    )


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


def _fit(interface: Interface, contract: Contract) -> Fitted:
    inputs, outputs = interface.inputs, interface.outputs
    missing = [" or ".join(contract.prompt)] if _first(inputs, contract.prompt) is None else []
    missing += [name for name in contract.marks if name not in inputs]
    if missing:
        raise _MisfitError(f"no input {', '.join(missing)}")
    absent = [names for names in (contract.text, contract.embedding) if names and _first(outputs, names) is None]
    if contract.name == "settings":
        told = (contract.finish_reason, contract.input_tokens, contract.output_tokens)
        absent += [names for names in told if names and _first(outputs, names) is None]
    if absent:
        raise _MisfitError(f"no output {' or '.join(absent[0])}")
    prompt = _first(inputs, contract.prompt)
    text = _first(outputs, contract.text)
    for tensor in (prompt, text):
        if tensor is not None and tensor.datatype != "BYTES":
            raise _MisfitError(f"{tensor.name} is {tensor.datatype}, not BYTES")
    fields = {field: tensor for field, names in contract.fields.items() if (tensor := _first(inputs, names)) is not None}
    fitted = Fitted(
        name=contract.name,
        interface=interface,
        prompt=inputs[next(name for name in contract.prompt if name in inputs)],
        text=text,
        embedding=_first(outputs, contract.embedding),
        fields=fields,
        parameters=_first(inputs, contract.parameters),
        members=contract.members,
        stream=_first(inputs, contract.stream) if interface.decoupled else None,
        constants=_constants(interface, contract, {tensor.name for tensor in fields.values()}),
        finish_reason=_first(outputs, contract.finish_reason),
        input_tokens=_first(outputs, contract.input_tokens),
        output_tokens=_first(outputs, contract.output_tokens),
        greedy_top_k=contract.greedy_top_k,
    )
    _check(fitted)
    return fitted


def _constants(interface: Interface, contract: Contract, carried: set[str]) -> dict[str, tuple[Tensor, bytes]]:
    """Encode what every request holds; a tensor that a field carries may still need a filler when the field isn't given."""
    constants = {}
    for name, value in (*contract.fillers.items(), *contract.constants.items()):
        tensor = interface.inputs.get(name)
        if tensor is None or (name in contract.fillers and not tensor.required):
            continue
        try:
            constants[name] = tensor, encode(tensor.datatype, [value])
        except ValueError as error:
            raise _MisfitError(f"{name}: {error}") from None
    stream = _first(interface.inputs, contract.stream)
    if stream is not None and stream.name not in carried:
        constants[stream.name] = stream, encode(stream.datatype, [False])
    return constants


def _check(fitted: Fitted) -> None:
    """Check that every request will have what the model wants, in types that can be made."""
    always = {fitted.prompt.name, *fitted.constants}
    for tensor in (fitted.fields.get("max_tokens"), fitted.parameters):
        if tensor is not None:
            always.add(tensor.name)
    wanted = [tensor for tensor in fitted.interface.inputs.values() if tensor.required and tensor.name not in always]
    if wanted:
        raise _MisfitError(f"no value for the required input {', '.join(map(str, wanted))}")
    used = [*fitted.fields.values(), fitted.prompt, fitted.text, fitted.embedding, fitted.input_tokens, fitted.output_tokens]
    strange = [tensor for tensor in used if tensor is not None and tensor.datatype not in DATATYPES]
    if strange:
        raise _MisfitError(f"tensors of this type can't be used: {strange[0]}")


def _first(tensors: Mapping[str, Tensor], names: Names) -> Tensor | None:
    return next((tensors[name] for name in names if name in tensors), None)

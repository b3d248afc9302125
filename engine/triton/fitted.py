"""A contract with a model's own tensors: what the model takes and tells, and which fields of a request it therefore honours."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.triton.contract import CONTRACTS, Contract, Names, of_settings
from engine.triton.interface import Interface, Tensor
from engine.triton.tensors import DATATYPES, encode
from haywain.errors import SettingsError
from haywain.settings import TritonContractSettings

__all__ = ["Fitted", "find"]


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
    guided: str
    """the member that takes a guide; empty: none does"""
    guide: tuple[Tensor, Tensor] | None
    logprobs: tuple[Tensor, Tensor] | None
    """the input that asks for them, and their output"""
    stream: Tensor | None
    constants: Mapping[str, tuple[Tensor, bytes]]
    finish_reason: Tensor | None
    input_tokens: Tensor | None
    output_tokens: Tensor | None
    greedy_top_k: bool

    @property
    def honoured(self) -> frozenset[str]:
        """Fields of a request that a tensor carries."""
        carried = set(self.fields) | set(self.members if self.parameters is not None else ())
        carried |= {"response_format"} if self.guided or self.guide is not None else set()
        return frozenset(carried | ({"logprobs", "top_logprobs"} if self.logprobs is not None else set()))

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
        guided=contract.guided[1] if contract.guided[0] in inputs and _first(inputs, contract.parameters) is not None else "",
        guide=_both(inputs, contract.guide),
        logprobs=_logprobs(interface, contract),
        stream=_first(inputs, contract.stream) if interface.decoupled else None,
        constants=_constants(interface, contract, {tensor.name for tensor in fields.values()}),
        finish_reason=_first(outputs, contract.finish_reason),
        input_tokens=_first(outputs, contract.input_tokens),
        output_tokens=_first(outputs, contract.output_tokens),
        greedy_top_k=contract.greedy_top_k,
    )
    _check(fitted)
    return fitted


def _both(tensors: Mapping[str, Tensor], names: Names) -> tuple[Tensor, Tensor] | None:
    if len(names) != 2 or not all(name in tensors for name in names):
        return None
    return tensors[names[0]], tensors[names[1]]


def _logprobs(interface: Interface, contract: Contract) -> tuple[Tensor, Tensor] | None:
    """Find what asks for log-probabilities and what tells them; how many is a member of the JSON."""
    asks, tells = _first(interface.inputs, contract.ask_logprobs), _first(interface.outputs, contract.logprobs)
    if asks is None or tells is None or tells.datatype != "BYTES" or _first(interface.inputs, contract.parameters) is None:
        return None
    return asks, tells


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

"""Which contract a model's tensors make."""

from __future__ import annotations

import pytest

from engine.triton.fitted import find
from engine.triton.interface import Interface, Tensor
from haywain.errors import SettingsError
from haywain.settings import TritonContractSettings

NONE = TritonContractSettings()


def interface(inputs: str, outputs: str, **more: object) -> Interface:
    """Make one of texts like `text_input BYTES, max_tokens INT32!`; `!`: required."""

    def tensors(text: str) -> dict[str, Tensor]:
        found = [part.split() for part in text.split(",")]
        return {name: Tensor(name, kind.rstrip("!"), 1, kind.endswith("!")) for name, kind in found}

    known = {"model": "m", "version": "1", "platform": "x", "batch": 0, "instances": 1, "decoupled": True, "parameters": {}}
    return Interface(inputs=tensors(inputs), outputs=tensors(outputs), **known | more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        ("text_input BYTES!, sampling_parameters BYTES, stream BOOL", "vllm"),
        ("text_input BYTES!, sampling_param_max_tokens INT32, streaming BOOL", "llmapi"),
        ("text_input BYTES!, max_tokens INT32!, stream BOOL", "tensorrt_llm"),
        ("text_input BYTES!, max_tokens UINT32!, bad_words BYTES!, stop_words BYTES!, streaming BOOL", "tensorrt_llm"),
    ],
)
def test_a_contract_is_found_by_tensors(inputs: str, name: str) -> None:
    """Whatever the model is called; old releases' required lists of words get a filler."""
    fitted = find(interface(inputs, "text_output BYTES"), NONE)
    assert fitted.name == name
    assert fitted.stream is not None


def test_a_required_input_that_nothing_fills_is_told() -> None:
    """The model is refused at the start rather than failing every row."""
    with pytest.raises(SettingsError, match="no value for the required input image FP32"):
        find(interface("text_input BYTES!, max_tokens INT32!, image FP32!", "text_output BYTES"), NONE)


def test_a_model_that_is_not_decoupled_does_not_stream() -> None:
    """Its stream tensor is sent as false."""
    fitted = find(interface("text_input BYTES!, max_tokens INT32!, stream BOOL", "text_output BYTES", decoupled=False), NONE)
    assert fitted.stream is None
    assert fitted.constants["stream"][1] == b"\0"


def test_an_accumulating_model_is_known_by_its_parameter() -> None:
    """TensorRT-LLM's `accumulate_tokens` makes each response the whole text so far."""
    inputs = "text_input BYTES!, max_tokens INT32!"
    fitted = find(interface(inputs, "text_output BYTES", parameters={"accumulate_tokens": "True"}), NONE)
    assert fitted.accumulates


@pytest.mark.parametrize(
    ("more", "slots"),
    [
        ({"batch": 8, "instances": 2}, 16),
        ({"batch": 1, "decoupled": False}, 1),
        ({"decoupled": True}, 64),
        ({"instances": 3, "decoupled": False}, 3),
    ],
)
def test_slots_follow_from_the_configuration(more: dict[str, object], slots: int) -> None:
    """A batching model has its batch for each instance; a decoupled one that doesn't say gets 64."""
    assert interface("a BYTES", "b BYTES", **more).slots == slots

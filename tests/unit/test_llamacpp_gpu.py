"""What a GPU changes, decided without one."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
import tiny_gguf

from engine.llamacpp import gpu, memory, native, policy
from engine.llamacpp.messages import Open
from engine.llamacpp.vocabulary import Vocabulary
from haywain.errors import SettingsError
from haywain.settings import LlamaCppSettings

GIB = 2**30
DEFAULTS = LlamaCppSettings()


def test_without_a_gpu_all_is_as_ever() -> None:
    """One decoder a core and no layers elsewhere, where the library has no GPU and where none is wanted."""
    expected = msgspec.structs.replace(DEFAULTS, workers=8, gpu_layers=0)
    assert gpu.suited(DEFAULTS, 8, offered=False) == expected
    assert gpu.suited(msgspec.structs.replace(DEFAULTS, gpu_layers=0), 8, offered=True) == expected
    assert gpu.suited(msgspec.structs.replace(DEFAULTS, workers=3), 8, offered=False).workers == 3


@pytest.mark.parametrize("layers", [-1, 1, 99])
def test_a_gpu_gets_one_decoder_flash_attention_and_the_file_itself(layers: int) -> None:
    """These are the defaults where layers are offloaded, and nothing else changes."""
    given = msgspec.structs.replace(DEFAULTS, gpu_layers=layers)
    assert gpu.suited(given, 8, offered=True) == msgspec.structs.replace(given, workers=1, layout="flash", transcode="off")


def test_what_somebody_chose_stays() -> None:
    """Set workers, layouts and copies are kept with a GPU, and slots that share cells keep the layout they must have."""
    given = LlamaCppSettings(workers=2, layout="plain", transcode="on")
    assert gpu.suited(given, 8, offered=True) == given
    assert gpu.suited(LlamaCppSettings(kv_tokens=600), 8, offered=True).layout == policy.AUTO


def test_layers_that_cannot_be_are_refused_in_one_line() -> None:
    """Layers for a GPU that isn't there, with how to build for one; and numbers that mean nothing."""
    cases = [(1, False, "CMAKE_ARGS=-DGGML_CUDA=on"), (-2, True, "gpu_layers is -2"), (-2, False, "gpu_layers is -2")]
    for layers, offered, reason in cases:
        with pytest.raises(SettingsError, match=reason) as raised:
            gpu.suited(LlamaCppSettings(gpu_layers=layers), 8, offered=offered)
        assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    ("free", "layers"),
    [(0, 0), (GIB, 0), (2 * GIB, 0), (3 * GIB, 3), (7 * GIB, 15), (12 * GIB, 30), (13 * GIB, 33), (80 * GIB, 33)],
)
def test_as_many_layers_as_fit(free: int, layers: int) -> None:
    """With 32 blocks and the output layer, 10 + 1 GiB together, beside 1 GiB of a step's and 1 GiB that stays free."""
    assert gpu.fitting(free, memory.Need(10 * GIB, GIB, GIB), 32) == layers


def test_a_number_of_layers_is_taken_as_it_is() -> None:
    """None are none, and seven are seven, however many the model has; where a GPU doesn't tell what is free, all are asked for."""
    wanted = Open(str(tiny_gguf.tiny_gguf()), 16, 512, 192, 1)
    assert gpu.layers(wanted) == 0
    assert gpu.layers(msgspec.structs.replace(wanted, gpu_layers=7)) == 7
    wanted = msgspec.structs.replace(wanted, gpu_layers=-1)
    assert gpu.layers(wanted, free=0) == gpu.layers(wanted, free=80 * GIB) == 3
    assert gpu.layers(wanted, free=1) == 0


def test_free_memory_is_told_by_kind() -> None:
    """The library tells what a device has free, as the CPU is one to it; devices that aren't there have nothing."""
    assert native.gpu_bytes(kinds=(0,)) > 0
    assert native.gpu_bytes(kinds=(99,)) == 0
    assert native.gpu_bytes(kinds=(99, 0)) > 0


def test_main_memory_holds_what_the_gpu_does_not() -> None:
    """Of two blocks: the output layer goes first, then the last block with its cache, then all, and a step's memory with them."""
    path = tiny_gguf.tiny_gguf()
    wanted = Open(str(path), 16, 512, 192, 1)
    with contextlib.closing(Vocabulary.load(path)) as vocabulary:
        needs = [memory.need(msgspec.structs.replace(wanted, gpu_layers=layers), vocabulary, 1) for layers in (0, 1, 2, 3, 99, -1)]
    whole = needs[0]
    assert [need.weights for need in needs] == [whole.weights, whole.weights, whole.weights // 2, 0, 0, 0]
    assert [need.cache for need in needs] == [whole.cache, whole.cache, whole.cache // 2, 0, 0, 0]
    assert [need.compute == whole.compute for need in needs] == [True, True, True, False, False, False]
    assert 0 < needs[-1].compute < whole.compute

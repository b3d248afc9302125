"""What a GPU takes part in: which defaults suit it, and how many of a model's layers it holds.

llama.cpp moves layers from the model's end, the output layer first, each with its weights and its part of the KV cache. Asked for
all of them it fails where they don't fit; that its own programs try fewer is not in the library.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from engine.llamacpp import memory, native, policy
from engine.llamacpp.messages import Open
from engine.llamacpp.vocabulary import Vocabulary
from haywain.errors import SettingsError
from haywain.settings import LlamaCppSettings

__all__ = ["fitting", "layers", "offered", "offloads", "suited"]

_MARGIN: Final = 2**30
"""bytes that are left free, as llama.cpp's own programs do: estimates are estimates, and kernels take some for themselves"""


def offered() -> bool:
    """Tell whether the library was built for GPUs, and finds one."""
    return bool(native.library.llama_supports_gpu_offload())


def offloads(wanted: int, *, offered: bool) -> bool:
    """Tell whether a GPU takes part. Raises SettingsError for layers that can't be."""
    if wanted < memory.AS_MANY_AS_FIT:
        raise SettingsError(f"engine.llamacpp.gpu_layers is {wanted}, expected a number of layers, or -1 for as many as fit")
    if wanted > 0 and not offered:
        raise SettingsError(
            f"engine.llamacpp.gpu_layers is {wanted}, but llama.cpp was built without GPUs, or finds none: build it with, say, "
            "CMAKE_ARGS=-DGGML_CUDA=on pip install --no-binary llama-cpp-python --force-reinstall --no-deps llama-cpp-python "
            "(docs/engines.md, GPUs)"
        )
    return offered and wanted != 0


def suited(settings: LlamaCppSettings, cores: int, *, offered: bool) -> LlamaCppSettings:
    """Put numbers in place of defaults that depend on a GPU; `offered` says whether there is one. Raises SettingsError."""
    if not offloads(settings.gpu_layers, offered=offered):
        return msgspec.structs.replace(settings, gpu_layers=0, workers=settings.workers or cores)
    # Slots that share their cells have one layout, which isn't this one.
    lays_out = settings.layout == policy.AUTO and not settings.kv_tokens
    return msgspec.structs.replace(
        settings,
        workers=settings.workers or 1,  # each would have weights of its own in the GPU's memory
        layout="flash" if lays_out else settings.layout,
        transcode="off" if settings.transcode == "auto" else settings.transcode,
    )


def fitting(free: int, needed: memory.Need, blocks: int) -> int:
    """Tell how many layers fit into `free` bytes; `needed` is the need of one decoder that has all of them.

    There are `blocks` and the output layer, which count as of one size.
    """
    every = blocks + 1
    room = free - _MARGIN - needed.compute
    return max(0, min(every, room * every // max(1, needed.weights + needed.cache)))


def layers(wanted: Open, free: int | None = None) -> int:
    """Tell how many layers a decoder gives to GPUs; `free` are their free bytes, by default now's. Raises SettingsError."""
    if wanted.gpu_layers != memory.AS_MANY_AS_FIT:
        return wanted.gpu_layers
    with contextlib.closing(Vocabulary.load(Path(wanted.path))) as vocabulary:
        blocks = vocabulary.number("block_count")
        free = native.gpu_bytes() if free is None else free
        if not free:  # some drivers don't tell
            return blocks + 1
        return fitting(free, memory.need(msgspec.structs.replace(wanted, gpu_layers=0), vocabulary, 1), blocks)

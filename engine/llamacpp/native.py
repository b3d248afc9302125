"""The llama.cpp library: loaded once a process, quiet, and what it complains about kept for error messages."""

from __future__ import annotations

import collections
import ctypes
import os
from pathlib import Path
from typing import Any, Final

# An abort must end the process at once: by default ggml looks for a debugger first, which takes seconds.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

import llama_cpp
from llama_cpp import _ggml

from haywain.errors import SettingsError

__all__ = ["amx_is_compiled_in", "complaints", "gpu_bytes", "library", "loaded"]

_ERROR: Final = 4
_GPU: Final = 1  # GGML_BACKEND_DEVICE_TYPE_GPU
_INTEGRATED: Final = 2  # GGML_BACKEND_DEVICE_TYPE_IGPU
_NO_DEVICES: Final = (ctypes.c_void_p * 1)()
_complaints: collections.deque[str] = collections.deque(maxlen=4)


def _log(level: int, text: bytes | None, _: Any) -> None:
    if level == _ERROR and text:
        _complaints.append(text.decode("utf-8", "replace").strip())


# The library calls this as long as the process lives.
_log_callback = llama_cpp.llama_log_callback(_log)
llama_cpp.llama_log_set(_log_callback, ctypes.c_void_p(None))
llama_cpp.llama_backend_init()

library: Any = llama_cpp
"""untyped: called by vocabulary.py, model.py, embedding_model.py, grammar.py, gpu.py, transcode.py, which check arguments first"""


def complaints() -> str:
    """Take what the library logged as errors since the last call, as one line."""
    text = "; ".join(_complaints)
    _complaints.clear()
    return text or "llama.cpp gave no reason"


def loaded(path: Path, parameters: Any, gpu_layers: int = 0) -> Any:
    """Load a llama_model, its last `gpu_layers` into a GPU. Raises SettingsError."""
    parameters.n_gpu_layers = gpu_layers
    if not gpu_layers:  # not to touch a GPU at all: a process that does takes memory there, and large products go there
        parameters.devices = ctypes.addressof(_NO_DEVICES)
    model = library.llama_model_load_from_file(str(path).encode(), parameters)
    if not model:
        raise SettingsError(f"model file {path} can't be loaded: {complaints()}")
    return model


def amx_is_compiled_in() -> bool:
    """Tell whether the library was built for AMX.

    Its AMX kernels, which weights in "extra" buffers select, load a tile configuration that GCC optimises away: the first tile
    instruction then ends the process with SIGILL, or worse, computes with what lay on the stack.
    https://github.com/ggml-org/llama.cpp/pull/26954
    """
    return b"AMX_INT8 = 1" in library.llama_print_system_info()


def gpu_bytes(kinds: tuple[int, ...] = (_GPU, _INTEGRATED)) -> int:
    """Tell how many bytes are free in all GPUs, or in integrated ones where there are no others, as the library uses them.

    0: there are none, or they don't tell. `kinds` are ggml's device types, the first that is there counts.
    """
    ggml = _ggml.libggml
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    found = dict.fromkeys(kinds, 0)
    for number in range(ggml.ggml_backend_dev_count()):
        device = ctypes.c_void_p(ggml.ggml_backend_dev_get(ctypes.c_size_t(number)))
        kind = ggml.ggml_backend_dev_type(device)
        if kind in found:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            found[kind] += free.value
    return next(filter(None, found.values()), 0)

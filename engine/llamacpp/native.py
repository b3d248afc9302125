"""The llama.cpp library: loaded once a process, quiet, and what it complains about kept for error messages."""

from __future__ import annotations

import collections
import ctypes
import os
from typing import Any, Final

# An abort must end the process at once: by default ggml looks for a debugger first, which takes seconds.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

import llama_cpp

__all__ = ["amx_is_compiled_in", "complaints", "library"]

_ERROR: Final = 4
_complaints: collections.deque[str] = collections.deque(maxlen=4)


def _log(level: int, text: bytes | None, _: Any) -> None:
    if level == _ERROR and text:
        _complaints.append(text.decode("utf-8", "replace").strip())


# The library calls this as long as the process lives.
_log_callback = llama_cpp.llama_log_callback(_log)
llama_cpp.llama_log_set(_log_callback, ctypes.c_void_p(None))
llama_cpp.llama_backend_init()

library: Any = llama_cpp
"""untyped: calls go through vocabulary.py, model.py, embedding_model.py, grammar.py, transcode.py, which check arguments first"""


def complaints() -> str:
    """Take what the library logged as errors since the last call, as one line."""
    text = "; ".join(_complaints)
    _complaints.clear()
    return text or "llama.cpp gave no reason"


def amx_is_compiled_in() -> bool:
    """Tell whether the library was built for AMX.

    Its AMX kernels, which weights in "extra" buffers select, load a tile configuration that GCC optimises away: the first tile
    instruction then ends the process with SIGILL, or worse, computes with what lay on the stack.
    https://github.com/ggml-org/llama.cpp/pull/26954
    """
    return b"AMX_INT8 = 1" in library.llama_print_system_info()

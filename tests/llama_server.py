"""llama.cpp's own HTTP server, from the package xllamacpp, in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["llama_server"]

_PROGRAM = """
import sys, xllamacpp
parameters = xllamacpp.CommonParams()
parameters.model.path, parameters.model_alias = sys.argv[1], [sys.argv[2]]
parameters.n_parallel, parameters.n_ctx, parameters.kv_unified, parameters.cache_ram_mib = 4, 4 * 512, False, 0
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
parameters.port = 0
server = xllamacpp.Server(parameters)
print(server.listening_address, flush=True)
sys.stdin.read()
import os; os._exit(0)
"""


@contextlib.contextmanager
def llama_server(model: Path, alias: str) -> Iterator[str]:
    """Serve a GGUF file under an id, 4 slots of 512 tokens; gives the server's address, without /v1."""
    command = [sys.executable, "-c", _PROGRAM, str(model), alias]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), (address, process.poll())
        try:
            yield address
        finally:
            process.kill()

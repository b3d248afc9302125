"""Those that are compared: the engine, driven directly, and servers that are asked over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from rows import EMBEDDINGS, Row

from engine.llamacpp.backend import create
from haywain.engine.v1 import engine_pb2 as pb
from haywain.metrics import REGISTRY
from haywain.settings import EngineSettings, LlamaCppSettings

__all__ = ["Figures", "Place", "Run", "apart", "engine", "example_server", "llama_server", "mesh"]


@dataclass(frozen=True)
class Figures:
    """What a run took."""

    seconds: float
    cpu_seconds: float
    tokens: int
    prompts: int = 0
    """tokens of prompts that were evaluated, where it is known"""
    own: float = 0.0
    """share of decoders' steps outside llama.cpp's evaluation, where it is known"""


@dataclass(frozen=True)
class Place:
    """What all have in common."""

    model: Path
    cores: int
    context: int
    """tokens a row"""
    endpoint: str

    @property
    def embeds(self) -> bool:
        """Whether vectors are asked for."""
        return self.endpoint == EMBEDDINGS


Run = Callable[[Place, Sequence[Row]], Coroutine[Any, Any, Figures]]
_PLAIN_WEIGHTS = """
import runpy, sys
from llama_cpp import llama_cpp
default = llama_cpp.llama_model_default_params
def plain():
    parameters = default()
    parameters.use_extra_bufts = False
    return parameters
llama_cpp.llama_model_default_params = plain
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Without weights rearranged for AMX, which ends the process where some compilers built it; the server's --no-repack, and what the
engine does. It makes no difference to Q4_1 and 16-bit weights."""
_WARM = {"max_tokens": 1, "messages": [{"role": "user", "content": "Warm up."}]}


def apart(run: Run, place: Place, rows: Sequence[Row]) -> Figures:
    """Run in a process of its own: nothing is left of the one before."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_alone, (run, place, rows))


def _alone(run: Run, place: Place, rows: Sequence[Row]) -> Figures:
    return asyncio.run(run(place, rows))


# -- servers ----------------------------------------------------------------------------------------------------------------------


async def llama_server(program: str, slots: int, place: Place, rows: Sequence[Row]) -> Figures:
    """Ask llama.cpp's server, `slots` requests at a time."""
    port = _free_port()
    command = [program, "-m", str(place.model), "-a", "bench", "--host", "127.0.0.1", "--port", str(port), "-np", str(slots)]
    command += ["-c", str(place.context * slots), "-t", str(place.cores), "-tb", str(place.cores), "--no-repack"]
    command += ["--embeddings", "--pooling", "mean"] if place.embeds else []
    async with _served(command, port, "/health"):
        return await _asked(port, place.endpoint, rows, slots)


async def example_server(python: str, script: str, slots: int, place: Place, rows: Sequence[Row]) -> Figures:
    """Ask the server among llama-cpp-python's examples, `slots` requests at a time."""
    port = _free_port()
    model = {
        "path": str(place.model), "alias": "bench", "n_ctx": place.context * slots, "n_seq_max": slots, "n_batch": 512,
        "n_ubatch": 512, "threads": place.cores, "threads_batch": place.cores, "flash_attn": True, "store_logits": False,
    }  # fmt: skip
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"server": {"host": "127.0.0.1", "port": port}, "model": model}, file)
        file.flush()
        async with _served([python, "-c", _PLAIN_WEIGHTS, script, "-C", file.name], port, "/v1/models"):
            return await _asked(port, place.endpoint, rows, slots)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def _served(command: list[str], port: int, path: str) -> AsyncIterator[int]:
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(*command, stdout=said, stderr=said)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                for _ in range(600):
                    with contextlib.suppress(httpx.TransportError):
                        if (await client.get(path)).is_success:
                            break
                    if process.returncode is not None:
                        said.seek(0)
                        raise RuntimeError(said.read()[-2_000:].decode("utf-8", "replace"))
                    await asyncio.sleep(0.1)
                else:
                    raise RuntimeError(f"{command[0]} did not answer within a minute")
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # what it started dies with it
            await process.wait()


async def _asked(port: int, endpoint: str, rows: Sequence[Row], slots: int) -> Figures:
    room = asyncio.Semaphore(slots)
    limits = httpx.Limits(max_connections=slots)
    server = next(one.pid for one in psutil.net_connections("tcp") if one.laddr.port == port and one.status == "LISTEN")
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=3_600, limits=limits, trust_env=False) as client:

        async def ask(row: Row) -> int:
            async with room:
                answer = await client.post(endpoint, json=row)
                usage = answer.raise_for_status().json()["usage"]
                return int(usage.get("completion_tokens") or 0)

        await ask(rows[-1] | _WARM if "messages" in rows[-1] else rows[-1])
        began, spent = time.monotonic(), _ticks([server])
        tokens = await asyncio.gather(*map(ask, rows))
        return Figures(time.monotonic() - began, _ticks([server]) - spent, sum(tokens))


# -- the engine -------------------------------------------------------------------------------------------------------------------


class _Results:
    """An Emit that counts ends."""

    def __init__(self) -> None:
        self.room = asyncio.Semaphore(0)
        self.tokens = 0

    def delta(self, sequence_id: int, body: bytes) -> None:
        """Nothing is streamed."""

    def result(self, result: pb.SequenceResult) -> None:
        """Count an end."""
        if result.status_code != 200:
            raise RuntimeError(result.body)
        self.tokens += result.usage.output_tokens
        self.room.release()

    def died(self, reason: str) -> None:
        """Give up."""
        raise RuntimeError(reason)


async def engine(transcode: str, slots: int, place: Place, rows: Sequence[Row], *, deterministic: bool = False) -> Figures:
    """Drive the engine as its gRPC side does, one decoder a core."""
    settings = LlamaCppSettings(
        model_path=str(place.model),
        workers=place.cores,
        slots=slots,
        context_length=place.context,
        transcode=transcode,
        deterministic=deterministic,
    )
    backend = create(EngineSettings(llamacpp=settings))
    results = _Results()
    await backend.start(results)
    began, spent = time.monotonic(), _own_seconds() + _ticks(backend.decoder_pids)
    ahead = 2 * backend.slots
    for _ in range(ahead):
        results.room.release()
    for number, row in enumerate(rows, 1):
        await results.room.acquire()
        sequence = pb.Sequence(sequence_id=number, model="bench", endpoint=place.endpoint, lane=pb.LANE_STANDARD)
        sequence.request = json.dumps(row).encode()
        backend.submit([sequence])
    for _ in range(ahead):
        await results.room.acquire()
    seconds = time.monotonic() - began
    used = _own_seconds() + _ticks(backend.decoder_pids) - spent
    told = {sample.name: sample.value for family in REGISTRY.collect() for sample in family.samples}
    await backend.close()
    evaluated = int(told["haywain_prompt_tokens_total"] - told["haywain_cached_prompt_tokens_total"])
    own = 0.0 if place.embeds else 1 - told["haywain_library_seconds_total"] / told["haywain_step_seconds_sum"]
    return Figures(seconds, used, results.tokens, evaluated, own)


async def mesh(transcode: str, slots: int, place: Place, rows: Sequence[Row]) -> Figures:
    """Run the rows as a batch through the whole mesh: from the creation until it has completed."""
    sets = {"workers": place.cores, "slots": slots, "context_length": place.context, "transcode": transcode, "model": "bench"}
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        port = _free_port()
        command = [
            sys.executable,
            "-m",
            "haywain",
            "up",
            "--model",
            str(place.model),
            "--data",
            f"{folder}/data",
            "--port",
            str(port),
        ]
        command += [word for name, value in sets.items() for word in ("--set", f"engine.llamacpp.{name}={value}")]
        async with _served(command, port, "/health") as pid, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            line = {"method": "POST", "url": place.endpoint}
            lines = b"".join(json.dumps(line | {"custom_id": str(at), "body": row}).encode() + b"\n" for at, row in enumerate(rows))
            files = {"file": ("in.jsonl", lines)}
            file = (await client.post("/v1/files", data={"purpose": "batch"}, files=files)).raise_for_status().json()
            family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
            order = {"input_file_id": file["id"], "endpoint": place.endpoint, "completion_window": "24h"}
            began, spent = time.monotonic(), _ticks(family)
            batch = (await client.post("/v1/batches", json=order)).raise_for_status().json()
            while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
                await asyncio.sleep(0.5)  # asking ten times a second takes a twentieth of a core from the decoders
                batch = (await client.get(f"/v1/batches/{batch['id']}")).raise_for_status().json()
            seconds, used = time.monotonic() - began, _ticks(family) - spent
            if batch["request_counts"]["completed"] != len(rows):
                raise RuntimeError(str(batch))
            return Figures(seconds, used, batch["usage"]["output_tokens"])


def _own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _ticks(pids: Sequence[int]) -> float:
    """Tell the CPU seconds of processes that live."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")

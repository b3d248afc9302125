"""The llama.cpp engine against llama.cpp's own server: the same file, the same rows, run in turns.

    python bench/llamacpp.py MODEL.gguf [--cores 2] [--rounds 3] [--rows 64] [--workloads short,shared500]

The peer is the server core of the PyPI package xllamacpp, which must be installed; it runs in a process of its own and is asked
over HTTP, `--slots` requests at a time. The engine is driven directly, without the mesh. Both get as many threads as there are
cores: the peer in one process, the engine one decoder each. Printed are medians of rows/s, their ratio, how far rounds lie apart,
and CPU seconds, which mean more than rows/s on a machine that does other things too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx

from engine.llamacpp.backend import create
from haywain.engine.v1 import engine_pb2 as pb
from haywain.settings import EngineSettings, LlamaCppSettings

Row = dict[str, Any]
Figures = tuple[float, float, int]
"""seconds, CPU seconds, tokens generated"""
ENDPOINT = "/v1/chat/completions"
WORDS = [
    "river", "carries", "stones", "under", "seven", "bridges", "while", "morning", "light", "turns", "copper", "roofs", "into",
    "mirrors", "and", "nobody", "asks", "where", "the", "old", "clock", "keeps", "its", "second", "hand",
]  # fmt: skip
CONTEXT = 1_024


def main() -> None:
    """Run the workloads in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--slots", type=int, default=16, help="of the engine's decoders, and of the peer (%(default)s)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="%(default)s")
    options = parser.parse_args()
    sides = {"peer": _peer, "engine": _engine, "engine, 16-bit copy": _engine_copy}
    print(f"{options.model.name}, {options.cores} cores, {options.rows} rows, {options.rounds} rounds in turns")
    print(f"{'workload':<12}{'side':<22}{'rows/s':>8}{'ratio':>8}{'apart':>8}{'CPU s':>8}{'CPU ratio':>11}{'tokens':>8}")
    for name in options.workloads.split(","):
        found: dict[str, list[Figures]] = {side: [] for side in sides}
        for round_number in range(options.rounds):
            # Every round has rows of its own, so that nobody knows them from the round before.
            rows = WORKLOADS[name](random.Random(f"{name} {round_number}"), options.rows)
            for side, run in sides.items():
                found[side].append(_apart(run, options, rows))
        _print(name, found, options.rows)


def _print(name: str, found: dict[str, list[Figures]], rows: int) -> None:
    base = found["peer"]
    for side, figures in found.items():
        speeds = [rows / seconds for seconds, _, _ in figures]
        ratio = statistics.median(theirs[0] / ours[0] for ours, theirs in zip(figures, base, strict=True))
        saved = statistics.median(theirs[1] / ours[1] for ours, theirs in zip(figures, base, strict=True))
        apart = max(speeds) / min(speeds) - 1
        cpu = statistics.median(spent for _, spent, _ in figures)
        tokens = figures[0][2]
        print(
            f"{name:<12}{side:<22}{statistics.median(speeds):>8.2f}{ratio:>8.2f}{apart:>8.0%}{cpu:>8.1f}{saved:>11.2f}{tokens:>8}",
            flush=True,
        )


# -- rows ---------------------------------------------------------------------------------------------------------------------


def _text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))


def _row(system: str, user: str, tokens: int) -> Row:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": "bench", "messages": messages, "max_tokens": tokens, "temperature": 0}


def _short(chance: random.Random, rows: int) -> list[Row]:
    return [_row("You are a helpful assistant.", f"Write about: {_text(chance, 12)}", 32) for _ in range(rows)]


def _shared(chance: random.Random, rows: int, words: int, tokens: int, prompts: int = 1) -> list[Row]:
    systems = [_text(chance, words) for _ in range(prompts)]
    return [_row(chance.choice(systems), f"Write about: {_text(chance, 12)}", tokens) for _ in range(rows)]


def _repeats(chance: random.Random, rows: int) -> list[Row]:
    made = _short(chance, rows // 2) * 2
    chance.shuffle(made)
    return made


WORKLOADS: dict[str, Callable[[random.Random, int], list[Row]]] = {
    "short": _short,
    "shared500": lambda chance, rows: _shared(chance, rows, 400, 32),
    "eight500": lambda chance, rows: _shared(chance, rows, 400, 32, 8),
    "classify500": lambda chance, rows: _shared(chance, rows, 400, 3),
    "repeats": _repeats,
}


# -- sides, each in a process of its own ----------------------------------------------------------------------------------------


def _apart(
    run: Callable[[argparse.Namespace, list[Row], Connection], None], options: argparse.Namespace, rows: list[Row]
) -> Figures:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run, args=(options, rows, theirs))
    process.start()
    theirs.close()
    try:
        figures: Figures = ours.recv()
    finally:
        process.join()
    return figures


def _spent() -> float:
    """Tell the CPU seconds of this process and the decoders that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _peer(options: argparse.Namespace, rows: list[Row], link: Connection) -> None:
    import xllamacpp  # noqa: PLC0415 - only this side needs it

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(options.model)
    parameters.n_parallel = options.slots
    parameters.n_ctx = CONTEXT * options.slots
    parameters.kv_unified = False
    parameters.cache_ram_mib = 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = options.cores
    parameters.port = 0
    server = xllamacpp.Server(parameters)
    link.send(asyncio.run(_asked(server.listening_address, rows, options.slots)))
    os._exit(0)  # the server doesn't end by itself


async def _asked(address: str, rows: list[Row], slots: int) -> Figures:
    room = asyncio.Semaphore(slots)
    limits = httpx.Limits(max_connections=slots)
    async with httpx.AsyncClient(base_url=address, timeout=3_600, limits=limits) as client:

        async def ask(row: Row) -> int:
            async with room:
                answer = await client.post(ENDPOINT, json=row)
                return int(answer.raise_for_status().json()["usage"]["completion_tokens"])

        await ask(_row("warm", "up", 1))
        began, spent = time.monotonic(), _spent()
        tokens = await asyncio.gather(*map(ask, rows))
        return time.monotonic() - began, _spent() - spent, sum(tokens)


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


def _engine(options: argparse.Namespace, rows: list[Row], link: Connection) -> None:
    link.send(asyncio.run(_driven(options, rows, "off")))


def _engine_copy(options: argparse.Namespace, rows: list[Row], link: Connection) -> None:
    link.send(asyncio.run(_driven(options, rows, "on")))


async def _driven(options: argparse.Namespace, rows: list[Row], transcode: str) -> Figures:
    settings = LlamaCppSettings(
        model_path=str(options.model), workers=options.cores, slots=options.slots, context_length=CONTEXT, transcode=transcode
    )
    backend = create(EngineSettings(llamacpp=settings))
    results = _Results()
    await backend.start(results)
    began, spent, loaded = time.monotonic(), _spent(), _decoders(backend.decoder_pids)
    for _ in range(2 * backend.slots):
        results.room.release()
    for number, row in enumerate(rows, 1):
        await results.room.acquire()
        sequence = pb.Sequence(sequence_id=number, model="bench", endpoint=ENDPOINT, lane=pb.LANE_STANDARD)
        sequence.request = json.dumps(row).encode()
        backend.submit([sequence])
    for _ in range(2 * backend.slots):
        await results.room.acquire()
    seconds = time.monotonic() - began
    used = _decoders(backend.decoder_pids) - loaded + _spent() - spent
    await backend.close()
    return seconds, used, results.tokens


def _decoders(pids: list[int]) -> float:
    """Tell the CPU seconds of processes that live."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()

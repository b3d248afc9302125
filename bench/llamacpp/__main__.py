"""The llama.cpp engine against llama.cpp's own server: the same file, the same rows, run in turns.

    python bench/llamacpp MODEL.gguf --server llama-server [--cores 2] [--rounds 3] [--share 1.0] [--workloads unrelated,shared500]

`--server` is best the llama-server that belongs to the engine's own llama.cpp: bench/llamacpp/build.sh makes it from the source
distribution of llama-cpp-python. It is tried with each of `--peer-slots` on a quarter of the rows, and the best is its figure.
`--example` is the server among the same distribution's examples, `--example-python` a Python that has what it needs. Everybody gets
as many threads as there are cores: servers in one process, the engine one decoder each. The engine is driven directly, without the
mesh. `--embedding-model` is the GGUF of the `embeddings` rows.

Printed are medians of rows/s, of their ratio to the server's in the same round, how far rounds lie apart, and CPU seconds, which
mean more than rows/s on a machine that does other things too. Of the engine also: the prompt tokens that were evaluated, and how
much of the decoders' time was not llama.cpp's own.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sides
from rows import EMBEDDINGS, WORKLOADS, Row, Workload
from sides import Figures, Place, Run

_COLUMNS = ("rows/s", "ratio", "apart", "CPU s", "CPU ratio", "tokens", "prompts", "own")
_TRIED = 4
"""a peer's slots are chosen by one in so many of the rows"""


def main() -> None:
    """Run the workloads in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--server", help="path of llama-server; without it the engine is the measure")
    parser.add_argument("--example", help="path of llama-cpp-python's examples/server/server.py")
    parser.add_argument("--example-python", help="a Python with what that needs")
    parser.add_argument("--mesh", action="store_true", help="also through the whole mesh")
    parser.add_argument("--deterministic", action="store_true", help="also as for batches that are deterministic")
    parser.add_argument("--embedding-model", type=Path)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of each workload's rows (%(default)s)")
    parser.add_argument("--slots", type=int, default=16, help="of the engine's decoders (%(default)s)")
    parser.add_argument("--peer-slots", default="2,4,8,16", help="%(default)s")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="%(default)s")
    options = parser.parse_args()
    print(f"{options.model.name}, {options.cores} cores, {options.rounds} rounds in turns, {options.share:g} of the rows")
    print(f"{'workload':<12}{'rows':>6}  {'side':<22}" + "".join(f"{column:>10}" for column in _COLUMNS))
    for name in options.workloads.split(","):
        _compare(name, WORKLOADS[name], options)


def _compare(name: str, workload: Workload, options: argparse.Namespace) -> None:
    count = max(16, int(workload.rows * options.share)) // 4 * 4
    embeds = workload.endpoint == EMBEDDINGS
    place = Place(options.embedding_model if embeds else options.model, options.cores, workload.context, workload.endpoint)
    few = _rows(workload, f"{name} tried", max(32, count // _TRIED))
    best = functools.partial(_best, place, few, [int(slots) for slots in options.peer_slots.split(",")])
    runs: dict[str, Run] = {}
    if options.server:
        server = best(functools.partial(sides.llama_server, options.server))
        runs[f"llama-server -np {server.args[1]}"] = server
    if options.example and not embeds:
        example = best(functools.partial(sides.example_server, options.example_python, options.example))
        runs[f"example server, {example.args[-1]}"] = example
    runs["engine"] = functools.partial(sides.engine, "off", options.slots)
    if not embeds:
        runs["engine, 16-bit copy"] = functools.partial(sides.engine, "on", options.slots)
    if options.deterministic and not embeds:
        for side, transcode in (("", "off"), (", 16-bit copy", "on")):
            runs[f"exact{side}"] = functools.partial(sides.engine, transcode, options.slots, deterministic=True)
    if options.mesh:
        runs["mesh"] = functools.partial(sides.mesh, "off", options.slots)
    found: dict[str, list[Figures]] = {side: [] for side in runs}
    for number in range(options.rounds):
        rows = _rows(workload, f"{name} {number}", count)
        for side, run in runs.items():
            found[side].append(sides.apart(run, place, rows))
    _print(name, found, count)


def _rows(workload: Workload, seed: str, count: int) -> list[Row]:
    return workload.make(random.Random(seed), count)


def _best(place: Place, rows: list[Row], numbers: list[int], run: Callable[..., Any]) -> functools.partial[Any]:
    """Choose the number of slots that a peer is fastest with."""
    tried = [functools.partial(run, slots) for slots in numbers]
    if len(tried) == 1:
        return tried[0]
    return min(tried, key=lambda one: sides.apart(one, place, rows).seconds)


def _print(name: str, found: dict[str, list[Figures]], rows: int) -> None:
    base = next(iter(found.values()))
    for side, figures in found.items():
        speeds = [rows / one.seconds for one in figures]
        ratio = statistics.median(theirs.seconds / ours.seconds for ours, theirs in zip(figures, base, strict=True))
        saved = statistics.median(theirs.cpu_seconds / ours.cpu_seconds for ours, theirs in zip(figures, base, strict=True))
        apart = max(speeds) / min(speeds) - 1
        cpu = statistics.median(one.cpu_seconds for one in figures)
        numbers = (
            f"{statistics.median(speeds):.2f}",
            f"{ratio:.2f}",
            f"{apart:.0%}",
            f"{cpu:.1f}",
            f"{saved:.2f}",
            figures[0].tokens,
            figures[0].prompts or "",
            f"{figures[0].own:.1%}" if figures[0].own else "",
        )
        print(f"{name:<12}{rows:>6}  {side:<22}" + "".join(f"{number:>10}" for number in numbers), flush=True)


if __name__ == "__main__":
    main()

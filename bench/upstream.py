"""The upstream engine against a bare HTTP client: the same requests to the same llama.cpp server, in turns.

    python bench/upstream.py MODEL.gguf [--rounds 5] [--rows 64] [--concurrency 4] [--tokens 32]

The server is the core of the PyPI package xllamacpp, which must be installed, in a process of its own. Printed are medians of
rows/s, the ratio of the pairs, and how far rounds lie apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from ends import Ends
from llama_server import llama_server

from engine.upstream.backend import UpstreamBackend
from haywain.engine.v1 import engine_pb2 as pb
from haywain.settings import UpstreamSettings

MODEL = "m"


def _rows(name: str, options: argparse.Namespace) -> list[bytes]:
    def body(number: int) -> dict[str, Any]:
        question = [{"role": "user", "content": f"{name} {number}: tell me about the number {number}."}]
        return {"model": MODEL, "messages": question, "max_tokens": options.tokens, "temperature": 0, "ignore_eos": True}

    return [json.dumps(body(number)).encode() for number in range(options.rows)]


async def _bare(address: str, rows: list[bytes], concurrency: int) -> float:
    room = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=httpx.Limits(max_connections=concurrency)) as client:

        async def ask(row: bytes) -> None:
            async with room:
                answer = await client.post("/v1/chat/completions", content=row, headers={"content-type": "application/json"})
                answer.raise_for_status()

        began = time.monotonic()
        await asyncio.gather(*map(ask, rows))
        return time.monotonic() - began


async def _engine(address: str, rows: list[bytes], concurrency: int) -> float:
    backend = UpstreamBackend(UpstreamSettings(url=f"{address}/v1", slots=concurrency))
    ends = Ends(len(rows))
    await backend.start(ends)
    began = time.monotonic()
    backend.submit(
        [
            pb.Sequence(sequence_id=number, model=MODEL, endpoint="/v1/chat/completions", request=row, lane=pb.LANE_STANDARD)
            for number, row in enumerate(rows)
        ]
    )
    await ends.done.wait()
    seconds = time.monotonic() - began
    await backend.close()
    return seconds


def main() -> None:
    """Run both in turns and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    bare, engine = [], []
    with llama_server(options.model, MODEL) as address:
        asyncio.run(_bare(address, _rows("warm", options)[:4], 4))
        for number in range(options.rounds):
            # Each side and round has rows of its own, as long as the other's: no cache knows them.
            bare.append(options.rows / asyncio.run(_bare(address, _rows(f"a{number}", options), options.concurrency)))
            engine.append(options.rows / asyncio.run(_engine(address, _rows(f"b{number}", options), options.concurrency)))
    ratio = statistics.median(ours / theirs for ours, theirs in zip(engine, bare, strict=True))
    for name, speeds in (("bare httpx", bare), ("engine", engine)):
        print(f"{name:<12}{statistics.median(speeds):8.2f} rows/s   rounds apart {max(speeds) / min(speeds) - 1:.0%}")
    print(f"ratio       {ratio:8.3f}")


if __name__ == "__main__":
    main()

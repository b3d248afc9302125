"""The Triton engine against bare raw stubs: the same chats to the same mock in the same tritonserver, in turns.

    python bench/triton.py [--rounds 5] [--rows 1000] [--concurrency 64] [--tokens 16] [--ms 100]

The mock answers with so many words after so many milliseconds; server, mock and client share the cores. The bare client has
its requests ready and ignores the answers: a stream for each, as the engine has (`--multiplexed`: one for all). The
engine parses bodies, renders a chat template, fills tensors, and makes bodies. Printed are medians of rows/s, the ratio of the
pairs, how far rounds lie apart, and the client's processor time a row.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import grpc
import uvloop
from tritonclient.grpc import service_pb2_grpc

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from ends import Ends
from triton_fixture import TEMPLATE, TritonServer

from engine.triton.backend import TritonBackend
from haywain import rpc
from haywain.engine.v1 import engine_pb2 as pb
from haywain.settings import TritonSettings

MODEL = "vllm_mock"
CHAT = "/v1/chat/completions"
_STATUS = (("triton_grpc_error", "true"),)


class _Bench:
    def __init__(self, server: TritonServer, options: argparse.Namespace, template: Path) -> None:
        self._url = server.url
        self._options = options
        self._settings = TritonSettings(url=server.url, model=MODEL, slots=options.concurrency, template=str(template))
        text = " ".join(["word"] * options.tokens + ["more"] * 150)  # about 1 KB
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": options.tokens}
        self._body = json.dumps(body).encode()

    def _sequences(self, count: int) -> list[pb.Sequence]:
        return [
            pb.Sequence(sequence_id=number, model=MODEL, endpoint=CHAT, request=self._body, lane=pb.LANE_STANDARD)
            for number in range(count)
        ]

    async def engine(self) -> tuple[float, float]:
        """Run the rows by the backend, submitted as slots become free; seconds, and processor seconds."""
        backend, rows = TritonBackend(self._settings), self._options.rows
        ends = Ends(rows)
        await backend.start(ends)
        waiting = iter(self._sequences(rows))
        counted = ends.result

        def refill(result: pb.SequenceResult) -> None:
            counted(result)
            backend.submit(list(itertools.islice(waiting, 1)))

        ends.result = refill  # type: ignore[method-assign]
        began, used = time.monotonic(), time.process_time()
        backend.submit(list(itertools.islice(waiting, self._options.concurrency)))
        await ends.done.wait()
        spent = time.monotonic() - began, time.process_time() - used
        await backend.close()
        return spent

    async def bare(self) -> tuple[float, float]:
        """Run as many requests by raw stubs."""
        backend = TritonBackend(self._settings)
        await backend.start(Ends(0))
        ask = backend._preparer.prepare(self._sequences(1)[0]).asks[0]  # noqa: SLF001 - the very same request
        await backend.close()
        rows, concurrency = self._options.rows, self._options.concurrency
        async with grpc.aio.insecure_channel(self._url, options=rpc.OPTIONS) as channel:
            stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            left = iter(range(rows))

            async def one_after_the_other() -> None:
                for _ in left:
                    calling = stub.ModelStreamInfer(metadata=_STATUS)
                    await calling.write(ask)
                    await calling.done_writing()
                    while await calling.read() is not grpc.aio.EOF:
                        pass

            async def multiplexed() -> None:
                room = asyncio.Semaphore(concurrency)

                async def asks() -> AsyncIterator[Any]:
                    for _ in left:
                        await room.acquire()
                        yield ask

                async for _ in stub.ModelStreamInfer(asks()):
                    room.release()

            began, used = time.monotonic(), time.process_time()
            streams: list[Coroutine[Any, Any, None]] = (
                [multiplexed()] if self._options.multiplexed else [one_after_the_other() for _ in range(concurrency)]
            )
            await asyncio.gather(*streams)
            return time.monotonic() - began, time.process_time() - used


def main() -> None:
    """Run both in turns and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--ms", type=float, default=100)
    parser.add_argument("--multiplexed", action="store_true")
    options = parser.parse_args()
    sides: dict[str, list[tuple[float, float]]] = {"bare stubs": [], "engine": []}
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "template.jinja"
        template.write_text(TEMPLATE, "utf-8")
        server = TritonServer(Path(folder), parameters={"ms_per_row": str(options.ms), "quiet": "true"})
        try:
            server.start(MODEL)
            bench = _Bench(server, options, template)
            uvloop.run(bench.bare())  # warm
            for _ in range(options.rounds):
                sides["bare stubs"].append(uvloop.run(bench.bare()))
                sides["engine"].append(uvloop.run(bench.engine()))
        finally:
            server.stop()
    rows = options.rows
    ratio = statistics.median(bare[0] / ours[0] for bare, ours in zip(sides["bare stubs"], sides["engine"], strict=True))
    for name, rounds in sides.items():
        speeds = [rows / seconds for seconds, _ in rounds]
        used = statistics.median(processor for _, processor in rounds) / rows * 1e6
        apart = max(speeds) / min(speeds) - 1
        print(f"{name:<12}{statistics.median(speeds):8.1f} rows/s   rounds apart {apart:4.0%}   {used:6.0f} us of processor a row")
    print(f"ratio       {ratio:8.3f}")


if __name__ == "__main__":
    main()

"""What the mesh adds to a synchronous chat: POST /v1/chat/completions through Envoy against the same on the engine's stream.

    python bench/latency.py [--calls 2000] [--in-flight 1]

The echo engine answers at once, so all that is measured is the way there and back. Calls alternate between the two ways, so that
whatever else the machine does meets both. Prints p50 and p99 of each, their difference and ratio; exits with 1 over the target.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from haywain import rpc
from haywain.engine.v1 import engine_pb2, engine_pb2_grpc
from haywain.settings import EnvoySettings, Settings

TARGET_MS = {50: 5.0, 99: 20.0}
BODY = json.dumps(
    {"model": "echo", "messages": [{"role": "user", "content": "hello there, how are you?"}], "max_tokens": 16}
).encode()
ENDPOINT = "/v1/chat/completions"


class Rest:
    """A kept-alive connection to Envoy."""

    def __init__(self, port: int) -> None:
        """Connect when first used."""
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def call(self) -> float:
        """Ask once; the seconds it took."""
        began = time.perf_counter()
        self._connection.request("POST", ENDPOINT, BODY, {"content-type": "application/json"})
        response = self._connection.getresponse()
        data = response.read()
        took = time.perf_counter() - began
        if response.status != 200:
            sys.exit(f"{response.status}: {data[:500]!r}")
        return took


class Direct:
    """A Run stream to the engine, as the scheduler has one."""

    def __init__(self, address: str) -> None:
        """Connect when first used."""
        self._channel = rpc.channel(address)
        self._stream = engine_pb2_grpc.EngineServiceStub(self._channel).Run()
        self._count = 0

    async def call(self) -> float:
        """Ask once; the seconds it took."""
        self._count += 1
        sequence = engine_pb2.Sequence(sequence_id=self._count, model="echo", endpoint=ENDPOINT, request=BODY)
        sequence.lane = engine_pb2.LANE_INTERACTIVE
        began = time.perf_counter()
        await self._stream.write(engine_pb2.RunRequest(sequences=[sequence]))
        while not (response := await self._stream.read()).results:
            pass
        took = time.perf_counter() - began
        if response.results[0].status_code != 200:
            sys.exit(f"the engine answered {response.results[0]}")
        return took

    async def close(self) -> None:
        """Hang up."""
        self._stream.cancel()
        await self._channel.close()


async def measure(settings: Settings, calls: int, in_flight: int) -> tuple[list[float], list[float]]:
    """Take the times of each way, in milliseconds, after a few calls that aren't counted."""
    direct = Direct(settings.address("engine"))
    loop = asyncio.get_running_loop()
    clients = [Rest(settings.envoy.port) for _ in range(in_flight)]
    direct_ms: list[float] = []
    mesh_ms: list[float] = []
    with ThreadPoolExecutor(in_flight) as threads:
        for number in range(calls + 50):
            one = await direct.call()
            others = await asyncio.gather(*(loop.run_in_executor(threads, client.call) for client in clients))
            if number >= 50:
                direct_ms.append(one * 1_000)
                mesh_ms += [took * 1_000 for took in others]
    await direct.close()
    return direct_ms, mesh_ms


def report(direct_ms: list[float], mesh_ms: list[float]) -> bool:
    """Print the comparison; whether the target is met."""
    met = True
    print(f"{'':<6}{'engine':>10}{'mesh':>10}{'added':>10}{'ratio':>8}{'target':>10}")
    for percent, target in TARGET_MS.items():
        direct, mesh = (statistics.quantiles(times, n=100)[percent - 1] for times in (direct_ms, mesh_ms))
        print(f"p{percent:<5}{direct:7.2f} ms{mesh:7.2f} ms{mesh - direct:7.2f} ms{mesh / direct:8.1f}{target:7.1f} ms")
        met &= mesh - direct <= target
    return met


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--port", type=int, default=10915)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hwbench") as folder:
        words = [sys.executable, "-m", "haywain", "up", "--engine", "echo", "--data", folder, "--port", str(options.port)]
        mesh = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            assert mesh.stdout is not None  # noqa: S101 - it was asked for
            if not mesh.stdout.readline().startswith(b"ready"):
                sys.exit("the mesh did not start")
            settings = Settings(data_dir=folder, envoy=EnvoySettings(port=options.port))
            met = report(*asyncio.run(measure(settings, options.calls, options.in_flight)))
        finally:
            mesh.terminate()
            mesh.wait()
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()

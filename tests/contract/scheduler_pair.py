"""Two schedulers in the test's process, on one PostgreSQL and one data folder, each with an engine of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from scheduler_mesh import EchoEngine, Mesh, eventually, mesh, quick, with_engine

from haywain import rpc
from haywain.clock import Clock, SystemClock
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import DatabaseSettings, Settings

__all__ = ["Ahead", "Pair", "lines_read", "pair", "replica"]


class Ahead:
    """A clock that is ahead of the machine's: for its owner, others' leases have expired."""

    def __init__(self, seconds: float) -> None:
        """By so much."""
        self.seconds = seconds
        self._clock = SystemClock()

    def now(self) -> float:
        """Tell the Unix time."""
        return self._clock.now() + self.seconds

    def monotonic(self) -> float:
        """Tell a time that never goes back."""
        return self._clock.monotonic()


class Pair:
    """The schedulers `a` and `b`, their engines `ea` and `eb`."""

    def __init__(self, a: Mesh, b: Mesh, ea: EchoEngine, eb: EchoEngine) -> None:
        """Made by `pair`."""
        self.a, self.b, self.ea, self.eb = a, b, ea, eb

    def rows_sent(self) -> list[str]:
        """List what both engines were sent, by the text of the rows."""
        sequences = self.ea.sequences + self.eb.sequences
        return [msgspec.json.decode(sequence.request)["messages"][0]["content"] for sequence in sequences]


def replica(settings: Settings, number: int, **changes: Any) -> Settings:
    """Give the settings of one of two schedulers."""
    name = "scheduler" if number == 1 else f"scheduler-{number}"
    return quick(settings, replicas=2, replica=name, **changes)


@contextlib.asynccontextmanager
async def pair(
    settings: Settings, url: str, clock: Clock | None = None, *, b_lease: float = 30, **terms: Any
) -> AsyncIterator[Pair]:
    """Run both; `clock` is b's."""
    settings = msgspec.structs.replace(settings, db=DatabaseSettings(url=url))
    one, two = replica(settings, 1, **terms), replica(settings, 2, **terms, lease_seconds=b_lease)
    async with mesh(one) as a, mesh(two, clock) as b:
        ea, eb = await with_engine(a, engine_id="ea"), await with_engine(b, engine_id="eb")
        for running in (a, b):
            await eventually(lambda running=running: running.scheduler.engines.entries()[0].state, lambda state: state == 2)
        yield Pair(a, b, ea, eb)


async def lines_read(running: Mesh, batch_id: str, after: int = 0) -> bytes:
    """Read the results so far."""
    request = pb.ReadResultsRequest(batch_id=batch_id, after_line=after)
    return b"".join([piece.data async for piece in rpc.stream(running.stub.ReadResults, request)])

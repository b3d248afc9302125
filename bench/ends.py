"""What benchmarks of backends wait for."""

from __future__ import annotations

import asyncio

from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["Ends"]


class Ends:
    """An Emit that counts what ended."""

    def __init__(self, rows: int) -> None:
        """`done` is set after so many."""
        self._left = rows
        self.done = asyncio.Event()

    def delta(self, sequence_id: int, body: bytes) -> None:
        """Nothing is streamed."""

    def result(self, result: pb.SequenceResult) -> None:
        """Count an end."""
        if result.status_code != 200:
            raise RuntimeError(str(result))
        self._left -= 1
        if not self._left:
            self.done.set()

    def died(self, reason: str) -> None:
        """Never."""
        raise RuntimeError(reason)

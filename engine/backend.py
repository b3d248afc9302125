"""What a backend is: something that runs sequences in slots and says how each ended.

The service (engine/service.py) owns streams, credits and ids; a backend owns a model. A backend is imported only when it is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["Backend", "Emit"]


class Emit(Protocol):
    """Where a backend says what happened. Call on the event loop's thread only; neither method blocks."""

    def delta(self, sequence_id: int, body: bytes) -> None:
        """Pass on one chunk of a streamed answer: JSON, without SSE framing."""

    def result(self, result: pb.SequenceResult) -> None:
        """End a sequence; exactly once for each that was submitted, cancelled ones too (error code `cancelled`, status 499)."""


class Backend(Protocol):
    """A model and its slots."""

    name: str
    """echo, llamacpp, …"""
    version: str
    slots: int
    """Sequences that run at the same time."""

    async def start(self, emit: Emit) -> list[pb.ModelDescription]:
        """Load what is needed and describe the models. Raises SettingsError, in one clear line, when that can't work."""

    def submit(self, sequences: Sequence[pb.Sequence]) -> None:
        """Take sequences; never blocks and never refuses: the service keeps within the credits it granted.

        `sequence_id`s are unique in the backend's life.
        """

    def cancel(self, sequence_ids: Sequence[int]) -> None:
        """Stop these as soon as can be; each still ends by `Emit.result`. Unknown ids are ignored."""

    async def close(self) -> None:
        """Stop everything; nothing is emitted afterwards."""

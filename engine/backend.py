"""What a backend is: something that runs sequences in slots and says how each ended.

The service (engine/service.py) owns streams, credits, ids and lanes; a backend owns a model. A backend is a module with a
`create(settings: EngineSettings) -> Backend`; engine/registry.py names the modules and imports one only when it is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["Backend", "Counts", "Emit", "LooksAhead"]


class Emit(Protocol):
    """Where a backend says what happened. Call on the event loop's thread only, from inside `submit` too; no method blocks."""

    def delta(self, sequence_id: int, body: bytes) -> None:
        """Pass on one chunk of a streamed answer: JSON, without SSE framing."""

    def result(self, result: pb.SequenceResult) -> None:
        """End a sequence; exactly once for each that was submitted, cancelled ones too (error code `cancelled`, status 499).

        Bodies and results are made by engine/answers.py. The service takes `result` over and writes its own id into it.
        """

    def died(self, reason: str) -> None:
        """Say that the backend can't go on by itself: the process ends, its sequences go elsewhere, the supervisor restarts it."""


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
        """Take sequences; never blocks and never refuses: at most `slots` (and `lookahead`, if it has one) are out at a time.

        They come in the order in which they should run. `sequence_id`s are unique in the backend's life. Deadlines are watched by
        the service, which cancels what is too late.
        """

    def cancel(self, sequence_ids: Sequence[int]) -> None:
        """Stop these as soon as can be; each still ends by `Emit.result`. Unknown ids are ignored."""

    async def close(self) -> None:
        """Stop everything; nothing is emitted afterwards."""


@runtime_checkable
class LooksAhead(Protocol):
    """A backend that wants to prepare (tokenise, group) sequences ahead of their slots. It must respect lanes by itself."""

    lookahead: int
    """Sequences it takes beyond `slots`."""


@runtime_checkable
class Counts(Protocol):
    """A backend that knows how busy its model is."""

    @property
    def load(self) -> pb.Load:
        """Tell; asked once a second or so, so it only looks."""

"""A backend without a model: the answer repeats the last user message. Deterministic; made for tests, demos and benchmarks.

Tokens are words. `usage` counts the words of all messages and of the answer; `max_tokens` cuts after so many words (finish_reason
`length`), a stop string cuts before it; a stream has a chunk a word, with the space before it. A row takes `ms_per_row` and
`ms_per_token` for each word of its answer; with both 0 it is answered at once, inside `submit`.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import os
import time
from collections.abc import Sequence
from typing import Final

from engine import answers, echo_text
from engine.backend import Emit
from haywain import clock, errors
from haywain.engine.v1 import engine_pb2 as pb
from haywain.settings import EchoSettings, EngineSettings

__all__ = ["EchoBackend", "create"]

_FIELDS: Final = sorted(echo_text.CHAT_FIELDS | echo_text.COMPLETION_FIELDS | echo_text.EMBEDDING_FIELDS)
_ANSWERS: Final = {
    "/v1/chat/completions": echo_text.chat,
    "/v1/completions": echo_text.completion,
    "/v1/embeddings": echo_text.embedding,
}


def create(settings: EngineSettings) -> EchoBackend:
    """Make the backend."""
    return EchoBackend(settings.echo)


class _Running:
    """A sequence whose time isn't up."""

    __slots__ = ("log_line", "outcome", "sent", "sequence_id", "started")

    def __init__(self, sequence: pb.Sequence, outcome: echo_text.Outcome, log_line: bytes, started: float) -> None:
        """`started` by the event loop's clock."""
        self.sequence_id = sequence.sequence_id
        self.outcome = outcome
        self.log_line = log_line
        self.started = started
        self.sent = 0  # deltas


class EchoBackend:
    """Runs up to `slots` sequences by the clock, on one timer for all of them."""

    name = "echo"
    version = "1"

    def __init__(self, settings: EchoSettings) -> None:
        """Nothing is opened yet."""
        self.slots = settings.slots
        self._settings = settings
        self._row = settings.ms_per_row / 1_000
        self._token = settings.ms_per_token / 1_000
        self._plain = settings == EchoSettings(model=settings.model, slots=settings.slots)
        self._count = 0
        self._running: dict[int, _Running] = {}
        self._due: list[tuple[float, int]] = []
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = 0.0
        self._log: int | None = None
        self._emit: Emit

    async def start(self, emit: Emit) -> list[pb.ModelDescription]:
        """Open the run log, if one is wanted."""
        self._emit = emit
        if self.slots < 1:
            raise errors.SettingsError(f"engine.echo.slots is {self.slots}, expected at least 1")
        if self._settings.run_log:
            try:
                self._log = os.open(self._settings.run_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            except OSError as error:
                raise errors.SettingsError(f"engine.echo.run_log: {error}") from error
        model = pb.ModelDescription(
            model=self._settings.model,
            digest="echo-1",
            endpoints=sorted(_ANSWERS),
            fields=_FIELDS,
            deterministic=True,
            create_time=clock.timestamp(float(int(time.time()))),
            owned_by="haywain",
        )
        return [model]

    def submit(self, sequences: Sequence[pb.Sequence]) -> None:
        """Answer, or put by until their time."""
        now = asyncio.get_running_loop().time()
        emit = self._emit.result
        for sequence in sequences:
            try:
                outcome = _ANSWERS[sequence.endpoint](sequence.sequence_id, sequence.request, sequence.stream)
            except errors.HaywainError as error:
                emit(answers.error_result(sequence.sequence_id, error))
                continue
            if self._plain and not outcome.deltas:
                emit(outcome.result)
                continue
            running = _Running(sequence, self._injected(sequence, outcome), self._line(sequence), now)
            if self._hangs(outcome):
                self._running[sequence.sequence_id] = running
            elif self._row or self._token:
                self._running[sequence.sequence_id] = running
                self._plan(running)
            else:
                self._finish(running, 0)
        self._set_alarm()

    def cancel(self, sequence_ids: Sequence[int]) -> None:
        """End these now."""
        for sequence_id in sequence_ids:
            if self._running.pop(sequence_id, None) is not None:
                self._emit.result(answers.cancelled(sequence_id))

    async def close(self) -> None:
        """Forget everything."""
        self._running.clear()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._log is not None:
            os.close(self._log)
            self._log = None

    # -- failure injection ----------------------------------------------------------------------------------------------------

    def _injected(self, sequence: pb.Sequence, outcome: echo_text.Outcome) -> echo_text.Outcome:
        """Count the row, and do to it what the settings say."""
        told = self._settings
        self._count += 1
        if told.die_containing and told.die_containing in outcome.text:
            self._write(self._line(sequence))
            os._exit(70)
        every = told.fail_every and self._count % told.fail_every == 0
        if every or (told.fail_containing and told.fail_containing in outcome.text):
            result = answers.engine_error(sequence.sequence_id, "The echo engine was told to fail this row.")
            return echo_text.Outcome(outcome.text, outcome.tokens, [], result)
        return outcome

    def _hangs(self, outcome: echo_text.Outcome) -> bool:
        return bool(self._settings.hang_containing) and self._settings.hang_containing in outcome.text

    def _line(self, sequence: pb.Sequence) -> bytes:
        """Make the line that says this row ran: a short sha256 of its body, and which attempt it was."""
        if self._log is None:
            return b""
        return b"%s %d\n" % (hashlib.sha256(sequence.request).hexdigest()[:16].encode(), sequence.attempt)

    def _write(self, line: bytes) -> None:
        if self._log is not None:
            os.write(self._log, line)

    # -- time -----------------------------------------------------------------------------------------------------------------

    def _plan(self, running: _Running) -> None:
        """Wake up for the next delta of a stream, else for the end."""
        tokens = running.outcome.tokens
        done = min(running.sent, tokens) if running.outcome.deltas else tokens
        heapq.heappush(self._due, (running.started + self._row + self._token * done, running.sequence_id))

    def _set_alarm(self) -> None:
        # The handle can't tell its time: what is due at once, uvloop makes a plain Handle.
        if self._due and (self._alarm is None or self._due[0][0] < self._alarm_at):
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = self._due[0][0]
            self._alarm = asyncio.get_running_loop().call_at(self._alarm_at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = asyncio.get_running_loop().time() + 0.0005
        while self._due and self._due[0][0] <= now:
            running = self._running.get(heapq.heappop(self._due)[1])
            if running is None:
                continue
            deltas = running.outcome.deltas
            if running.sent < min(len(deltas), running.outcome.tokens + 1) - 1:
                self._emit.delta(running.sequence_id, deltas[running.sent])
                running.sent += 1
                self._plan(running)
                continue
            del self._running[running.sequence_id]
            self._finish(running, int((now - running.started) * 1_000))
        self._set_alarm()

    def _finish(self, running: _Running, run_ms: int) -> None:
        if running.log_line:
            self._write(running.log_line)
        for delta in running.outcome.deltas[running.sent :]:
            self._emit.delta(running.sequence_id, delta)
        running.outcome.result.run_ms = run_ms
        self._emit.result(running.outcome.result)

"""What was chosen for an engine, put into its next message: calls as they are, rows by reading their lines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from haywain import log
from haywain.clock import Clock
from haywain.engine.v1 import engine_pb2
from services.scheduler.batch import Attempt, Batch, Held
from services.scheduler.calls import Call
from services.scheduler.link import Link
from services.scheduler.recording import Recorder
from services.scheduler.rows import BadLine, Spans

__all__ = ["Sender"]

_log = log.get()


class Sender:
    """Gives sequences their numbers and notes them at their link."""

    def __init__(self, clock: Clock, recorder: Recorder) -> None:
        """Rows whose lines can't be had are failed at `recorder`."""
        self._clock = clock
        self._recorder = recorder
        self._reader = ThreadPoolExecutor(2, thread_name_prefix="rows")
        self._sequence = 0
        self.started: Callable[[Batch], Awaitable[None]] | None = None
        """Awaited before the first row of a batch is sent."""

    def add_call(self, link: Link, request: engine_pb2.RunRequest, call: Call) -> None:
        """Add an interactive request."""
        self._sequence += 1
        link.calls[self._sequence] = call
        request.sequences.add(
            sequence_id=self._sequence,
            model=call.request.model,
            endpoint=call.request.endpoint,
            request=call.request.request,
            lane=engine_pb2.LANE_INTERACTIVE,
            stream=call.request.stream,
            attempt=call.attempt,
        )

    async def add_rows(self, link: Link, request: engine_pb2.RunRequest, attempts: list[Attempt]) -> None:
        """Add rows, but those that fail and those of a batch that was stopped meanwhile.

        Takes out of `attempts` what is done with: after an exception the rest goes back to the queue. Raises OSError, Unavailable.
        """
        while attempts:
            held = attempts[0].held
            if held.batch.start_time is None and self.started is not None:
                await self.started(held.batch)
            count = next((at for at, attempt in enumerate(attempts) if attempt.held is not held), len(attempts))
            lines = await self._read(held, [(attempt.offset, attempt.length) for attempt in attempts[:count]])
            taken = attempts[:count]
            del attempts[:count]
            if not held.over:
                self._add_lines(link, request, taken, lines)

    async def _read(self, held: Held, spans: Spans) -> list[bytes]:
        """Read lines. What the input doesn't have comes cut short."""
        source = held.batch.input
        if held.window.holds(spans):
            return held.window.lines(spans)
        try:
            lines, held.window = await asyncio.get_running_loop().run_in_executor(self._reader, source.read, spans)
        except FileNotFoundError:
            if not source.missing:
                source.missing = True
                _log.error("input.missing", batch_id=held.batch.batch_id)
            return [b""] * len(spans)
        return lines

    def _add_lines(self, link: Link, request: engine_pb2.RunRequest, attempts: list[Attempt], lines: list[bytes]) -> None:
        """Add one shard's rows. A line that is none fails its row."""
        held = attempts[0].held
        parse, now = held.batch.lines.parse, self._clock.monotonic()
        good: list[tuple[Attempt, bytes]] = []
        for attempt, line in zip(attempts, lines, strict=True):
            try:
                attempt.custom_id, body = parse(line)
            except BadLine as error:
                self._bad_line(attempt, line, str(error))
            else:
                good.append((attempt, body))
        begin = len(request.sequences)
        request.sequences.extend([held.sequence] * len(good))
        for sequence, (attempt, body) in zip(request.sequences[begin:], good, strict=True):
            self._sequence += 1
            sequence.sequence_id, sequence.request, sequence.attempt = self._sequence, body, attempt.attempt
            link.attempts[self._sequence] = attempt
            link.bytes += attempt.length
            attempt.sent_at = now
        held.batch.running += len(good)

    def _bad_line(self, attempt: Attempt, line: bytes, error: str) -> None:
        attempt.custom_id = b"null"
        if len(line) < attempt.length or not line:
            self._recorder.failed(attempt, "batch_failed", "The line can't be read any more: the batch's input is lost.")
        else:
            self._recorder.failed(attempt, "invalid_json_line", error)

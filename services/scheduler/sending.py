"""What was chosen for an engine, put into its next message: calls as they are, rows by reading their lines."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from haywain import log
from haywain.clock import Clock
from haywain.engine.v1 import engine_pb2
from services.scheduler.aliases import Aliases
from services.scheduler.batch import Attempt, Held
from services.scheduler.calls import Call
from services.scheduler.gate import Gate, Open
from services.scheduler.link import Link
from services.scheduler.recording import Recorder
from services.scheduler.rows import BadLine, Input, Spans, Window

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
        self.gate: Gate = Open()
        self.aliases = Aliases({})

    def lets(self, attempt: Attempt) -> bool:
        """Tell whether a row may be sent just now, wherever there is room."""
        return self.gate.lets(attempt.held.batch.batch_id, attempt.held.model)

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
        """Add rows, but those that fail, and those that may not be sent any more by now: none to an engine that is quarantined.

        Takes out of `attempts` what is done with: after an exception the rest goes back to the queue. Raises OSError.
        """
        runs = [list(run) for _, run in itertools.groupby(attempts, key=_held)]
        spans = [[(attempt.offset, attempt.length) for attempt in run] for run in runs]
        kept: list[Attempt] = []
        try:
            read = await self._read([run[0].held for run in runs], spans)
            if len(attempts) > link.room(self._clock.monotonic()):
                return
            for run, lines in zip(runs, read, strict=True):
                if isinstance(lines, BaseException):
                    raise lines
                held = run[0].held
                del attempts[: len(run)]
                if not self.lets(run[0]):
                    kept += run
                elif not held.over:
                    self._add_lines(link, request, run, lines)
        finally:
            attempts += kept  # behind one that can't be read: it is the first that is left

    async def _read(self, shards: list[Held], spans: Sequence[Spans]) -> list[list[bytes] | BaseException]:
        """Read lines of several shards, all that were not read ahead in one go. What the input doesn't have comes cut short."""
        found: list[Any] = [
            held.window.lines(some) if held.window.holds(some) else None for held, some in zip(shards, spans, strict=True)
        ]
        unread = [at for at, lines in enumerate(found) if lines is None]
        if unread:
            wanted = [(shards[at].batch.input, spans[at]) for at in unread]
            read = await asyncio.get_running_loop().run_in_executor(self._reader, _read, wanted)
            for at, outcome in zip(unread, read, strict=True):
                found[at] = self._placed(shards[at], len(spans[at]), outcome)
        return found

    def _placed(self, held: Held, count: int, outcome: tuple[list[bytes], Window] | OSError) -> list[bytes] | OSError:
        if isinstance(outcome, FileNotFoundError):
            if not held.batch.input.missing:
                held.batch.input.missing = True
                _log.error("input.missing", batch_id=held.batch.batch_id)
            return [b""] * count
        if isinstance(outcome, OSError):
            return outcome
        lines, held.window = outcome
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
                good.append((attempt, self.aliases.body(body, held.model)))
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


def _held(attempt: Attempt) -> Held:
    return attempt.held


def _read(wanted: list[tuple[Input, Spans]]) -> list[tuple[list[bytes], Window] | OSError]:
    outcomes: list[tuple[list[bytes], Window] | OSError] = []
    for source, spans in wanted:
        try:
            outcomes.append(source.read(spans))
        except OSError as error:
            outcomes.append(error)
    return outcomes

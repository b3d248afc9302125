"""From an engine's word to a recorded row: each row once, whatever engines say twice, late, or never asked.

Of every result: the attempt is over → dropped; the engine's own fault → tried again, a bounded number of times; what the engine
wraps is away → tried again, until the batch expires; else a line goes to the journal, and once it is synced the row counts.
"""

from __future__ import annotations

from collections.abc import Callable

from haywain import log
from haywain.engine.v1 import engine_pb2
from services.scheduler import figures
from services.scheduler.batch import Attempt, Batch, Held, Tally
from services.scheduler.journal import Group, Journals
from services.scheduler.ledger import Ledger
from services.scheduler.results import ResultLines, unrun_line

__all__ = ["Recorder"]

_TOKEN_BITS = 32
_log = log.get()


class Recorder:
    """Accepts the outcomes of rows."""

    def __init__(self, journals: Journals, ledger: Ledger, max_attempts: int) -> None:
        """`max_attempts` is how often engines may refuse a row as retryable."""
        self._journals = journals
        self._ledger = ledger
        self._max_attempts = max_attempts
        self.retry: Callable[[Attempt], None] = lambda attempt: attempt.held.give_back([attempt])
        """Called with a row that is to be tried again, later."""
        self.recorded: Callable[[Batch, list[Held]], None] = lambda batch, held: None
        """Called when lines of rows are on the disk, with the shards they are of."""
        self.dropped = 0
        """Results that came for nothing: late, repeated, or of a lost lease."""

    def ended(self, attempt: Attempt, result: engine_pb2.SequenceResult, lines: ResultLines) -> bool:
        """Take an engine's result for a row in flight; False when it isn't good: an error, or no JSON object."""
        held = attempt.held
        if held.over or held.batch.recorded[attempt.row]:
            self.dropped += 1
            return True
        if result.status_code != 200 and (result.retryable or result.error.code == "cancelled"):
            away = result.error.code == "engine_unavailable"  # it never ran there: not a try, and no reason to fail it
            if away or attempt.refusals + 1 < self._max_attempts:
                attempt.attempt += not away
                attempt.refusals += not away
                self.retry(attempt)
                return False
            result.error.code = "engine_error"
        tokens = _tokens(result.usage)
        lines.tokens.add(tokens[0], tokens[1], tokens[2])
        line, good = lines.build(held.batch.prefix, attempt, result, tokens[1])
        tally = self._accept(attempt, line, 1 if good else 2)
        if good:
            tally.completed += 1
            tally.input_tokens += tokens[0]
            tally.cached_tokens += tokens[1]
            tally.output_tokens += tokens[2]
            tally.reasoning_tokens += tokens[3]
        else:
            tally.failed += 1
        return good

    def failed(self, attempt: Attempt, code: str, message: str) -> None:
        """Record a row that no engine answered as failed."""
        held = attempt.held
        if held.over or held.batch.recorded[attempt.row]:
            return
        line = unrun_line(held.batch.prefix, attempt.row, attempt.custom_id, attempt.line, (code, message))
        self._accept(attempt, line, 2).failed += 1

    def _accept(self, attempt: Attempt, line: bytes, outcome: int) -> Tally:
        """Send a row's line to the journal; the tally is what is counted once it is synced."""
        held = attempt.held
        batch = held.batch
        batch.recorded[attempt.row] = outcome
        batch.accepted += 1
        tallies: dict[Held, Tally] = self._journals.append(held.journal, line)
        tally = tallies.get(held)
        if tally is None:
            tally = tallies[held] = Tally()
        return tally

    def synced(self, group: Group) -> None:
        """Take note of lines that are on the disk now."""
        tallies: dict[Held, Tally] = group.notes
        for held, tally in tallies.items():
            held.delta.add(tally)
            held.unrecorded -= tally.rows
            self._ledger.synced(held, tally)
        if tallies:
            figures.recorded(tallies.values())
            batch = next(iter(tallies)).batch
            self.recorded(batch, list(tallies))


def _tokens(used: engine_pb2.Usage) -> tuple[int, int, int, int]:
    given, cached, output, reasoning = used.input_tokens, used.cached_tokens, used.output_tokens, used.reasoning_tokens
    if (given | cached | output | reasoning) >> _TOKEN_BITS:  # one is negative or absurd
        most = (1 << _TOKEN_BITS) - 1
        return tuple(min(max(count, 0), most) for count in (given, cached, output, reasoning))  # type: ignore[return-value]
    return given, cached, output, reasoning

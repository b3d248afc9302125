"""What the scheduler counts and measures: by the group of rows, never row by row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from haywain.metrics import Figures, counter, figure, histogram
from haywain.scheduler.v1 import scheduler_pb2 as pb

if TYPE_CHECKING:
    from services.scheduler.batch import Tally
    from services.scheduler.scheduler import Scheduler

__all__ = ["SEAL_SECONDS", "copied", "figures", "flushed", "recorded"]

_FLUSH_SECONDS = histogram(
    "haywain_journal_flush_seconds",
    "What writing and syncing a group of result lines took.",
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30),
)
_FLUSH_ROWS = histogram(
    "haywain_journal_flush_rows", "Result lines that were written and synced together.", (1, 4, 16, 64, 256, 1024, 4096, 16384)
)
SEAL_SECONDS = histogram(
    "haywain_seal_seconds",
    "What writing a batch's output and error files took.",
    (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
_ROWS = counter("haywain_rows_recorded", "Rows whose result line is synced.", "outcome")
_TOKENS = counter("haywain_tokens_recorded", "Tokens of recorded rows; cached ones are input, too.", "kind")
_COPIES = counter("haywain_rows_copied", "Rows that were sent to a second engine since the first was late.")
_COMPLETED, _FAILED = _ROWS.labels("completed"), _ROWS.labels("failed")
_INPUT, _CACHED, _OUTPUT = (_TOKENS.labels(kind) for kind in ("input", "cached", "output"))


def recorded(tallies: Iterable[Tally]) -> None:
    """Count a group of rows."""
    completed = failed = given = cached = output = 0
    for tally in tallies:
        completed += tally.completed
        failed += tally.failed
        given += tally.input_tokens
        cached += tally.cached_tokens
        output += tally.output_tokens
    for child, count in ((_COMPLETED, completed), (_FAILED, failed), (_INPUT, given), (_CACHED, cached), (_OUTPUT, output)):
        child.inc(count)


def flushed(seconds: float, rows: int) -> None:
    """Count a group of result lines that were written and synced together."""
    _FLUSH_SECONDS.observe(seconds)
    _FLUSH_ROWS.observe(rows)


def copied(rows: int) -> None:
    """Count rows that were sent to an engine while they are late at another."""
    _COPIES.inc(rows)


def figures(scheduler: Scheduler) -> Figures:
    """Tell what waits, what is out, and the engines."""

    async def look() -> list[Metric]:
        dispatcher, settings = scheduler.dispatcher, scheduler.settings
        slots = dispatcher.links.in_slots
        single = {
            ("haywain_active_batches", "Batches that were taken in and have not ended."): sum(
                not batch.ended for batch in scheduler.intake.batches.values()
            ),
            ("haywain_intake_rows", "Rows that were taken in and are not recorded."): scheduler.intake.waiting_rows(),
            ("haywain_intake_capacity_rows", "Rows that can be taken in."): settings.intake_rows,
            ("haywain_slots_capacity", "Sequences that may be at engines at the same time."): settings.slots,
            ("haywain_slots_used", "Sequences in engines' slots."): slots,
            ("haywain_slots_free", "Sequences that could be sent if engines had room."): max(settings.slots - slots, 0),
            ("haywain_calls_waiting", "Synchronous requests that wait for a slot."): len(dispatcher.calls),
            ("haywain_dispatch_paused", "1 while no rows are sent because results can't be stored."): dispatcher.paused(),
        }
        held = {lease.model for lease in scheduler.model_leases.active()}
        leased = {(model,): float(model in held) for model in held | set(scheduler.model_leases.names().values())}
        return [
            *(figure(name, what, {(): float(value)}) for (name, what), value in single.items()),
            figure("haywain_model_leased", "1 while a model is leased, 0 while it is free.", leased, "model"),
            *_engines(scheduler),
        ]

    return look


def _engines(scheduler: Scheduler) -> list[Metric]:
    known = [scheduler.engines.status(entry) for entry in scheduler.engines.entries()]
    ended = CounterMetricFamily("haywain_engine_ended", "Sequences that ended at an engine.", labels=("engine",))
    for one in known:
        ended.add_metric((one.engine.engine_id,), one.ended)
    times = "Times that an engine was quarantined, or tried again in vain."
    quarantines = CounterMetricFamily("haywain_engine_quarantines", times, labels=("engine",))
    strays = CounterMetricFamily(
        "haywain_engine_strays", "Results and chunks for sequences that it didn't have.", labels=("engine",)
    )
    for engine_id, breaker in {link.engine.engine_id: link.breaker for link in scheduler.dispatcher.links}.items():
        quarantines.add_metric((engine_id,), breaker.times)
        strays.add_metric((engine_id,), breaker.strays)
    words = {value: name.removeprefix("STATE_").lower() for name, value in pb.EngineStatus.State.items() if value}
    states = {(one.engine.engine_id, word): float(one.state == value) for one in known for value, word in words.items()}
    return [
        figure("haywain_engine_slots", "An engine's slots.", {(e.engine.engine_id,): e.engine.slots for e in known}, "engine"),
        figure("haywain_engine_active", "Sequences at an engine.", {(e.engine.engine_id,): e.active for e in known}, "engine"),
        figure(
            "haywain_engine_credits", "Sequences an engine would take.", {(e.engine.engine_id,): e.credits for e in known}, "engine"
        ),
        figure("haywain_engine_slow", "1 for a slow engine.", {(e.engine.engine_id,): float(e.slow) for e in known}, "engine"),
        figure("haywain_engine_state", "1 for the state that an engine is in.", states, "engine", "state"),
        ended,
        quarantines,
        strays,
    ]

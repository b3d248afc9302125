"""The circuit breaker of an engine: what opens it, what closes it, and how long it stays open."""

from __future__ import annotations

import pytest

from haywain.engine.v1 import engine_pb2
from services.scheduler.breaker import AGAIN, FINAL, GOOD, PROBES, Breaker, Breakers, verdict

MUCH = 1_000


def breaker() -> Breaker:
    """Make one without jitter."""
    return Breaker(jitter=lambda low, high: (low + high) / 2)


def opened(now: float = 0.0) -> Breaker:
    """Make one that just opened."""
    made = breaker()
    assert [made.bad(AGAIN, "500", now, alone=False) for _ in range(5)] == [False] * 4 + [True]
    return made


def engine(incarnation: str, name: str = "e") -> engine_pb2.Engine:
    """Make an engine's description."""
    return engine_pb2.Engine(engine_id=name, incarnation=incarnation)


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        ({"status_code": 503, "retryable": True, "error": {"code": "engine_error"}}, AGAIN),
        ({"status_code": 499, "error": {"code": "cancelled"}}, AGAIN),
        ({"status_code": 500, "error": {"code": "engine_error"}}, FINAL),
        ({"status_code": 504, "error": {"code": "row_timeout"}}, FINAL),
        ({"status_code": 0}, FINAL),
        ({"status_code": 302}, FINAL),
        ({"status_code": 400, "error": {"code": "invalid_request"}}, GOOD),
        ({"status_code": 400, "error": {"code": "context_length_exceeded"}}, GOOD),
        ({"status_code": 503, "retryable": True, "error": {"code": "engine_unavailable"}}, None),
        ({"status_code": 503, "retryable": True, "error": {"code": "overloaded"}}, None),
        ({"status_code": 429, "retryable": True}, None),
    ],
)
def test_verdicts(result: dict[str, object], kind: int | None) -> None:
    """Refusals worth another try and server errors are the engine's own, a bad request the row's, being full or away is neither."""
    assert verdict(engine_pb2.SequenceResult(**result)) == kind  # type: ignore[arg-type]


def test_an_engine_that_fails_half_of_its_rows_is_quarantined() -> None:
    """Five failures that are half of the last twenty open it; fewer, or among more good answers, don't."""
    failing = breaker()
    failing.good(MUCH)
    assert [failing.bad(AGAIN, "500", 0.0, alone=False) for _ in range(9)] == [False] * 9
    assert failing.bad(FINAL, "500 engine_error", 0.0, alone=False)
    assert "10 of its last 20 rows failed" in failing.why
    assert failing.why.endswith("500 engine_error")
    assert failing.quarantined
    seldom = breaker()
    for _ in range(100):
        seldom.good(3)
        assert not seldom.bad(AGAIN, "500", 0.0, alone=False)


def test_the_only_engine_of_a_model_is_quarantined_only_when_nothing_works_and_rows_would_come_back() -> None:
    """One good answer in twenty keeps the last engine, and what its engine calls final does."""
    last = breaker()
    assert not any(last.bad(FINAL, "500", 0.0, alone=True) for _ in range(MUCH))
    last.good(1)
    assert not any(last.bad(AGAIN, "503", 0.0, alone=True) for _ in range(19))
    assert last.bad(AGAIN, "503", 0.0, alone=True)


def test_an_engine_that_others_could_have_judged_is_trusted_when_they_are_gone() -> None:
    """Quarantined for final failures it is closed once no other engine is left; for others it stays."""
    final, again = breaker(), opened()
    assert any(final.bad(FINAL, "500", 0.0, alone=False) for _ in range(5))
    assert final.alone(0.0)
    assert not final.quarantined
    assert not again.alone(0.0)
    assert not final.alone(0.0)
    for kind in (AGAIN, FINAL):  # the last probe decides
        again.failed_again(kind, "5xx", 0.0)
        assert again.alone(0.0) == (kind == FINAL)
    assert any(final.bad(FINAL, "500", 0.0, alone=False) for _ in range(5))
    assert final.lost(1.0, 1)
    assert not final.alone(1.0)


def test_no_rows_then_a_few_then_all() -> None:
    """It has room for nothing until its pause is over, then for a few probes; when they end well it closes."""
    tried = opened(10.0)
    assert (tried.room(10.9, 0), tried.room(11.0, 0), tried.room(11.0, 2), tried.room(11.0, 5)) == (0, PROBES, PROBES - 2, 0)
    assert [tried.proved(12.0, out) for out in (2, 1)] == [False, False]
    assert tried.proved(12.0, 1)
    assert not tried.quarantined
    assert tried.room(12.0, 50) > MUCH


def test_one_probe_is_enough_when_there_are_no_more() -> None:
    """A probe that ends well closes it if none is left."""
    tried = opened()
    assert tried.proved(2.0, 0)


def test_pauses_double_up_to_half_a_minute() -> None:
    """Each probe that fails makes the next pause twice as long, up to a bound; after some calm minutes it is short again."""
    tried, now, pauses = opened(), 0.0, []
    for _ in range(8):
        pauses.append(tried.until - now)
        now = tried.until
        tried.failed_again(AGAIN, "500", now)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    tried.close(now)
    assert any(tried.bad(AGAIN, "500", now + 10, alone=False) for _ in range(5))
    assert tried.until - now - 10 == 30.0
    tried.close(now + 20)
    assert any(tried.bad(AGAIN, "500", now + 1_000, alone=False) for _ in range(5))
    assert tried.until - now - 1_000 == 1.0


def test_pauses_have_jitter() -> None:
    """Engines that failed together are not tried together."""
    pauses = set()
    for _ in range(20):
        made = Breaker()
        assert any(made.bad(AGAIN, "500", 0.0, alone=False) for _ in range(5))
        assert 0.75 <= made.until <= 1.25
        pauses.add(made.until)
    assert len(pauses) > 5


def test_rows_of_probes_are_spared_until_pauses_are_long() -> None:
    """What a probe suffers isn't counted as its row's try for the first half minute or so, and is later on."""
    tried = opened()
    spared = []
    for _ in range(7):
        spared.append(tried.lenient)
        tried.failed_again(AGAIN, "500", tried.until)
    assert spared == [True] * 5 + [False] * 2
    assert not breaker().lenient


def test_what_was_sent_before_it_opened_changes_nothing() -> None:
    """Failures and losses that come in late don't make the pause longer."""
    tried = opened()
    until = tried.until
    assert not any(tried.bad(AGAIN, "500", 0.5, alone=False) for _ in range(50))
    assert not tried.lost(0.5, 0)
    assert tried.until == until


def test_streams_that_break_again_and_again() -> None:
    """Three losses with hardly an answer between them open it; with many answers, or minutes, they don't."""
    unstable = breaker()
    assert [unstable.lost(now, 0) for now in (0.0, 5.0, 10.0)] == [False, False, True]
    assert "broke 3 times" in unstable.why
    working = breaker()
    for now in range(20):
        assert not working.lost(float(now), 0)
        assert working.shaky
        working.good(30)
        assert not working.shaky
    seldom = breaker()
    assert not any(seldom.lost(now * 1_000.0, 0) for now in range(10))


def test_an_engine_that_is_lost_whatever_it_runs() -> None:
    """Four losses without a single good answer are hardly the rows' doing, suspects or not; one answer shows that it works."""
    dying = breaker()
    for suspects in (False, True, True):
        assert not dying.lost(0.0, 0, suspects=suspects)
        assert not dying.dying
    assert not dying.lost(0.0, 0, suspects=True)
    assert dying.dying
    assert not dying.quarantined
    dying.good(1)
    assert not dying.dying


def test_a_new_process_is_believed() -> None:
    """A restart ends a quarantine for failures; after losses it is tried at once, with a few rows only."""
    known = Breakers()
    failing = known.of(engine("1"), 0.0)
    assert any(failing.bad(AGAIN, "500", 0.0, alone=False) for _ in range(5))
    assert known.of(engine("1"), 0.1) is failing
    assert failing.quarantined
    assert not known.of(engine("2"), 0.2).quarantined
    for now in (1.0, 2.0, 3.0):
        failing.lost(now, 0)
    assert failing.room(3.1, 0) == 0
    assert known.of(engine("3"), 3.1).room(3.1, 0) == PROBES
    assert failing.lost(3.2, 2)
    assert failing.room(3.3, 0) == 0


def test_engines_are_forgotten_at_last() -> None:
    """However many engines come and go, the breakers that are kept are bounded, and the newest are among them."""
    known = Breakers()
    kept = known.of(engine("1", "kept"), 0.0)
    for number in range(2_000):
        known.of(engine("1", f"e{number}"), 0.0)
        assert known.of(engine("1", "kept"), 0.0) is kept
    assert len(known._known) == 1_024

"""The list of engines: what several schedulers say put together, rates, and the table that is printed."""

from __future__ import annotations

import json

import pytest

from haywain import engines
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from services.scheduler.others import together
from services.scheduler.speed import Speed, Tokens

State = pb.EngineStatus


def status(engine_id: str, state: pb.EngineStatus.State, active: int = 0, **terms: float) -> pb.EngineStatus:
    """Make a status."""
    model = engine_pb2.ModelDescription(model="smollm2-135m-instruct", digest="sha256:0123456789abcdef+f16", aliases=["smol"])
    engine = engine_pb2.Engine(engine_id=engine_id, incarnation="1", backend="llamacpp", version="1.2", slots=22, models=[model])
    return pb.EngineStatus(engine=engine, state=state, active=active, **terms)  # type: ignore[arg-type]


def test_shares_are_summed_by_engine() -> None:
    """Sums, in the order of ids; the state is that of the scheduler which expects most, but a drain is for all."""
    shares = [
        status("b", State.STATE_CONNECTING, 1, ended=10, output_tokens_per_second=1.5),
        status("a", State.STATE_READY, 2),
        status("b", State.STATE_READY, 3, ended=5, output_tokens_per_second=2.0),
        status("a", State.STATE_DRAINING, 4),
        status("c", State.STATE_LOST),
    ]
    told = [(one.engine.engine_id, one.state, one.active, one.ended, one.output_tokens_per_second) for one in together(shares)]
    assert told == [
        ("a", State.STATE_DRAINING, 6, 0, 0.0),
        ("b", State.STATE_READY, 4, 15, 3.5),
        ("c", State.STATE_LOST, 0, 0, 0.0),
    ]


def test_rates_are_of_the_last_seconds() -> None:
    """What grew long ago doesn't count; less than a second counts as one."""
    tokens = Tokens()
    speed = Speed(tokens, 100.0)
    tokens.add(30, 10, 20)
    assert speed.rates(100.5) == (30.0, 10.0, 20.0)
    for half in range(1, 41):
        speed.look(100.0 + half / 2)
    assert speed.rates(120.0) == (0.0, 0.0, 0.0)
    tokens.add(50, 0, 100)
    speed.look(120.5)
    given, cached, output = speed.rates(122.0)
    assert (cached, given * 2) == (0.0, output)
    assert 100 / 8 < output <= 100 / 5


def test_the_table_is_readable_at_a_hundred_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """A line an engine, all of it within 100 columns; what is wrong stands below."""
    one = status("engine-0", State.STATE_READY, 44, input_tokens_per_second=1234.5, cached_tokens_per_second=600)
    one.load.CopyFrom(engine_pb2.Load(running=21, kv_used=3_400, kv_capacity=10_000, step_seconds=0.0456))
    two = status("triton-1", State.STATE_QUARANTINED, quarantine_reason="5 of its last 9 rows failed")
    engines._print(pb.ListEnginesResponse(engines=[one, two], silent=["scheduler-2"]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    rows = [line.split() for line in lines]
    assert ["engine", "state", "backend", "model", "digest", "active", "in/s", "out/s", "cached"] in rows
    assert ["engine-0", "ready", "llamacpp", "smollm2-135m-instruct", "01234567+f16", "44/22", "1,234", "0", "49%"] in rows
    assert ["triton-1", "quarantined", "llamacpp", "smollm2-135m-instruct", "01234567+f16", "0/22", "0", "0", "-"] in rows
    assert lines[-3:] == [
        "engine-0 runs 21 of 22 at a time, 34% of its KV cache is in use, a step takes 45.6 ms",
        "triton-1 is quarantined: 5 of its last 9 rows failed",
        "scheduler-2 did not answer: what it has at engines isn't counted",
    ]


def test_programs_get_json() -> None:
    """Everything that is known, under names that say their unit."""
    told = json.loads(engines._json(pb.ListEnginesResponse(engines=[status("engine-0", State.STATE_READY, 3, ended=7)])))
    assert told["silent_schedulers"] == []
    (engine,) = told["engines"]
    assert engine["models"] == [
        {"id": "smollm2-135m-instruct", "aliases": ["smol"], "digest": "sha256:0123456789abcdef+f16", "endpoints": []}
    ]
    assert engine["load"] is None
    known = {"id": "engine-0", "state": "ready", "added": False, "slots": 22, "active": 3, "ended": 7, "slow": False}
    assert {name: engine[name] for name in known} == known


def test_programs_get_the_load_that_is_known() -> None:
    """An engine that counts nothing but what it runs says no more; one without a cache has none to tell of."""
    counted = status("engine-0", State.STATE_READY)
    counted.load.CopyFrom(engine_pb2.Load(running=2))
    (engine,) = json.loads(engines._json(pb.ListEnginesResponse(engines=[counted])))["engines"]
    assert engine["load"] == {"running": 2, "kv_used_cells": 0, "kv_capacity_cells": 0, "step_seconds": 0.0}
    assert engines._busy(counted) == "engine-0 runs 2 of 22 at a time"

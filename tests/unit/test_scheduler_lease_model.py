"""The lease protocol, explored whole: no order of steps and faults records a row twice, loses one, or seals without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from haywain.db import Queries
from services.scheduler.lease_explorer import Broken, explore
from services.scheduler.lease_model import STATEMENTS, Rules

SQL = Path(__file__).parents[2] / "services" / "scheduler" / "sql"


BATCHES = {"a row": ((0b1,), 2), "a shard": ((0b11,), 1), "two shards": ((0b01, 0b10), 1)}
"""The rows of shards, a bit each, and how many faults."""


@pytest.mark.parametrize(("shards", "faults"), BATCHES.values(), ids=BATCHES)
def test_every_order_of_steps_is_right(shards: tuple[int, ...], faults: int) -> None:
    """Two schedulers claim, renew, commit, split, stop and seal, while leases end too early, one crashes, or an answer is lost."""
    explored = explore(Rules(), shards, faults)
    assert explored.states > 1_000
    assert explored.sealed > 200


@pytest.mark.parametrize(
    ("rules", "wrong"),
    [
        (Rules(fenced=False), "a row is recorded twice"),
        (Rules(claims_first=False), "a row is recorded twice"),
        (Rules(keyed=False), "a row is recorded twice"),
        (Rules(split_fenced=False), "a row is recorded twice"),
        (Rules(stop_fenced=False), "what is sealed is not what is recorded"),
        (Rules(turn_fenced=False), "the batch is sealed twice"),
    ],
    ids=lambda value: next((name for name, kept in vars(value).items() if not kept), "") if isinstance(value, Rules) else None,
)
def test_every_piece_is_needed(rules: Rules, wrong: str) -> None:
    """Without any one piece of the protocol there is an order of steps that breaks it, and the model finds it."""
    with pytest.raises(Broken, match=wrong):
        explore(rules, (0b11,), 1)


def test_the_model_is_about_these_statements() -> None:
    """Each transition that is a statement is one that exists."""
    for dialect in ("sqlite", "postgresql"):
        assert set(STATEMENTS.values()) <= set(Queries(SQL, dialect).statements)

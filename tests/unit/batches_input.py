"""Input files of batches, good and bad, and validation as a function of their bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from services.batches.lines import Served
from services.batches.record import Fault
from services.batches.validate import Order, Verdict, validate

CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
FIELDS = frozenset({"model", "messages", "prompt", "input", "stream", "max_tokens", "temperature"})
SERVED = {
    "echo": Served("echo", fields=FIELDS),
    "parrot": Served("echo", fields=FIELDS),
    "org/other": Served("org/other"),
    "embedder": Served("embedder", here=False),
}
Run = Callable[..., Verdict]


def line(custom_id: Any = "a", *, drop: str = "", body: Any = None, **changes: Any) -> bytes:
    """Write a line, good unless told otherwise."""
    if body is None:
        body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
    record = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | changes
    record.pop(drop, None)
    return json.dumps(record, ensure_ascii=False).encode()


def body(**changes: Any) -> dict[str, Any]:
    """Make a body, good unless told otherwise; None drops a member."""
    members = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]} | changes
    return {name: value for name, value in members.items() if value is not None}


@pytest.fixture
def order(tmp_path: Path) -> Order:
    """Give the order of a chat batch with the default limits."""
    return Order(
        input_path=str(tmp_path / "input"),
        index_path=str(tmp_path / "index"),
        endpoint=CHAT,
        default_model="",
        served=SERVED,
        members={},
        deterministic=False,
        mixed_models=False,
        max_lines=50_000,
        max_line_bytes=1_048_576,
        max_errors=1_000,
        shard_rows=5_000,
    )


@pytest.fixture
def run(order: Order) -> Run:
    """Give validation of bytes, under changed orders."""

    def run(data: bytes, **changes: Any) -> Verdict:
        Path(order.input_path).write_bytes(data)
        return validate(replace(order, **changes))

    return run


def only(verdict: Verdict) -> Fault:
    """Expect one fault."""
    assert verdict.plan is None
    assert len(verdict.faults) == 1, verdict.faults
    return verdict.faults[0]

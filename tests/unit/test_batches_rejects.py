"""Bad lines that do no harm to the others: the plan without them, and the file of their error lines."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from batches_input import EMBED, Run, body, line, order, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.batches import validate as module
from services.batches.record import Shard
from services.batches.validate import INDEX_ENTRY, Order

__all__ = ["order", "run"]

REJECT: dict[str, Any] = {"reject": True, "row_prefix": "batch_req_ab_"}


def entries(order: Order) -> list[int]:
    """Read the line numbers of the index."""
    return [number for _, _, number in INDEX_ENTRY.iter_unpack(Path(order.index_path).read_bytes())]


def test_good_lines_run_and_bad_ones_get_error_lines(run: Run, order: Order, tmp_path: Path) -> None:
    """The plan has the good lines; each bad one has an error line, in input order, with its code, its line and an id of its own."""
    path = tmp_path / "rejects"
    lines = [line("a"), b"nope", b"", line("a"), line("b", url=EMBED), line("c"), line(7), b"x" * 300, line("d")]
    verdict = run(b"\n".join(lines), rejects_path=str(path), max_line_bytes=250, **REJECT)
    assert verdict.plan is not None
    assert (verdict.plan.row_count, verdict.plan.shards, verdict.plan.rejected) == (3, [Shard("echo", 0, 3)], 5)
    assert verdict.good == 3
    assert entries(order) == [1, 6, 9]
    written = path.read_bytes()
    found = [json.loads(text) for text in written.splitlines()]
    assert [(row["custom_id"], row["error"]["code"], row["error"]["line"]) for row in found] == [
        (None, "invalid_json_line", 2),
        ("a", "duplicate_custom_id", 4),
        ("b", "invalid_url", 5),
        (None, "invalid_custom_id", 7),
        (None, "line_too_large", 8),
    ]
    assert [row["id"] for row in found] == [f"batch_req_ab_8000000{n}" for n in (2, 4, 5, 7, 8)]
    assert all(list(row) == ["id", "custom_id", "response", "error"] and row["response"] is None for row in found)
    rejects = verdict.rejects
    assert (rejects.count, rejects.size_bytes, rejects.sha256) == (5, len(written), hashlib.sha256(written).hexdigest())
    assert [(one.custom_id, one.fault.line) for one in rejects.first] == [(row["custom_id"], row["error"]["line"]) for row in found]


def test_a_line_of_no_model_does_not_choose_it(run: Run) -> None:
    """The first line that could run says which model the others must have."""
    data = b"\n".join([line("a", body=body(model="nope")), line("b"), line("c", body=body(model="org/other"))])
    verdict = run(data, **REJECT)
    assert [(fault.line, fault.code) for fault in verdict.faults] == [(1, "model_not_found"), (3, "mismatched_model")]
    assert (verdict.model, verdict.good) == ("echo", 1)


def test_nothing_but_bad_lines(run: Run, order: Order) -> None:
    """A plan without rows: every line has failed."""
    verdict = run(b"bad\nbad\n", **REJECT)
    assert verdict.plan is not None
    assert (verdict.plan.row_count, verdict.plan.shards, verdict.plan.rejected, verdict.good) == (0, [], 2, 0)
    assert entries(order) == []


def test_what_is_wrong_with_the_whole_file_is_not_rejected(run: Run, order: Order, tmp_path: Path) -> None:
    """Too many lines, no lines, and parameters of the batch that no engine honours fail the batch all the same."""
    path = tmp_path / "rejects"
    for data, changes, code in (
        (line() + b"\n\nbad\n", {"max_lines": 1}, "too_many_tasks"),
        (b"\n", {}, "empty_file"),
        (line() + b"\n", {"members": {"top_k": "top_k"}}, "unsupported_parameter"),
    ):
        verdict = run(data, rejects_path=str(path), **REJECT, **changes)
        assert verdict.plan is None
        assert verdict.faults[0].code == code
        assert not path.exists()
        assert not Path(order.index_path).exists()


def test_only_the_first_hundred_are_told(run: Run, tmp_path: Path) -> None:
    """Of many bad lines a hundred are told with the verdict, all are in the file, and ids in any script stay ASCII in it."""
    path = tmp_path / "rejects"
    data = b"".join(line(f"שלום{n}", method="GET") + b"\n" for n in range(2_500)) + line()
    verdict = run(data, rejects_path=str(path), **REJECT)
    assert (verdict.rejects.count, len(verdict.rejects.first), verdict.good) == (2_500, 100, 1)
    assert path.read_bytes().isascii()
    assert [json.loads(text)["custom_id"] for text in path.read_bytes().splitlines()] == [f"שלום{n}" for n in range(2_500)]


def test_bad_lines_of_a_batch_that_fails(run: Run, order: Order, tmp_path: Path) -> None:
    """Error lines can be written of a file that fails, too; good lines are counted, and no index stays."""
    path = tmp_path / "rejects"
    verdict = run(line("a") + b"\nbad\n" + line("b"), rejects_path=str(path))
    assert (verdict.plan, verdict.good, verdict.rejects.count) == (None, 2, 1)
    assert path.read_bytes().count(b"\n") == 1
    assert not Path(order.index_path).exists()


ODD = [
    b"", b" ", b"{}", b"{}{}", b"{", b"}", b"{} {}", b'{"a":{}', b"[]", b"1", b"null", b'{"a":1,"a":2}', b'{"\\u003a":1}', b"\r",
    line("a"), line("b"), line("b"), line("c", body=body(stream=False)), line("d", body=body(stream=True)), line("e") + b"\r",
    line("f", body=body(model="parrot")), line("g", body=body(model="org/other")), line("h", body=body(nope=1)), b" " + line("i"),
    line("j") + b" ", line("k", body=[]), line(None), line("l" * 600), line("m", drop="url"), line("n", body=body(model=[])),
    line("o", body=body(messages=[])), line("p", body=body(messages="x")), line("q") + b"\r\r", line("r").replace(b":", b"\\u003a"),
    b'{"a":"' + b"x" * 2_000 + b'"}', b"\xef\xbb\xbf" + line("s"), b"\xff", b'{"a":1e400}', b"{\r}",
    line("t").replace(b"{", b"{\n", 1),
]  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.sampled_from(ODD), min_size=1, max_size=12),
    copies=st.integers(0, 3),
    end=st.sampled_from([b"\n", b"\r\n"]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_quick_or_slow_the_verdict_is_the_same(
    run: Run, order: Order, lines: list[bytes], copies: int, end: bytes, flags: tuple[bool, bool, bool]
) -> None:
    """Whatever stands beside what, taking many lines by one call finds what taking them one by one finds."""
    final, reject, mixed = flags
    data = end.join([line(f"first{n}") for n in range(copies)] + lines) + (end if final else b"")
    terms = {"reject": reject, "mixed_models": mixed, "max_line_bytes": 1_500, "rejects_path": f"{order.index_path}-bad"}
    outcomes = []
    for quickly in (module._Pass._quickly, lambda *_: False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module._Pass, "_quickly", quickly)
            verdict = run(data, **terms)
            files = [Path(path) for path in (order.index_path, terms["rejects_path"])]
            outcomes.append((verdict, [path.read_bytes() if path.exists() else None for path in files]))
    assert outcomes[0] == outcomes[1]

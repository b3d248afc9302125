"""Validation of whole files: how they are cut into lines, what is counted, and where the index points."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from batches_input import Run, body, line, only, order, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.batches.record import Shard
from services.batches.validate import INDEX_ENTRY, Order

__all__ = ["order", "run"]


def entries(order: Order) -> list[tuple[int, int, int]]:
    """Read the index."""
    return list(INDEX_ENTRY.iter_unpack(Path(order.index_path).read_bytes()))


GOOD: list[tuple[str, bytes]] = [
    ("plain", line()),
    ("no final line end", line("a") + b"\n" + line("b")),
    ("byte order mark", b"\xef\xbb\xbf" + line()),
    ("CR LF", line("a") + b"\r\n" + line("b") + b"\r\n"),
    ("white-space lines", b"\n\r\n \t\n" + line() + b"\n\n  "),
    ("a line separator in a string", line("a\u2028b\u2029c\u0085d")),
    ("emoji ids", line("😀") + b"\n" + line("😁")),
    ("ids that differ in normal form", line("\u00e9") + b"\n" + line("e\u0301")),
    ("ids that differ in case", line("a") + b"\n" + line("A")),
    ("an escaped pair", line("X").replace(b"X", b"\\ud83d\\ude00")),
    ("512 characters", line("é" * 512)),
    ("a big integer", line(body=body(max_tokens=9_007_199_254_740_993))),
    ("messages of another schema", line(body=body(messages=[{"rolez": 1}]))),
    ("stream false", line(body=body(stream=False))),
    ("other members of the line", line(extra={"x": 1})),
    ("white space around", b"  " + line() + b"  "),
    ("an alias", line("a", body=body(model="parrot")) + b"\n" + line("b")),
    ("a model whose engines honour everything", line(body=body(model="org/other", anything=1))),
    ("colons and quotes in text", line('a":"b\\')),
]


@pytest.mark.parametrize("data", [data for _, data in GOOD], ids=[name for name, _ in GOOD])
def test_a_good_file(run: Run, order: Order, data: bytes) -> None:
    """It has a plan, and each index entry points at exactly its line."""
    verdict = run(data)
    assert verdict.faults == []
    rows = [(n, text) for n, text in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1) if text.strip()]
    assert verdict.plan is not None
    assert verdict.plan.row_count == len(rows)
    assert [(number, data[offset : offset + length]) for offset, length, number in entries(order)] == [
        (n, text.removesuffix(b"\r")) for n, text in rows
    ]


@pytest.mark.parametrize("data", [b"", b"\n\n", b" \r\n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf \n"])
def test_a_file_without_rows(run: Run, data: bytes) -> None:
    """Nothing but white space is an error of the whole file."""
    fault = only(run(data))
    assert (fault.code, fault.line) == ("empty_file", 0)


@pytest.mark.parametrize(
    "data", [gzip.compress(line(), mtime=0), line().decode().encode("utf-16"), b"\0" * 100, b"\xff\xd8\xff\xe0"]
)
def test_what_is_no_text(run: Run, data: bytes) -> None:
    """Compressed, UTF-16 and binary files have bad lines and break nothing."""
    verdict = run(data)
    assert verdict.plan is None
    assert {fault.code for fault in verdict.faults} == {"invalid_json_line"}


def test_a_repeated_id_names_the_first_line(run: Run) -> None:
    """Every repetition is a fault that names the line which had the id first, a bad one included."""
    bad = line("x", method="GET")
    verdict = run(b"\n".join([b"", line("a"), line("b"), line("a"), bad, line("a"), line("x"), line("b", drop="url")]))
    found = [(fault.line, fault.code) for fault in verdict.faults]
    assert found == [
        (4, "duplicate_custom_id"),
        (5, "invalid_method"),
        (6, "duplicate_custom_id"),
        (7, "duplicate_custom_id"),
        (8, "missing_required_parameter"),
    ]
    assert "line 2;" in verdict.faults[0].message
    assert "line 2;" in verdict.faults[2].message
    assert "line 5;" in verdict.faults[3].message


def test_an_equal_hash_is_no_duplicate(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids whose hashes collide are told apart by reading the line again."""
    monkeypatch.setattr("services.batches.seen.hash", len, raising=False)
    data = b"\n".join(line(f"{n:04}") for n in range(60))
    assert run(data).faults == []
    assert only(run(data + b"\n" + line("0034"))).message.count("line 35;") == 1


def test_a_line_of_the_limit_and_one_byte_more(run: Run, order: Order) -> None:
    """1 MiB passes, one byte more is too large with both numbers, whatever ends the line and whatever comes after."""
    limit = order.max_line_bytes
    fits = line("a") + b" " * (limit - len(line("a")))
    for end in (b"\n", b"\r\n", b""):
        assert run(fits + end).faults == []
    for end in (b"\n", b"\r\n", b""):
        fault = only(run(fits + b" " + end + (line("b") if end else b"")))
        assert (fault.code, fault.line, fault.param) == ("line_too_large", 1, "")
        assert str(limit) in fault.message
        assert str(limit + 1) in fault.message


@pytest.mark.parametrize("extra", [1, 2, 3, 65_533, 65_534, 65_535, 65_536, 200_000])
def test_the_length_of_a_long_line_is_exact(run: Run, extra: int) -> None:
    """The measured value is right wherever the reader's chunks cut, and the next line is found."""
    for end, content in ((b"\n", 0), (b"\r\n", 0), (b"\r\r\n", 1)):
        verdict = run(b"x" * (1_000 + extra) + end + b"nope\n", max_line_bytes=1_000)
        assert [(fault.code, fault.line) for fault in verdict.faults] == [("line_too_large", 1), ("invalid_json_line", 2)]
        assert f"has {1_000 + extra + content}." in verdict.faults[0].message


def test_too_many_lines(run: Run) -> None:
    """The last allowed line passes; one more fails the file with the limit and the measured value."""
    template = line("%d")
    data = b"\n".join(template % n for n in range(50_000))
    verdict = run(data + b"\n\n \n")
    assert verdict.plan is not None
    assert verdict.plan.row_count == 50_000
    fault = only(run(data + b"\n" + line("x") + b"\n\n" + b"bad\n \n"))
    assert (fault.code, fault.line) == ("too_many_tasks", 0)
    assert "50000" in fault.message
    assert "50002" in fault.message


def test_all_bad_lines_up_to_the_limit(run: Run) -> None:
    """They come in line order, and one closing entry says how many more."""
    verdict = run(b"bad\n" * 1_250 + line() + b"\n")
    assert [fault.line for fault in verdict.faults[:-1]] == list(range(1, 1_001))
    closing = verdict.faults[-1]
    assert (closing.code, closing.line) == ("too_many_errors", 0)
    assert "250 more" in closing.message
    assert len(run(b"bad\n" * 1_000).faults) == 1_000


def test_models_of_one_file(run: Run, order: Order) -> None:
    """Another model than the first line's is a fault that names both; with mixed models, shards are by model, rows in order."""
    lines = [line(str(n), body=body(model="org/other" if n % 3 == 1 else "echo")) for n in range(9)]
    verdict = run(b"\n".join(lines))
    assert [(fault.line, fault.code, fault.param) for fault in verdict.faults] == [
        (n, "mismatched_model", "body.model") for n in (2, 5, 8)
    ]
    assert "'echo'" in verdict.faults[0].message
    assert "'org/other'" in verdict.faults[0].message
    mixed = run(b"\n".join(lines), mixed_models=True, shard_rows=4)
    assert mixed.plan is not None
    assert mixed.plan.shards == [Shard("echo", 0, 4), Shard("echo", 4, 2), Shard("org/other", 6, 3)]
    assert [number for _, _, number in entries(order)] == [1, 3, 4, 6, 7, 9, 2, 5, 8]


def test_many_models_with_many_rows(run: Run, order: Order) -> None:
    """Indexes larger than a buffer are joined in the order of models."""
    names = ["b", "a", "c"]
    data = b"\n".join(line(str(n), body=body(model=names[n % 3])) for n in range(30_000))
    verdict = run(data, served=None, mixed_models=True)
    assert verdict.plan is not None
    assert {shard.model for shard in verdict.plan.shards} == {"a", "b", "c"}
    assert sum(shard.row_count for shard in verdict.plan.shards) == 30_000
    numbers = [number for _, _, number in entries(order)]
    assert numbers == [*range(2, 30_001, 3), *range(1, 30_001, 3), *range(3, 30_001, 3)]
    assert [path.name for path in Path(order.index_path).parent.iterdir() if path.name.startswith("index")] == ["index"]


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=8),
    ends=st.lists(st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n \t\n"]), min_size=8, max_size=8),
    bom=st.booleans(),
    final=st.booleans(),
)
def test_entries_point_at_exactly_the_lines(
    run: Run, order: Order, texts: list[str], ends: list[bytes], bom: bool, final: bool
) -> None:
    """Whatever is in the lines and between them, each entry's bytes are its line's, and its number is physical."""
    lines = [line(f"{n}{text}", body=body(messages=[{"role": "user", "content": text}])) for n, text in enumerate(texts)]
    data = b"".join(text + end for text, end in zip(lines, ends, strict=False))
    data = (b"\xef\xbb\xbf" if bom else b"") + (data if final else data.rstrip())
    assert run(data).faults == []
    found = entries(order)
    assert [data[offset : offset + length] for offset, length, _ in found] == lines
    assert [data.count(b"\n", 0, offset) + 1 for offset, _, _ in found] == [number for _, _, number in found]


def test_the_index_of_few_rows_is_in_the_plan(run: Run, order: Order) -> None:
    """It is the same as in a file, sorted by model, and no file is made; one row more, and there is the file alone."""
    data = b"\n".join((line("a"), line("b", body=body(model="org/other")), line("c")))
    inline = run(data, mixed_models=True, few_rows=3).plan
    assert inline is not None
    assert not Path(order.index_path).exists()
    written = run(data, mixed_models=True, few_rows=2).plan
    assert written is not None
    assert (inline.shards, written.index) == (written.shards, b"")
    assert inline.index == Path(order.index_path).read_bytes()

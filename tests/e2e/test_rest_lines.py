"""Inputs that are hard to read (REST contract §4), from upload to results, through the whole mesh."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conservation import content_lines
from mesh import Mesh, chat_row, jsonl, until

MIB = 1 << 20


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh as it comes."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo")


def line(custom_id: str, text: str = "hello", **body: Any) -> bytes:
    """Write a line with its characters as they are."""
    return json.dumps(chat_row(custom_id, text, **body), ensure_ascii=False).encode()


def run(mesh: Mesh, data: bytes, **fields: Any) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """Upload, run, and read: the batch, its output lines and its error lines."""
    answer = mesh.client.post("/v1/batches", json={"input_file_id": mesh.upload(data)["id"], **fields})
    batch = mesh.wait(answer.json()["id"])
    return batch, content_lines(mesh.client, batch["output_file_id"]), content_lines(mesh.client, batch["error_file_id"])


def faults(batch: dict[str, Any]) -> list[tuple[Any, ...]]:
    """List what a failed batch says of its lines."""
    assert batch["status"] == "failed"
    return [(error["line"], error["code"]) for error in batch["errors"]["data"]]


GOOD = [
    ("byte order mark", b"\xef\xbb\xbf" + line("a") + b"\n" + line("b") + b"\n"),
    ("CR LF", line("a") + b"\r\n" + line("b") + b"\r\n"),
    ("CR LF without the last", line("a") + b"\r\n" + line("b")),
    ("blank lines", b"\n \t\n" + line("a") + b"\n\n\r\n" + line("b") + b"\n\n \n"),
    ("no last line end", line("a") + b"\n" + line("b")),
    ("white space around", b"  " + line("a") + b"\t\n\t" + line("b") + b"  "),
]


@pytest.mark.parametrize("data", [data for _, data in GOOD], ids=[name for name, _ in GOOD])
def test_tolerated(mesh: Mesh, data: bytes) -> None:
    """Byte order mark, CR LF, white-space lines, white space, no last line end: both rows run, in order."""
    batch, output, failed = run(mesh, data)
    assert (batch["status"], [row["custom_id"] for row in output], failed) == ("completed", ["a", "b"], [])


def test_characters_of_every_kind(mesh: Mesh) -> None:
    """Line and paragraph separators, emoji, right-to-left, ids that differ in normal form only: all come back as they went in."""
    ids = [
        "a\u2028b\u2029c\u0085d",
        "😀👨‍👩‍👧",
        "שלום עולם",
        "مرحبا",
        "\u00e9",
        "e\u0301",
        "\u202e",
        "a\tb",
        '"\\',
        "字" * 512,
        "\x7f",
    ]
    rows = [line(custom_id, f"say {custom_id}") for custom_id in ids]
    batch, output, failed = run(mesh, b"\n".join(rows))
    assert batch["status"] == "completed", batch
    assert [row["custom_id"] for row in output] == ids
    assert not failed
    answer = output[0]["response"]["body"]["choices"][0]["message"]["content"]
    assert "\u2028" in answer


def test_numbers_keep_their_digits(mesh: Mesh) -> None:
    """A seed beyond 2^53 reaches the engine as it is."""
    _, output, _ = run(mesh, line("a", seed=9_007_199_254_740_993))
    assert output[0]["response"]["x_provenance"]["seed"] == 9_007_199_254_740_993


NOT_JSON = [
    ("NaN", b'{"custom_id": "x", "method": "POST", "url": "/v1/chat/completions", "body": {"temperature": NaN}}'),
    ("Infinity", b'{"custom_id": "x", "body": {"temperature": -Infinity}}'),
    ("1e400", b'{"custom_id": "x", "body": {"temperature": 1e400}}'),
    ("a lone surrogate", b'{"custom_id": "\\ud800"}'),
    ("duplicate keys", b'{"custom_id": "x", "custom_id": "y"}'),
    ("duplicate keys, one escaped", b'{"custom_id": "x", "custom\\u005fid": "y"}'),
    ("invalid UTF-8", b'{"custom_id": "\xff"}'),
    ("a surrogate in UTF-8", b'{"custom_id": "\xed\xa0\x80"}'),
    ("NUL bytes", b"\0" * 40),
    ("a NUL in a string", b'{"custom_id": "\0"}'),
    ("gzip", gzip.compress(line("x"), mtime=0).replace(b"\n", b"")),
    ("UTF-16", line("x").decode().encode("utf-16-le").replace(b"\n", b"")),
    ("an array", b"[]"),
    ("a number", b"1"),
    ("null", b"null"),
    ("two objects", line("x") + line("y")),
    ("half an object", line("x")[:-1]),
    ("the other half", b"}"),
    ("1,000 deep", b'{"custom_id":' + b"[" * 1_000 + b"]" * 1_000 + b"}"),
    ("100,000 deep", b'{"custom_id":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ("single quotes", b"{'custom_id': 'x'}"),
    ("a comment", b'{"custom_id": "x"} // no'),
]


def test_what_is_not_json(mesh: Mesh) -> None:
    """Every such line is found at its place, whatever stands before and behind it."""
    rows = [line("first"), *(data for _, data in NOT_JSON), line("last")]
    batch, _, _ = run(mesh, b"\n".join(rows))
    assert faults(batch) == [(number, "invalid_json_line") for number in range(2, len(NOT_JSON) + 2)]
    batch, output, failed = run(mesh, b"\r\n".join(rows), invalid_rows="reject")
    assert batch["request_counts"] == {"total": len(rows), "completed": 2, "failed": len(NOT_JSON)}
    assert [row["custom_id"] for row in output] == ["first", "last"]
    assert [(row["error"]["line"], row["error"]["code"], row["custom_id"]) for row in failed] == [
        (number, "invalid_json_line", None) for number in range(2, len(NOT_JSON) + 2)
    ]


@pytest.mark.parametrize("data", [data for _, data in NOT_JSON], ids=[name for name, _ in NOT_JSON])
def test_files_that_begin_so_are_refused(mesh: Mesh, data: bytes) -> None:
    """An upload whose first line is no JSON object stores nothing."""
    answer = mesh.client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", data + b"\n" + line("b"))})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("Invalid file format for Batch API. Must be .jsonl")


@pytest.mark.parametrize("data", [b"", b" \n\t\r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_nothing_in_it(mesh: Mesh, data: bytes) -> None:
    """A file without rows is refused."""
    answer = mesh.client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", data)})
    assert (answer.status_code, "empty" in answer.json()["error"]["message"]) == (400, True)


def test_rejected_rows_between_those_that_ran(mesh: Mesh) -> None:
    """Good and bad, and rows that fail as rows, are in output and error file in input order; the law of conservation holds."""
    rows: list[bytes] = []
    kinds: list[str] = []
    for number in range(400):
        kind = ("good", "good", "url", "model", "deep", "good", "twice", "json", "role")[number % 9]
        kinds.append(kind)
        row = line(f"c{number}", f"text {number}")
        if kind == "url":
            row = row.replace(b"/v1/chat/completions", b"/v1/embeddings")
        elif kind == "model":
            row = line(f"c{number}", model="nobody")
        elif kind == "deep":
            row = line(f"c{number}", messages=[{"role": "user", "content": json.loads("[" * 300 + "]" * 300)}])
        elif kind == "twice":
            row = line(f"c{number - 1}")
        elif kind == "json":
            row = row[:-1]
        elif kind == "role":
            row = json.dumps(chat_row(f"c{number}") | {"body": {"model": "echo", "messages": [{"rolez": "user"}]}}).encode()
        rows.append(row)
    batch, output, failed = run(mesh, b"\n".join(rows), invalid_rows="reject")
    counts = batch["request_counts"]
    assert batch["status"] == "completed", batch
    assert (counts["total"], counts["completed"], counts["failed"]) == (400, len(output), len(failed))
    assert counts["completed"] + counts["failed"] == 400
    numbers = [row["error"]["line"] for row in failed]
    assert numbers == sorted(set(numbers))
    codes = {"url": "invalid_url", "model": "model_not_found", "twice": "duplicate_custom_id", "json": "invalid_json_line"}
    for row in failed:
        kind = kinds[row["error"]["line"] - 1]
        assert kind != "good"
        assert row["error"]["code"] == codes.get(kind, row["error"]["code"])
        assert (row["response"] is None) == (kind in codes)
    assert [int(row["custom_id"][1:]) for row in output] == sorted(int(row["custom_id"][1:]) for row in output)
    assert {kinds.index(kind) for kind in ("good",)} <= {int(row["custom_id"][1:]) for row in output}
    assert len({row["id"] for row in (*output, *failed)}) == 400


def test_the_longest_line(mesh: Mesh) -> None:
    """A line of 1 MiB runs, one byte more is too large with both numbers."""
    fits = line("a", "x" * (MIB - len(line("a", ""))))
    assert len(fits) == MIB
    _, output, _ = run(mesh, fits + b"\n" + line("b"))
    assert [row["custom_id"] for row in output] == ["a", "b"]
    batch, _, _ = run(mesh, line("b") + b"\n" + fits + b" \n")
    assert faults(batch) == [(2, "line_too_large")]
    assert f"at most {MIB} bytes, but it has {MIB + 1}" in batch["errors"]["data"][0]["message"]


def test_the_most_lines(mesh: Mesh) -> None:
    """50,000 lines run; with one more, the file is refused with the limit and the measured value."""
    rows = jsonl(chat_row(f"c{number}", "x", max_tokens=1) for number in range(50_000))
    batch, output, failed = run(mesh, rows)
    assert batch["request_counts"] == {"total": 50_000, "completed": 50_000, "failed": 0}
    assert (len(output), failed, output[-1]["custom_id"]) == (50_000, [], "c49999")
    batch, _, _ = run(mesh, rows + line("more"))
    assert faults(batch) == [(None, "too_many_tasks")]
    assert "at most 50000 requests, but it has 50001" in batch["errors"]["data"][0]["message"]


def test_ten_thousand_bad_lines(mesh: Mesh) -> None:
    """The first 1,000 are listed in order, then how many more; rejected, all 10,000 are in the error file."""
    rows = b"\n".join([line("good"), *([b"{}"] * 10_000)])
    batch, _, _ = run(mesh, rows)
    listed = faults(batch)
    assert listed[:-1] == [(number, "missing_required_parameter") for number in range(2, 1_002)]
    assert "9000 more" in batch["errors"]["data"][-1]["message"]
    batch, output, failed = run(mesh, rows, invalid_rows="reject")
    assert (batch["request_counts"]["failed"], len(output)) == (10_000, 1)
    assert [row["error"]["line"] for row in failed] == list(range(2, 10_002))


def test_inline_records_run(mesh: Mesh) -> None:
    """Records of the creation itself run like those of a file, and those rejected are counted with them."""
    body = {"requests": [chat_row("a"), 5, chat_row("b")], "invalid_rows": "reject", "model": "echo"}
    created = mesh.client.post("/v1/batches", json=body).json()
    assert created["rejected_count"] == 1
    batch = mesh.wait(created["id"])
    assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert [row["error"]["line"] for row in content_lines(mesh.client, batch["error_file_id"])] == [2]
    rejections = content_lines(mesh.client, created["rejected_records_file_id"])
    assert rejections == content_lines(mesh.client, batch["error_file_id"])
    until("it is there", lambda: mesh.client.get(f"/v1/files/{created['input_file_id']}/content").content.count(b"\n") == 3)

"""Ranges and names of downloads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.download import disposition, headers, is_known, wanted
from gateway.envelope import PreconditionFailed, RangeNotSatisfiable
from haywain.files.v1 import files_pb2


def file(size: int, name: str = "a.jsonl") -> files_pb2.File:
    """Make a record."""
    return files_pb2.File(file_id="file-a", filename=name, size_bytes=size, sha256="ab")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("bytes=0-0", range(1)),
        ("bytes=2-4", range(2, 5)),
        ("bytes=7-", range(7, 10)),
        ("bytes=-3", range(7, 10)),
        ("bytes=-30", range(10)),
        ("bytes=5-99", range(5, 10)),
        ("", None),
        ("bytes=", None),
        ("bytes=-", None),
        ("bytes=4-2", None),
        ("bytes=0-1,3-4", None),
        ("bytes=a-b", None),
        ("bytes=٣-", None),
        ("items=0-1", None),
        ("bytes=" + "9" * 30 + "-", None),
    ],
)
def test_ranges(text: str, part: range | None) -> None:
    """One range of bytes is honoured, anything else means the whole file."""
    assert wanted(text, "", file(10)) == part


@pytest.mark.parametrize("text", ["bytes=10-", "bytes=11-12", "bytes=-0"])
def test_ranges_outside(text: str) -> None:
    """A range behind the end is refused with the size."""
    with pytest.raises(RangeNotSatisfiable) as refused:
        wanted(text, "", file(10))
    assert refused.value.size == 10


def test_range_of_another_version() -> None:
    """If-Range with another tag means the whole file, with the right one the range."""
    assert wanted("bytes=0-1", '"other"', file(10)) is None
    assert wanted("bytes=0-1", '"ab"', file(10)) == range(2)


@pytest.mark.parametrize(
    ("if_none_match", "known"),
    [
        ("", False), ('"ab"', True), ('W/"ab"', True), ('"x", "ab"', True), ('"x","ab","y"', True), ("*", True), (" * ", True),
        ('"x"', False), ("ab", False), ('"x, ab"', False), ('"x,"ab""', False), ('"', False), ('W/"x"', False),
    ],
)  # fmt: skip
def test_bytes_that_are_known(if_none_match: str, known: bool) -> None:
    """If-None-Match compares weakly, and reads its tags as tags, commas in them included."""
    assert is_known("", if_none_match, file(10)) is known
    assert is_known('"ab"', if_none_match, file(10)) is known


@pytest.mark.parametrize(("if_match", "fits"), [("*", True), ('"ab"', True), ('"x", "ab"', True), ('W/"ab"', False), ("x", False)])
def test_bytes_that_must_be_these(if_match: str, fits: bool) -> None:
    """If-Match compares strongly; where nothing fits the request is refused with both tags, whatever If-None-Match says."""
    if fits:
        assert not is_known(if_match, "", file(10))
        return
    with pytest.raises(PreconditionFailed, match='"ab"'):
        is_known(if_match, "*", file(10))


def test_headers() -> None:
    """A part tells its place and its length, the whole its length only."""
    assert dict(headers(file(10), None))["x-content-length"] == "10"
    part = dict(headers(file(10), range(2, 5)))
    assert (part["x-http-status"], part["content-range"], part["x-content-length"]) == ("206", "bytes 2-4/10", "3")


@given(st.text(max_size=40))
def test_disposition_is_one_safe_header(name: str) -> None:
    """Whatever the name, the header is printable ASCII and its quoted part closes where it should."""
    header = disposition(name)
    assert header.isascii()
    assert header.isprintable()
    assert header.split(";")[0] == "attachment"
    assert header.count('"') == 2

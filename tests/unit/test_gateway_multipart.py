"""Forms as they stream in: however the bytes are cut, the same form comes out, and nothing but a whole form ends well."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.multipart import MAX_FIELD_BYTES, MAX_NAME_BYTES, Form, plain_name
from haywain import errors

TYPE = "multipart/form-data; boundary=b"


def part(name: str, data: bytes, filename: str | None = None) -> bytes:
    """Write one part of a form."""
    extra = f'; filename="{filename}"' if filename is not None else ""
    return f'--b\r\ncontent-disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode() + data + b"\r\n"


async def read(body: bytes, cuts: list[int] | None = None, content_type: str = TYPE) -> tuple[Form, bytes]:
    """Read a body that arrives in pieces."""

    async def messages() -> AsyncIterator[tuple[str, bytes]]:
        edges = sorted({0, len(body), *(min(cut, len(body)) for cut in cuts or [])})
        for number, (start, end) in enumerate(itertools.pairwise(edges)):
            yield content_type if not number else "", body[start:end]

    form = Form(frozenset({"purpose", "note"}))
    return form, b"".join([chunk async for chunk in form.read(messages())])


@given(
    data=st.one_of(st.binary(max_size=300), st.lists(st.sampled_from([b"\r\n--", b"b", b"\r", b"\n", b"--b", b"x"])).map(b"".join)),
    cuts=st.lists(st.integers(0, 700), max_size=20),
    file_first=st.booleans(),
)
async def test_any_cut_gives_the_same(data: bytes, cuts: list[int], file_first: bool) -> None:
    """The file's bytes and the fields are the same wherever the network cuts the body, the worst boundaries included."""
    if b"\r\n--b" in b"\r\n" + data + b"\r\n":
        return  # the boundary itself: no client chooses one that is in its data
    parts = [part("purpose", b"batch"), part("file", data, "a.jsonl"), part("note", "ü".encode())]
    if file_first:
        parts = [parts[1], parts[0], parts[2]]
    form, found = await read(b"".join(parts) + b"--b--\r\n", cuts)
    assert found == data
    assert form.fields == {"purpose": "batch", "note": "ü"}
    assert form.filename == "a.jsonl"


@given(st.integers(0, 200))
async def test_any_early_end_is_refused(length: int) -> None:
    """A body that stops before its closing boundary is never a form, wherever it stops."""
    body = part("purpose", b"batch") + part("file", b"x" * 50, "a.jsonl") + b"--b--\r\n"
    if length < len(body) - 2:
        with pytest.raises(errors.InvalidRequest):
            await read(body[:length])


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (part("purpose", b"batch"), "missing_required_parameter", "file"),
        (part("file", b"x"), "invalid_type", "file"),
        (part("file", b"x", ""), "invalid_value", "file"),
        (part("colour", b"red") + part("file", b"x", "a"), "unknown_parameter", "colour"),
        (part("note", b"a") + part("note", b"b") + part("file", b"x", "a"), "invalid_value", "note"),
        (part("note", b"\xff") + part("file", b"x", "a"), "invalid_value", "note"),
        (part("note", b"x" * (MAX_FIELD_BYTES + 1)) + part("file", b"x", "a"), "string_above_max_length", "note"),
        (part("file", b"x", "a" * (MAX_NAME_BYTES + 1)), "string_above_max_length", "file"),
    ],
)
async def test_odd_forms_are_refused_by_name(body: bytes, code: str, param: str) -> None:
    """A form with something missing, unknown, twice, too long or of the wrong kind is refused, and the field named."""
    with pytest.raises(errors.InvalidRequest) as refused:
        await read(body + b"--b--\r\n")
    assert (refused.value.code, refused.value.param) == (code, param)


@pytest.mark.parametrize("content_type", ["", "application/json", "multipart/form-data", "multipart/form-data; boundary="])
async def test_no_form_is_no_form(content_type: str) -> None:
    """A body of another type, or without a boundary, is refused for its type."""
    with pytest.raises(errors.InvalidRequest) as refused:
        await read(b"x", content_type=content_type)
    assert refused.value.code == "invalid_content_type"


@pytest.mark.parametrize(
    ("given_name", "kept"),
    [
        ("a.jsonl", "a.jsonl"),
        ("/data/a.jsonl", "a.jsonl"),
        ("..\\..\\a.jsonl", "a.jsonl"),
        ("a\x00b\nc.jsonl", "abc.jsonl"),
        (" ü 📚.jsonl ", "ü 📚.jsonl"),
    ],
)
def test_names_lose_folders_and_controls(given_name: str, kept: str) -> None:
    """A file name is its last component, without control characters."""
    assert plain_name(given_name) == kept


async def test_a_name_that_is_no_utf8() -> None:
    """A file name in another encoding is refused in words, not with an exception's innards."""
    body = part("file", b"x", "N").replace(b"N", "ü.jsonl".encode("latin-1"))
    with pytest.raises(errors.InvalidRequest, match=r"^The body is not valid multipart/form-data: [a-zA-Z ]+\.$"):
        await read(body + b"--b--\r\n")

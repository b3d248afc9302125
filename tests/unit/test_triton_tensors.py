"""Tensors on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.triton.tensors import decode, encode, largest


@given(st.lists(st.text()))
def test_strings_come_back(texts: list[str]) -> None:
    """Any strings, empty ones too, are read as they were written; what isn't Unicode becomes a question mark."""
    expected = [text.encode("utf-8", "replace") for text in texts]
    assert decode("BYTES", encode("BYTES", texts)) == expected


@pytest.mark.parametrize(
    ("datatype", "values", "data"),
    [
        ("BOOL", [True, "false"], b"\x01\x00"),
        ("INT32", [-2, "7"], b"\xfe\xff\xff\xff\x07\x00\x00\x00"),
        ("UINT64", [2**64 - 1], b"\xff" * 8),
        ("FP32", [0.5], b"\x00\x00\x00\x3f"),
        ("FP16", [1], b"\x00\x3c"),
        ("BYTES", ["é"], b"\x02\x00\x00\x00\xc3\xa9"),
    ],
)
def test_each_type(datatype: str, values: list[object], data: bytes) -> None:
    """Little-endian, as Triton's protocol has them."""
    assert encode(datatype, values) == data


@pytest.mark.parametrize(
    ("datatype", "value"),
    [("UINT8", 256), ("UINT32", -1), ("INT8", "x"), ("BOOL", "maybe"), ("FP32", "warm"), ("FP16", 1e6), ("BF16", 1.0)],
)
def test_what_does_not_fit_is_told(datatype: str, value: object) -> None:
    """A number that the type can't hold is an error, never a wrong number."""
    with pytest.raises(ValueError, match=r"no number|doesn't fit|neither true|can't be made"):
        encode(datatype, [value])


@pytest.mark.parametrize(
    ("datatype", "data"), [("BYTES", b"\x05\x00\x00\x00ab"), ("BYTES", b"\x05"), ("INT32", b"abc"), ("WAT", b"")]
)
def test_data_that_is_no_tensor_is_told(datatype: str, data: bytes) -> None:
    """Cut-off strings, odd lengths and unknown types are errors."""
    with pytest.raises(ValueError, match=r"cut off|no tensor"):
        decode(datatype, data)


def test_the_largest_number_of_each_integer() -> None:
    """What a seed is folded into."""
    assert [largest(datatype) for datatype in ("INT32", "UINT64", "FP32")] == [2**31 - 1, 2**64 - 1, 0]

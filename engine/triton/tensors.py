"""Tensors as Triton puts them on the wire: little-endian, strings with their length before them. No numpy."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["DATATYPES", "decode", "encode", "largest"]

_FORMATS: Final = {
    "BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
_INTEGERS: Final = {"INT8": 7, "INT16": 15, "INT32": 31, "INT64": 63, "UINT8": 8, "UINT16": 16, "UINT32": 32, "UINT64": 64}
DATATYPES: Final = frozenset({*_FORMATS, "BYTES"})
"""what can be encoded and decoded"""
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}


def largest(datatype: str) -> int:
    """Tell the largest number of an integer type; 0 for any other type."""
    return int(2 ** _INTEGERS[datatype] - 1) if datatype in _INTEGERS else 0


def encode(datatype: str, values: Sequence[Any]) -> bytes:
    """Encode; texts are taken for numbers and truths, too ("0.5", "true"). Raises ValueError when a value can't be of the type."""
    if datatype == "BYTES":
        texts = [value if isinstance(value, str) else str(value) for value in values]
        return b"".join(struct.pack("<I", len(data)) + data for data in (text.encode("utf-8", "replace") for text in texts))
    form = _FORMATS.get(datatype)
    if form is None:
        raise ValueError(f"tensors of type {datatype} can't be made")
    try:
        return struct.pack(f"<{len(values)}{form}", *(_number(datatype, value) for value in values))
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{str(list(values))[:60]} doesn't fit a tensor of type {datatype}: {error}") from None


def _number(datatype: str, value: Any) -> Any:
    if datatype == "BOOL":
        if isinstance(value, str) and value.lower() in _TRUTHS:
            return _TRUTHS[value.lower()]
        if not isinstance(value, bool | int):
            raise ValueError(f"{value!r} is neither true nor false")
        return bool(value)
    try:
        return int(value) if datatype in _INTEGERS else float(value)
    except ValueError:
        raise ValueError(f"{value!r} is no number for a tensor of type {datatype}") from None


def decode(datatype: str, data: bytes) -> list[Any]:
    """Decode; strings as bytes. Raises ValueError when the data can't be of the type."""
    try:
        if datatype != "BYTES":
            form = _FORMATS[datatype]
            return list(struct.unpack(f"<{len(data) // struct.calcsize(form)}{form}", data))
        strings = []
        start = 0
        while start < len(data):
            (size,) = struct.unpack_from("<I", data, start)
            start += 4 + size
            if start > len(data):
                raise ValueError(f"a string of {size} bytes is cut off")
            strings.append(data[start - size : start])
        return strings
    except (KeyError, struct.error) as error:
        raise ValueError(f"{len(data)} bytes are no tensor of type {datatype}: {error}") from None

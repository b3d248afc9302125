"""JSON as the contract means it: UTF-8, no NaN, no lone surrogates, no duplicate keys, nothing nested past the stack.

msgspec is strict about all of it but duplicate keys, where the last one wins. They are found without looking at each key: what
was decoded is encoded again, and a member that was lost took at least the colon behind its key with it. The number of colons is
otherwise the same, because a colon inside a string can only be written as itself or as `\\u003a`; text with the latter, and text
whose colons don't match, is looked at key by key.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

__all__ = ["NotJSON", "decode", "keys_differ"]

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class NotJSON(ValueError):
    """The bytes are not JSON; the message says why, for people."""


def decode(data: bytes) -> Any:
    """Decode strictly; integers keep all their digits. Raises NotJSON."""
    try:
        value = _decode(data)
        if not keys_differ(data, value):
            _look_at_keys(data)
    except RecursionError:
        raise NotJSON("nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise NotJSON(_why(data, str(error))) from None
    return value


def keys_differ(data: bytes, value: Any) -> bool:
    """Tell whether no key is lost in what `data`, one JSON value or several, was decoded to; False when that isn't sure."""
    return _encode(value).count(b":") == data.count(b":") and (data.find(b"\\") < 0 or not _escapes_colon(data))


def _escapes_colon(data: bytes) -> bool:
    return data.find(b"\\u003a") >= 0 or data.find(b"\\u003A") >= 0


def _look_at_keys(data: bytes) -> None:
    json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"duplicate key {key[:64]!r}")
        seen.add(key)


def _why(data: bytes, told: str) -> str:
    """Find better words than the decoder's where it only says "truncated" or nothing of the place."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"invalid UTF-8 at byte {error.start}"
    if not text.strip():
        return "nothing there"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return told.removeprefix("JSON is malformed: ")
    # Python's own decoder is laxer: what it takes and msgspec doesn't has one of these.
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return "a lone surrogate in a string"
    return told.removeprefix("JSON is malformed: ")

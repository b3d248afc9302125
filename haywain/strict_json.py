"""JSON as the contract means it: UTF-8, no NaN, no lone surrogates, no duplicate keys, nothing nested past the stack."""

from __future__ import annotations

import json
from typing import Any

import msgspec

__all__ = ["NotJSON", "decode"]


class NotJSON(ValueError):
    """The bytes are not JSON; the message says why, for people."""


def decode(data: bytes) -> Any:
    """Decode strictly; integers keep all their digits. Raises NotJSON."""
    try:
        text = data.decode("utf-8")
        value = msgspec.json.decode(data)
        json.loads(text, object_pairs_hook=_no_duplicates)
    except UnicodeDecodeError as error:
        raise NotJSON(f"invalid UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise NotJSON("nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise NotJSON(str(error)) from None
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"duplicate key {key!r}")
        seen.add(key)

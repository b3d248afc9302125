"""What comes from an upstream, read up to a size: a whole answer, or a stream's events one by one."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import httpx

__all__ = ["DONE", "TooLargeError", "beginning", "events", "whole"]

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""a CR at the end may be half of one"""
_BOM: Final = b"\xef\xbb\xbf"
DONE: Final = b"[DONE]"


class TooLargeError(Exception):
    """It is larger than allowed."""


async def whole(response: httpx.Response, most: int) -> bytes:
    """Read a body. Raises TooLargeError as soon as it is known to have more than `most` bytes."""
    told = response.headers.get("content-length", "")
    if told.isdecimal() and int(told) > most:
        raise TooLargeError
    parts, size = [], 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > most:
            raise TooLargeError
        parts.append(part)
    return b"".join(parts)


async def beginning(response: httpx.Response, most: int) -> bytes:
    """Read a body's first bytes, about `most` of them."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part[: most - size])
        size += len(part)
        if size >= most:
            break
    return b"".join(parts)


async def events(response: httpx.Response, most: int) -> AsyncGenerator[bytes, None]:
    """Give the data of each event, as it comes. Raises ValueError for what is no stream, TooLargeError for a large event."""
    kind = response.headers.get("content-type", "no content type")
    if not kind.lower().startswith("text/event-stream"):
        raise ValueError(f"its content type is {kind}")
    data: list[bytes] = []
    size, first = 0, True
    async for line in _lines(response, most):
        name, _, value = (line.removeprefix(_BOM) if first else line).partition(b":")
        first = False
        if name == b"data":
            data.append(value.removeprefix(b" "))
            size += len(line)
            if size > most:
                raise TooLargeError
        elif not line:
            if data:
                yield b"\n".join(data)
            data, size = [], 0
    if data == [DONE]:  # without the empty line that ends an event
        yield DONE


async def _lines(response: httpx.Response, most: int) -> AsyncIterator[bytes]:
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if b"\n" in part or b"\r" in part:
            *lines, rest = _LINE_END.split(b"".join(parts))
            for line in lines:
                yield line
            parts, size = [rest], len(rest)
        if size > most:
            raise TooLargeError
    if last := b"".join(parts).removesuffix(b"\r"):
        yield last

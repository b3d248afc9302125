"""multipart/form-data as it streams in: form fields are collected, the file's bytes are handed on chunk by chunk.

The file may stand anywhere among the fields, so whoever reads the bytes can't count on the fields being known. A body that stops
before its closing boundary (a client that hung up looks like that) raises instead of ending.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterable

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from haywain import errors

__all__ = ["Form", "plain_name"]

MAX_FIELD_BYTES = 1_024
MAX_NAME_BYTES = 1_200
"""300 characters of the longest kind"""
MAX_PARTS = 16
_UNNAMEABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})


class Form:
    """A form that is being read."""

    def __init__(self, known: frozenset[str], content: str = "file", *, named: bool = True) -> None:
        """`known` names the text fields that may occur beside `content`, the one with the bytes.

        `named`: that one must have a file name.
        """
        self.fields: dict[str, str] = {}
        self.filename = ""
        """known once the first chunk of the file came, or the file was empty and ended"""
        self._known = known
        self._content = content
        self._named = named
        self._seen: set[str] = set()

    async def read(self, messages: AsyncIterable[tuple[str, bytes]]) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the file; fields fill meanwhile.

        `messages` are the content type (in the first one) and bytes. The first thing yielded is `b""`, when the file's part began.
        Raises InvalidRequest for what is not a whole form with exactly one `content`.
        """
        parser: PushMultipartParser | None = None
        part: MultipartSegment | None = None
        text = bytearray()
        try:
            async for content_type, data in messages:
                parser = parser or _parser(content_type)
                for event in parser.parse(data) if data else ():
                    if isinstance(event, MultipartSegment):
                        part = event
                        self._begin(part)
                        if part.name == self._content:
                            yield b""
                    elif event is None:
                        self._end(part, text)
                        text.clear()
                    elif part is not None and part.name == self._content:
                        yield bytes(event)
                    else:
                        text += event
                        _check_field_size(part, text)
            await asyncio.sleep(0)  # a client that hung up ends the loop as well: the cancellation comes here
            for _ in (parser or _parser("")).parse(b""):
                pass  # end of input: raises unless the closing boundary was seen
        except MultipartError as error:
            raise errors.InvalidRequest(f"The body is not valid multipart/form-data: {error.args[0]}.") from None
        if self._content not in self._seen:
            message = f"Missing required parameter: '{self._content}'."
            raise errors.InvalidRequest(message, code="missing_required_parameter", param=self._content)

    def _begin(self, part: MultipartSegment) -> None:
        name = part.name or ""
        if name != self._content and name not in self._known:
            raise errors.InvalidRequest(f"Unknown parameter: '{name}'.", code="unknown_parameter", param=name)
        if name in self._seen:
            raise errors.InvalidRequest(f"Duplicate parameter: '{name}'.", param=name)
        self._seen.add(name)
        if name == self._content and self._named:
            if part.filename is None:
                raise errors.InvalidRequest(
                    f"Invalid type for '{name}': expected a file with a name, but got a text instead.",
                    code="invalid_type",
                    param=name,
                )
            self.filename = plain_name(part.filename, name)

    def _end(self, part: MultipartSegment | None, text: bytearray) -> None:
        if part is None or part.name is None or part.name == self._content:
            return
        try:
            self.fields[part.name] = text.decode("utf-8")
        except UnicodeDecodeError:
            raise errors.InvalidRequest(f"Invalid '{part.name}': it must be UTF-8.", param=part.name) from None


def plain_name(name: str, param: str = "file") -> str:
    """Reduce a client's file name to its last component, without control characters and line separators.

    Joiners stay: scripts and emoji need them. Raises InvalidRequest that names `param` when nothing or too much is left.
    """
    last = name.replace("\\", "/").rpartition("/")[2]
    plain = "".join(letter for letter in last if unicodedata.category(letter) not in _UNNAMEABLE).strip()
    size = len(plain.encode("utf-8", "surrogatepass"))
    if not plain:
        raise errors.InvalidRequest(f"Invalid '{param}': it needs a file name.", param=param)
    if size > MAX_NAME_BYTES:
        raise errors.InvalidRequest(
            f"Invalid '{param}': the file name has {size} bytes, the limit is {MAX_NAME_BYTES}.",
            code="string_above_max_length",
            param=param,
        )
    return plain


def _parser(content_type: str) -> PushMultipartParser:
    kind, options = parse_options_header(content_type)
    boundary = options.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        raise errors.InvalidRequest(
            f"Expected a body of type multipart/form-data with a boundary, but got '{content_type[:200]}'.",
            code="invalid_content_type",
        )
    return PushMultipartParser(boundary, max_segment_count=MAX_PARTS)


def _check_field_size(part: MultipartSegment | None, text: bytearray) -> None:
    if len(text) > MAX_FIELD_BYTES:
        name = (part.name if part else None) or ""
        raise errors.InvalidRequest(
            f"Invalid '{name}': string too long. Expected at most {MAX_FIELD_BYTES} bytes.",
            code="string_above_max_length",
            param=name,
        )

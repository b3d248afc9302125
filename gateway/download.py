"""Headers of a download: ranges, names and validators."""

from __future__ import annotations

import re
from urllib.parse import quote

from gateway.envelope import PreconditionFailed, RangeNotSatisfiable
from haywain import errors
from haywain.files.v1 import files_pb2

__all__ = ["CONTENT_TYPE", "check_alive", "disposition", "headers", "is_known", "unchanged", "wanted"]

CONTENT_TYPE = "application/octet-stream"
_TAG = re.compile(r'(?:W/)?"[^"]*"')
_RANGE = re.compile(r"bytes=\s*([0-9]{0,19})\s*-\s*([0-9]{0,19})\s*", re.ASCII)


def check_alive(file: files_pb2.File) -> None:
    """Raise FileGone for a deleted or expired file."""
    if file.status == files_pb2.File.STATUS_DELETED:
        raise errors.FileGone(f"The content of file '{file.file_id}' is gone: it was deleted.", code="file_deleted")
    if file.status == files_pb2.File.STATUS_EXPIRED:
        raise errors.FileGone(f"The content of file '{file.file_id}' is gone: it expired.", code="file_expired")


def is_known(if_match: str, if_none_match: str, file: files_pb2.File) -> bool:
    """Tell whether the caller has these bytes already; PreconditionFailed when it asks for others than these.

    As RFC 9110 asks, If-Match compares strongly, If-None-Match weakly, and `*` is any file that is there.
    """
    if if_match and if_match.strip() != "*" and _etag(file) not in _tags(if_match):
        raise PreconditionFailed(f"The content has the ETag {_etag(file)}, but If-Match is {if_match}.", param="if-match")
    known = {tag.removeprefix("W/") for tag in _tags(if_none_match)}
    return if_none_match.strip() == "*" or _etag(file) in known


def unchanged(file: files_pb2.File) -> tuple[tuple[str, str], ...]:
    """Make the initial metadata of a 304."""
    return (("x-http-status", "304"), ("etag", _etag(file)))


def wanted(text: str, if_range: str, file: files_pb2.File) -> range | None:
    """Read a Range header; None for the whole file.

    As RFC 9110 asks, what isn't one range of bytes is ignored, and so is a range of another version than `if_range` names.
    Raises RangeNotSatisfiable.
    """
    match = _RANGE.fullmatch(text)
    if match is None or not (match[1] or match[2]) or (if_range and if_range != _etag(file)):
        return None
    size = file.size_bytes
    if match[1]:
        first, last = int(match[1]), min(int(match[2]) if match[2] else size - 1, size - 1)
        if match[2] and int(match[2]) < first:
            return None
    else:
        first, last = max(size - int(match[2]), 0), size - 1
        if not int(match[2]):
            first = size
    if first >= size:
        raise RangeNotSatisfiable(f"The range '{text}' lies outside the file of {size} bytes.", size=size)
    return range(first, last + 1)


def headers(file: files_pb2.File, part: range | None) -> tuple[tuple[str, str], ...]:
    """Make the initial metadata that Envoy turns into response headers."""
    pairs = [
        ("content-disposition", disposition(file.filename)),
        ("accept-ranges", "bytes"),
        ("x-content-length", str(file.size_bytes if part is None else len(part))),
    ]
    if file.sha256:
        pairs.append(("etag", _etag(file)))
    if part is not None:
        pairs += [("x-http-status", "206"), ("content-range", f"bytes {part.start}-{part.stop - 1}/{file.size_bytes}")]
    return tuple(pairs)


def disposition(filename: str) -> str:
    """Make a Content-Disposition: an ASCII name for every client, and the true one as RFC 6266 spells it where they differ."""
    plain = "".join(letter if " " <= letter <= "~" and letter not in '"\\%' else "_" for letter in filename)
    extended = "" if plain == filename else f"; filename*=UTF-8''{quote(filename, safe='', errors='replace')}"
    return f'attachment; filename="{plain}"{extended}'


def _tags(text: str) -> list[str]:
    """List the tags of a header; a comma is a character like any inside one."""
    return _TAG.findall(text)


def _etag(file: files_pb2.File) -> str:
    return f'"{file.sha256}"'

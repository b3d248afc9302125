"""GET /: the web page. Its files lie in gateway/web/ and need nothing from elsewhere; browsers are told to allow nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from google.api import httpbody_pb2

from gateway.answer import Context, header
from gateway.query import parameters
from haywain import errors

__all__ = ["Page"]

WEB = Path(__file__).parent / "web"
INDEX = "index.html"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_SAFE = (
    ("cache-control", "no-cache"),  # kept, and asked for again each time: the ETag makes that cheap
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
)


class _File(msgspec.Struct, frozen=True):
    data: bytes
    content_type: str
    etag: str


class Page:
    """The page and what it is made of, in memory: a few kilobytes."""

    def __init__(self) -> None:
        """Read the files."""
        self._files = {path.name: _read(path) for path in WEB.iterdir() if path.suffix in _TYPES}

    async def file(self, name: str, context: Context) -> httpbody_pb2.HttpBody:
        """Give a file, the page itself when it has no name; 304 when the browser has it. Raises NotFound, InvalidRequest."""
        if name:  # the page itself takes any: what people share links with appends some
            parameters(context)
        found = self._files.get(name or INDEX)
        if found is None or name == INDEX:
            raise errors.NotFound(f"The web page has no file '{name[:200]}'.")
        headers = (("etag", found.etag), *_SAFE)
        if found.etag in header(context, "if-none-match"):
            await context.send_initial_metadata((*headers, ("x-http-status", "304")))
            return httpbody_pb2.HttpBody(content_type=found.content_type)
        await context.send_initial_metadata(headers)
        return httpbody_pb2.HttpBody(content_type=found.content_type, data=found.data)


def _read(path: Path) -> _File:
    data = path.read_bytes()
    return _File(data, _TYPES[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:32]}"')

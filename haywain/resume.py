"""Downloads: a lost connection is taken up where it broke off, and a file on disk is whole or not there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import httpx

from haywain.durable import sync_folder
from haywain.rest import ClientError, ConnectionLost, Rest, TryLater

__all__ = ["download", "replacing"]


def download(rest: Rest, path: str, into: BinaryIO) -> None:
    """Write what `path` answers to `into`, an empty file.

    After a lost connection only the rest is asked for, as long as it is the rest of the same version. Retries are counted from the
    last byte that came for the first time.
    """
    part = _Part(into)
    patience = rest.patience()
    while True:
        try:
            with rest.once("GET", path, headers=part.headers()) as response:
                part.begin(response)
                for chunk in response.iter_raw():
                    if part.add(chunk):
                        patience.renew()
                return part.end()
        except (ConnectionLost, TryLater) as error:
            patience.wait(error)


class _Part:
    """What came so far."""

    def __init__(self, into: BinaryIO) -> None:
        self._into = into
        self._have = self._most = 0
        self._size: int | None = None
        self._etag = ""

    def headers(self) -> dict[str, str]:
        """Ask for the rest, or for everything where nothing says that it would fit."""
        headers = {"accept-encoding": "identity"}
        if self._have and self._etag.startswith('"'):  # a weak one doesn't promise the same bytes
            headers |= {"range": f"bytes={self._have}-", "if-range": self._etag}
        return headers

    def begin(self, response: httpx.Response) -> None:
        """Take up where the answer starts."""
        if response.status_code == 206:
            span, _, size = response.headers.get("content-range", "").removeprefix("bytes ").partition("/")
            if span.partition("-")[0] != str(self._have) or size != str(self._size):
                self._etag = ""  # the next try starts over
                raise ConnectionLost(f"{response.url} answered another part than it was asked for")
            return
        self._into.seek(0)
        self._into.truncate()
        self._have = 0
        length = response.headers.get("content-length", "")
        self._size = int(length) if length.isdigit() else None
        self._etag = response.headers.get("etag", "")

    def add(self, chunk: bytes) -> bool:
        """Write the next bytes; True when no try came so far before."""
        self._into.write(chunk)
        self._have += len(chunk)
        before, self._most = self._most, max(self._most, self._have)
        return self._most > before

    def end(self) -> None:
        """Check that all of it is here."""
        if self._size is not None and self._have != self._size:
            raise ConnectionLost(f"{self._have} bytes of {self._size} came")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside `path` that takes its place, synced, when all went well, and is removed otherwise."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ClientError(f"{path} is not a regular file")
    beside = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.partial")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
        with suppress(OSError):  # it is there; a folder that can't be synced is no reason to say that it isn't
            sync_folder(target.parent)
    finally:
        beside.unlink(missing_ok=True)

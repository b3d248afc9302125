"""Blobs: immutable bytes under a key. A directory today; the protocol is what an object store can do as well.

A blob is written to a scratch file, synced, and renamed to its key: it is there whole or not at all. Keys are flat names made by
us (`input-…`, `index-…`, `output-…`), never a client's text. Foreign exceptions become `StorageFull`, `Unavailable` or
`SettingsError` here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, TypeVar

from haywain import durable, errors, ids
from haywain.gather import Gathered, gathered_on

__all__ = ["BlobStore", "BlobWriter", "DirectoryBlobStore", "mapped"]

CHUNK_BYTES = 512 * 1024
KEPT_BYTES = 8 * 1024 * 1024
"""What new work must leave of a disk."""
ROOM_SECONDS = 0.1
"""How long room is believed in, so that many creations don't all look."""
_THREADS = 4
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_T = TypeVar("_T")


class BlobWriter(Protocol):
    """A blob that is being written; gone unless committed."""

    async def write(self, data: bytes) -> None:
        """Append."""

    async def commit(self) -> None:
        """Sync and publish under the key, replacing what was there. Durable when this returns."""


class BlobStore(Protocol):
    """Where blobs are."""

    def writer(self, key: str) -> contextlib.AbstractAsyncContextManager[BlobWriter]:
        """Open a blob for writing; leaving the block without `commit` drops it."""

    def read(self, key: str, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        """Stream a range in chunks of at most 512 KiB. Raises FileGone when there is no such blob."""

    async def size(self, key: str) -> int | None:
        """Tell the size in bytes, None when there is no such blob."""

    async def delete(self, key: str) -> None:
        """Remove; no error when it is not there."""

    async def local(self, key: str) -> Path:
        """Give a path where the blob can be read by any process of this machine. Raises FileGone."""

    def scratch(self) -> Path:
        """Name a new file for another process to write, to be given to `publish`."""

    async def publish(self, path: Path, key: str) -> None:
        """Make a finished scratch file the blob `key`, replacing what was there. Durable when this returns."""

    async def stale(self, older_than: float) -> list[str]:
        """List keys last changed before a Unix time; for sweeps of blobs without a record."""

    async def clear_scratch(self, older_than: float) -> None:
        """Remove scratch files last changed before a Unix time: what dead writers left."""

    async def check_room(self) -> None:
        """Refuse new work when the storage is all but full, so that what runs has the rest. Raises StorageFull."""


@contextlib.contextmanager
def mapped(what: str) -> Iterator[None]:
    """Turn an OSError inside the block into ours; `what` is for the operator's log."""
    try:
        yield
    except FileNotFoundError as error:
        raise errors.FileGone() from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise errors.StorageFull(retry_after=10) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            raise errors.SettingsError(f"{what}: {error}") from error
        raise errors.Unavailable(f"{what}: storage error {errno.errorcode.get(error.errno or 0, '?')}", retry_after=1) from error


class DirectoryBlobStore:
    """Blobs as files: `{root}/{two hex digits}/{key}`; scratch files in `{root}/scratch`."""

    def __init__(self, root: Path) -> None:
        """Make the folders. Scratch files of a process that died are removed by `clear_scratch`."""
        self._root = root
        self._scratch = root / "scratch"
        self._lasting: set[Path] = set()
        """Folders that are known to be on disk themselves."""
        self._had_room_at = float("-inf")
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs")
        self._done = gathered_on(self._threads, at_once=_THREADS)
        self._published: Gathered[tuple[Path, Path], None] = Gathered(self._publish_all, most=32, at_once=_THREADS)
        with mapped(str(root)):
            durable.make_folder(root)
            durable.make_folder(self._scratch)

    def path(self, key: str) -> Path:
        """Tell where a key's bytes are or would be."""
        if not _KEY.fullmatch(key):
            raise ValueError(f"not a blob key: {key!r}")
        return Path(f"{self._root}/{hashlib.sha256(key.encode()).hexdigest()[:2]}/{key}")

    @contextlib.asynccontextmanager
    async def writer(self, key: str) -> AsyncIterator[BlobWriter]:
        """Open a blob for writing."""
        path = self.scratch()
        handle = _Handle(path, "xb")
        try:
            await self._off_loop(handle.open, key)
            yield _FileWriter(self, handle, path, key)
        finally:
            # Shielded: a caller that is cancelled just now must not take the close out of the queue.
            await asyncio.shield(self._off_loop(partial(handle.close, remove=True), key))

    async def read(self, key: str, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        """Stream a range."""
        handle = _Handle(self.path(key), "rb")
        try:
            await self._off_loop(handle.open, key)
            await self._off_loop(partial(handle.seek, offset), key)
            left = length if length is not None else 1 << 62
            while left > 0 and (data := await self._off_loop(partial(handle.read, min(left, CHUNK_BYTES)), key)):
                left -= len(data)
                yield data
        finally:
            await asyncio.shield(self._off_loop(handle.close, key))

    async def size(self, key: str) -> int | None:
        """Tell the size."""
        try:
            return (await self._off_loop(lambda: self.path(key).stat(), key)).st_size
        except errors.FileGone:
            return None

    async def delete(self, key: str) -> None:
        """Remove."""
        await self._off_loop(lambda: self.path(key).unlink(missing_ok=True), key)

    async def local(self, key: str) -> Path:
        """Give the path itself."""
        await self._off_loop(lambda: self.path(key).stat(), key)
        return self.path(key)

    def scratch(self) -> Path:
        """Name a file in the scratch folder; the name begins with the pid of the asker."""
        return self._scratch / f"{os.getpid()}-{ids.new('')}"

    async def publish(self, path: Path, key: str) -> None:
        """Sync, rename, and sync the folder: once for all that go there together."""
        with mapped(f"blob {key}"):
            await self._published((path, self.path(key)))

    async def _publish_all(self, blobs: list[tuple[Path, Path]]) -> list[BaseException | None]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._rename_all, blobs)

    def _rename_all(self, blobs: list[tuple[Path, Path]]) -> list[BaseException | None]:
        outcomes: list[OSError | None] = []
        folders: dict[Path, OSError | None] = {}
        for path, target in blobs:
            try:
                _rename(path, target)
                folders[target.parent] = None
                outcomes.append(None)
            except OSError as error:
                outcomes.append(error)
        for folder in folders:
            try:
                self._sync(folder)
            except OSError as error:
                folders[folder] = error
        return [outcome or folders[target.parent] for outcome, (_, target) in zip(outcomes, blobs, strict=True)]

    def _sync(self, folder: Path) -> None:
        durable.sync_folder(folder)
        if folder not in self._lasting:  # somebody may have made it just now
            durable.sync_folder(self._root)
            self._lasting.add(folder)

    async def stale(self, older_than: float) -> list[str]:
        """List old keys."""

        def scan() -> list[str]:
            keys = []
            for path in self._root.glob("[0-9a-f][0-9a-f]/*"):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    if path.stat().st_mtime < older_than:
                        keys.append(path.name)
            return keys

        return await self._off_loop(scan, "scan")

    async def clear_scratch(self, older_than: float) -> None:
        """Remove scratch files last changed before a Unix time: what dead writers left."""

        def clear() -> None:
            for path in self._scratch.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime < older_than:
                        path.unlink()

        await self._off_loop(clear, "scratch")

    async def check_room(self) -> None:
        """Look at the disk, unless there was room a moment ago."""
        now = time.monotonic()
        if 0 <= now - self._had_room_at < ROOM_SECONDS:
            return
        found = await self._off_loop(lambda: os.statvfs(self._root), "room")
        if found.f_bavail * found.f_frsize < KEPT_BYTES:
            raise errors.StorageFull(retry_after=10)
        self._had_room_at = now

    async def _off_loop(self, work: Callable[[], _T], key: str) -> _T:
        with mapped(f"blob {key}"):
            done: _T = await self._done(work)
            return done


def _rename(path: Path, target: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.replace(path, target)
    except FileNotFoundError:  # the first that goes there
        target.parent.mkdir(exist_ok=True)
        os.replace(path, target)


class _FileWriter:
    def __init__(self, store: DirectoryBlobStore, handle: _Handle, path: Path, key: str) -> None:
        self._store, self._handle, self._path, self._key = store, handle, path, key

    async def write(self, data: bytes) -> None:
        await self._store._off_loop(partial(self._handle.write, data), self._key)  # noqa: SLF001 - one class in two halves

    async def commit(self) -> None:
        await self._store._off_loop(self._handle.close, self._key)  # noqa: SLF001
        await self._store.publish(self._path, self._key)


class _Handle:
    """An open file. A caller that was cancelled leaves its thread at work: `close` waits for that, and bars what comes later."""

    def __init__(self, path: Path, mode: Literal["rb", "xb"]) -> None:
        self._path = path
        self._mode = mode
        self._lock = threading.Lock()
        self._barred = False
        self._file: BinaryIO | None = None

    def open(self) -> None:
        with self._lock:
            if not self._barred:
                self._file = self._path.open(self._mode)

    def seek(self, offset: int) -> None:
        with self._lock:
            if self._file is not None:
                self._file.seek(offset)

    def read(self, size: int) -> bytes:
        with self._lock:
            return self._file.read(size) if self._file is not None else b""

    def write(self, data: bytes) -> None:
        with self._lock:
            if self._file is not None:
                self._file.write(data)

    def close(self, *, remove: bool = False) -> None:
        with self._lock:
            self._barred = True
            file, self._file = self._file, None
            try:
                if file is not None:
                    file.close()  # writes what is buffered, which fails when there is no room
            finally:
                if remove:
                    self._path.unlink(missing_ok=True)

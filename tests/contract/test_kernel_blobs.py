"""The blob store's promises: whole or not at all, ranges, publishing, sweeps, and what the system's errors become."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from haywain import errors
from haywain.blobs import CHUNK_BYTES, DirectoryBlobStore, mapped


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def store(root: Path) -> DirectoryBlobStore:
    return DirectoryBlobStore(root)


def scratch(root: Path) -> list[str]:
    return os.listdir(root / "scratch")


async def put(store: DirectoryBlobStore, key: str, *data: bytes) -> None:
    async with store.writer(key) as writer:
        for piece in data:
            await writer.write(piece)
        await writer.commit()


async def whole(store: DirectoryBlobStore, key: str, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join([data async for data in store.read(key, offset, length)])


async def test_a_blob_is_there_once_committed(store: DirectoryBlobStore, root: Path) -> None:
    """Before its commit a blob isn't there, at its commit it is there whole, and no scratch file stays."""
    async with store.writer("input-1") as writer:
        await writer.write(b"ab")
        await writer.write(b"c")
        assert await store.size("input-1") is None
        await writer.commit()
        assert await store.size("input-1") == 3
    assert await whole(store, "input-1") == b"abc"
    assert (await store.local("input-1")).read_bytes() == b"abc"
    assert scratch(root) == []


async def test_a_blob_without_commit_never_was(store: DirectoryBlobStore, root: Path) -> None:
    """A writer that ends without commit, or with an exception, leaves nothing."""
    async with store.writer("input-1") as writer:
        await writer.write(b"ab")

    async def fail() -> None:
        async with store.writer("input-1") as writer:
            await writer.write(b"ab")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await store.size("input-1") is None
    assert scratch(root) == []


async def test_a_cancelled_writer_leaves_nothing(store: DirectoryBlobStore, root: Path) -> None:
    """A writer that is cancelled at any of its awaits leaves no scratch file, and a blob only whole."""

    async def write() -> None:
        await put(store, "input-1", b"a" * 100_000, b"b" * 100_000)

    for steps in range(12):
        writing = asyncio.ensure_future(write())
        for _ in range(steps):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert await store.size("input-1") in (None, 200_000)
    async with asyncio.timeout(10):
        while scratch(root):  # noqa: ASYNC110 - a thread may still be at it, and a folder has no event
            await asyncio.sleep(0.001)


async def test_a_commit_replaces(store: DirectoryBlobStore) -> None:
    """Committing a key again replaces its bytes, while a reader of the old ones reads them to their end."""
    await put(store, "output-1", b"x" * (CHUNK_BYTES + 1))
    reading = store.read("output-1")
    assert await anext(reading) == b"x" * CHUNK_BYTES
    await put(store, "output-1", b"new")
    assert [data async for data in reading] == [b"x"]
    assert await whole(store, "output-1") == b"new"


@pytest.mark.parametrize("offset", [0, 1, CHUNK_BYTES, CHUNK_BYTES * 2 + 4, CHUNK_BYTES * 3])
@pytest.mark.parametrize("length", [None, 0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 10**9])
async def test_ranges(store: DirectoryBlobStore, offset: int, length: int | None) -> None:
    """A range gives the bytes from offset, at most `length` of them, in chunks of at most 512 KiB."""
    data = bytes(range(256)) * (CHUNK_BYTES // 128) + b"tail!"
    await put(store, "input-1", data)
    chunks = [chunk async for chunk in store.read("input-1", offset, length)]
    assert b"".join(chunks) == data[offset:][:length]
    assert all(0 < len(chunk) <= CHUNK_BYTES for chunk in chunks)


async def test_what_is_not_there_is_gone(store: DirectoryBlobStore) -> None:
    """Reading or locating a key that isn't there is FileGone; its size is None; deleting it is no error."""
    for asked in (whole(store, "input-1"), store.local("input-1")):
        with pytest.raises(errors.FileGone):
            await asked
    assert await store.size("input-1") is None
    await store.delete("input-1")


async def test_delete_removes(store: DirectoryBlobStore) -> None:
    """A deleted blob isn't there; the others are."""
    await put(store, "input-1", b"1")
    await put(store, "input-2", b"2")
    await store.delete("input-1")
    assert [await store.size(key) for key in ("input-1", "input-2")] == [None, 1]


async def test_publish_takes_a_scratch_file(store: DirectoryBlobStore, root: Path) -> None:
    """A scratch file that another process wrote becomes a blob by its key, replacing what was there."""
    for text in (b"first", b"second"):
        path = store.scratch()
        path.write_bytes(text)
        await store.publish(path, "index-1")
        assert await whole(store, "index-1") == text
        assert not path.exists()
    assert scratch(root) == []


async def test_scratch_names_never_meet(store: DirectoryBlobStore) -> None:
    """Each scratch name is new, and tells who asked for it."""
    names = {store.scratch() for _ in range(1_000)}
    assert len(names) == 1_000
    assert all(path.name.startswith(f"{os.getpid()}-") for path in names)


async def test_stores_share_a_folder(store: DirectoryBlobStore, root: Path) -> None:
    """What one process commits, another reads."""
    await put(store, "input-1", b"abc")
    assert await whole(DirectoryBlobStore(root), "input-1") == b"abc"


async def test_stale_lists_old_keys(store: DirectoryBlobStore, root: Path) -> None:
    """Keys last changed before the time are listed, no younger ones, no scratch files, and nothing that isn't ours."""
    for key, changed in (("input-old", 100), ("output-old", 100), ("input-new", 300)):
        await put(store, key, b"x")
        os.utime(await store.local(key), (changed, changed))
    store.scratch().write_bytes(b"x")
    (root / "lost+found").mkdir()
    (root / "note.txt").write_text("x")
    assert sorted(await store.stale(200)) == ["input-old", "output-old"]


async def test_clear_scratch_takes_old_files_only(store: DirectoryBlobStore) -> None:
    """Scratch files last written before the time go, younger ones stay, blobs stay."""
    await put(store, "input-1", b"x")
    os.utime(await store.local("input-1"), (100, 100))
    old, new = store.scratch(), store.scratch()
    for path, changed in ((old, 100), (new, 300)):
        path.write_bytes(b"x")
        os.utime(path, (changed, changed))
    await store.clear_scratch(200)
    assert (old.exists(), new.exists(), await store.size("input-1")) == (False, True, 1)


@pytest.mark.parametrize("key", ["", "../x", "a/b", "/etc/passwd", ".hidden", "a\0b", "ü", "x" * 202, "a\n"])
def test_keys_are_never_paths(store: DirectoryBlobStore, key: str) -> None:
    """What isn't a flat name of ours is refused before any file is touched."""
    with pytest.raises(ValueError, match="not a blob key"):
        store.path(key)


# -- the system's errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, errors.StorageFull),
        (errno.EDQUOT, errors.StorageFull),
        (errno.EFBIG, errors.StorageFull),
        (errno.ENOENT, errors.FileGone),
        (errno.EACCES, errors.SettingsError),
        (errno.EPERM, errors.SettingsError),
        (errno.EROFS, errors.SettingsError),
        (errno.ENOTDIR, errors.SettingsError),
        (errno.EIO, errors.Unavailable),
        (errno.EMFILE, errors.Unavailable),
    ],
)
def test_errors_are_mapped(number: int, kind: type[errors.HaywainError]) -> None:
    """Each OSError becomes the class that says what to do about it, and what can be retried says when."""
    with pytest.raises(errors.HaywainError) as raised, mapped("blob x"):
        raise OSError(number, os.strerror(number))
    assert type(raised.value) is kind
    assert isinstance(raised.value.__cause__, OSError)
    assert (raised.value.retry_after > 0) is kind.retryable


def test_other_exceptions_pass() -> None:
    """What isn't the system's is not touched."""
    with pytest.raises(ZeroDivisionError), mapped("blob x"):
        raise ZeroDivisionError


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let no file grow over 64 KiB, as if there was no room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("piece", [1_000, 100_000])
@pytest.mark.usefixtures("small_files")
async def test_no_room_leaves_nothing(store: DirectoryBlobStore, root: Path, piece: int) -> None:
    """When the room ends in a write or in what is buffered, it is StorageFull, and neither blob nor scratch file stays."""
    with pytest.raises(errors.StorageFull):
        await put(store, "input-1", *[b"x" * piece] * (70_000 // piece + 1))
    assert await store.size("input-1") is None
    assert scratch(root) == []


async def test_a_root_that_can_not_be(tmp_path: Path) -> None:
    """A data folder that is a file is told at start."""
    (tmp_path / "plain").write_text("a file")
    with pytest.raises(errors.SettingsError, match="plain"):
        DirectoryBlobStore(tmp_path / "plain" / "blobs")

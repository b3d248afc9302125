"""What is stored survives a power loss: each file is synced before it is renamed, and each entry after it is made."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engine.tuned import Tuned
from engine.tuned import write as write_tuned
from haywain import durable
from haywain.blobs import DirectoryBlobStore
from haywain.postgres_schema import _write as write_origin
from haywain.resume import replacing
from haywain.settings import Settings
from haywain.up import _data_folder
from services.scheduler import forgotten
from services.scheduler import journal as journals
from services.scheduler.journal import Journal
from services.scheduler.pieces import Piece


class Disk:
    """Notes what is asked of the disk, in order: which entries are made, and what is synced."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """Listen to the calls that everything of the standard library comes down to."""
        self.steps: list[tuple[str, str]] = []
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._wrapped(getattr(os, name), "sync", lambda fd, *_: os.readlink(f"/proc/self/fd/{fd}")))
        for name in ("rename", "replace"):
            patch.setattr(os, name, self._wrapped(getattr(os, name), "rename", lambda source, target, *_: f"{source}\n{target}"))
        patch.setattr(os, "mkdir", self._wrapped(os.mkdir, "make", lambda path, *_: str(path)))

    def _wrapped(self, call: Callable[..., Any], kind: str, what: Callable[..., str]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            told = what(*arguments)
            answer = call(*arguments, **named)
            self.steps.append((kind, told))
            return answer

        return wrapped

    def check(self, made: Path) -> None:
        """Hold every step to the law, and see that the file is there and its entry synced."""
        syncs = [(at, path) for at, (kind, path) in enumerate(self.steps) if kind == "sync"]
        for at, (kind, path) in enumerate(self.steps):
            if kind == "make":
                assert any(later > at and synced == os.path.dirname(path) for later, synced in syncs), f"{path} is made, not synced"
            if kind == "rename":
                source, target = path.split("\n")
                assert any(before < at and synced == source for before, synced in syncs), f"{source} is renamed before it is synced"
                assert any(later > at and synced == os.path.dirname(target) for later, synced in syncs), f"{target} can be gone"
        assert made.is_file()
        assert str(made.parent) in [path for _, path in syncs]
        named = [path.split("\n")[1] for kind, path in self.steps if kind == "rename"]
        assert str(made) in [path for _, path in syncs] + named, "its bytes can be gone"


async def _blob(folder: Path) -> Path:
    store = DirectoryBlobStore(folder / "data" / "blobs")
    async with store.writer("input-1") as writer:
        await writer.write(b"bytes")
        await writer.commit()
    return store.path("input-1")


async def _published(folder: Path) -> Path:
    store = DirectoryBlobStore(folder / "data" / "blobs")
    scratch = store.scratch()
    scratch.write_bytes(b"bytes")
    await store.publish(scratch, "output-1")
    return store.path("output-1")


async def _journal(folder: Path) -> Path:
    journal = Journal(folder / "incremental" / "batch_a" / "0-1.jsonl", 0)
    journal.waiting.lines.append(b"line\n")
    await asyncio.to_thread(journals.write, [(journal, journal.take())])
    journal.close()
    return journal.path


async def _read_back(folder: Path) -> Path:
    path = folder / "batch_a.jsonl"
    path.write_bytes(b"line\ntor")
    await asyncio.to_thread(Journal(path, 5).make_sure)
    assert path.read_bytes() == b"line\n"
    return path


async def _order(folder: Path) -> Path:
    (folder / "batch_a").mkdir()
    durable.sync_folder(folder)
    forgotten.keep(folder, "batch_a", [Piece("x", 0, 1)])
    return folder / "batch_a" / "order.json"


async def _format(folder: Path) -> Path:
    with _data_folder(folder / "data"):
        pass
    return folder / "data" / "format"


async def _origin(folder: Path) -> Path:
    write_origin(folder / "data" / "batches.origin", "abc")
    return folder / "data" / "batches.origin"


async def _download(folder: Path) -> Path:
    with replacing(folder / "output.jsonl") as file:
        file.write(b"line\n")
    return folder / "output.jsonl"


async def _tuned(folder: Path) -> Path:
    write_tuned(
        Settings(data_dir=str(folder / "data")),
        Tuned(model_path="/m", model_size=1, model_mtime_ns=2, cores=3, chosen={}, tokens_per_second=1.0),
    )
    return folder / "data" / "engine-tuned.json"


@pytest.mark.parametrize("make", [_blob, _published, _journal, _read_back, _order, _format, _origin, _download, _tuned])
async def test_it_is_there_after_a_power_loss(
    make: Callable[[Path], Awaitable[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a commit or an answer names has been synced, with every folder on the way to it that was made just now."""
    disk = Disk(monkeypatch)
    disk.check(await make(tmp_path))


async def test_a_folder_that_another_made_is_synced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes make it at once: who finds it there doesn't know whether the other has synced it."""
    (tmp_path / "shared").mkdir()
    disk = Disk(monkeypatch)
    durable.make_folder(tmp_path / "shared")
    assert disk.steps == [("sync", str(tmp_path))]
    durable.make_folder(tmp_path / "shared")
    assert len(disk.steps) == 1

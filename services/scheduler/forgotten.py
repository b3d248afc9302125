"""Results that outlive their batch for a while: `{batch_id}.jsonl`, or a folder `{batch_id}` with files and their order."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from haywain import crash, durable, errors, ids
from services.scheduler.pieces import Piece

__all__ = ["keep", "left_over", "remove", "results"]

_ORDER = "order.json"


def keep(folder: Path, batch_id: str, pieces: Sequence[Piece]) -> None:
    """Note in what order a batch's results are to be read, and have them stay for a while from now on. Blocking.

    Without any, what was noted before stays: another forgot the batch at the same time, and SQL has nothing of it any more.
    """
    inside = folder / batch_id
    if not pieces and (inside / _ORDER).exists():
        return
    with contextlib.suppress(FileNotFoundError):  # nothing was recorded
        durable.replace(inside / _ORDER, msgspec.json.encode(pieces))


def results(folder: Path, batch_id: str) -> list[Piece]:
    """Tell where the results of a forgotten batch are. Blocking; raises BatchMissing."""
    if ids.is_one(batch_id):
        path = folder / f"{batch_id}.jsonl"
        with contextlib.suppress(FileNotFoundError):
            return [Piece(str(path), 0, path.stat().st_size, whole=False)]
        with contextlib.suppress(FileNotFoundError):
            return msgspec.json.decode((folder / batch_id / _ORDER).read_bytes(), type=list[Piece])
    raise errors.BatchMissing(f"No batch found with id '{batch_id}'.")


def left_over(folder: Path, known: Collection[str], older_than: float) -> list[Path]:
    """Find the results of batches that are not known, last changed before a Unix time. Blocking."""
    found = []
    for path in folder.glob("*"):
        batch_id = path.name.removesuffix(".jsonl")
        ours = ids.is_one(batch_id) and (path.suffix == ".jsonl" or path.is_dir())
        with contextlib.suppress(FileNotFoundError):
            if ours and batch_id not in known and path.stat().st_mtime < older_than:
                found.append(path)
    return found


def remove(path: Path) -> None:
    """Remove what `left_over` found. Blocking."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    crash.point("scheduler:journal-removed")

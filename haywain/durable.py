"""Files and folders that a power loss leaves: their bytes, and the entries that lead to them.

    a file     write ──▶ sync it ──▶ rename it into place ──▶ sync its folder
    a folder   make it ──▶ sync the folder above it

What a commit in SQL names, or an answer to a client, must have come that far before. Everything here is blocking, and raises
OSError.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from pathlib import Path

__all__ = ["make_folder", "replace", "sync_folder"]

_MOST = 4_096
_lasting = set[Path]()
"""Folders whose entries are known to be on the disk."""


def sync_folder(folder: Path) -> None:
    """Have a folder's entries survive."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it, and have them survive; also one that somebody else made just now."""
    if folder in _lasting and folder.is_dir():
        return
    made = list(itertools.takewhile(lambda one: not one.exists(), (folder, *folder.parents)))
    folder.mkdir(mode, parents=True, exist_ok=True)
    for one in made:
        sync_folder(one.parent)
    if not made and folder not in _lasting:
        with contextlib.suppress(PermissionError):  # who may not read the folder above hasn't made this one
            sync_folder(folder.parent)
    if len(_lasting) >= _MOST:
        _lasting.clear()
    _lasting.add(folder)


def replace(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Put a file in place, whole, whatever was there."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(path.parent)

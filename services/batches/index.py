"""The index of an input: an entry a row, sorted by (model, line). A row is the ordinal of its entry.

An entry has 16 bytes, little-endian: u64 byte offset of the line, u32 length without its end, u32 line number from 1.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from services.batches.record import Shard

__all__ = ["INDEX_ENTRY", "Index", "Part"]

INDEX_ENTRY = struct.Struct("<QII")
_FLUSH_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 20


class Index:
    """Entries, a part for each model while they come; joined in the order of models at the end."""

    def __init__(self, path: Path) -> None:
        """Write to `path`, and to files beside it on the way."""
        self._path = path
        self._parts: dict[str, Part] = {}

    def part(self, model: str) -> Part:
        """Find or make a model's part."""
        try:
            return self._parts[model]
        except KeyError:
            made = self._parts[model] = Part(self._path.with_name(f"{self._path.name}.{len(self._parts)}"))
            return made

    def flush(self) -> None:
        """Put parts that have grown on disk."""
        for part in self._parts.values():
            if len(part.buffer) >= _FLUSH_BYTES:
                part.flush()

    def models(self) -> list[str]:
        """List the models in the order of the index."""
        return sorted(self._parts)

    def whole(self) -> bytes:
        """Join without writing; only of few rows, all of which are in memory."""
        return b"".join(self._parts[model].buffer for model in self.models())

    def write(self) -> None:
        """Join."""
        try:
            with self._path.open("wb") as whole:
                for model in self.models():
                    self._parts[model].copy_to(whole)
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise

    def shards(self, shard_rows: int) -> list[Shard]:
        """Cut every model's rows into shards."""
        shards: list[Shard] = []
        first = 0
        for model in self.models():
            rows = self._parts[model].size // INDEX_ENTRY.size
            shards += [Shard(model, first + at, min(shard_rows, rows - at)) for at in range(0, rows, shard_rows)]
            first += rows
        return shards

    def close(self) -> None:
        """Remove what was written on the way."""
        for part in self._parts.values():
            part.path.unlink(missing_ok=True)


class Part:
    """One model's entries; on disk only when they are many. Whoever appends to `buffer` calls `Index.flush` now and then."""

    def __init__(self, path: Path) -> None:
        """Made by `Index.part`."""
        self.path = path
        self.buffer = bytearray()
        self._written = 0

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return self._written + len(self.buffer)

    def flush(self) -> None:
        """Empty the buffer onto the disk."""
        with self.path.open("ab") as file:
            self._written += file.write(self.buffer)
        self.buffer.clear()

    def copy_to(self, whole: BinaryIO) -> None:
        """Append all entries."""
        if self._written:
            with self.path.open("rb") as file:
                while data := file.read(_BUFFER_BYTES):
                    whole.write(data)
        whole.write(self.buffer)

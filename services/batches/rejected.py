"""The error lines of rejected input lines, for readers of results while the batch has no error file yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

from haywain import errors
from haywain.blobs import BlobStore
from services.batches.own_files import rejected_key
from services.batches.record import Record

__all__ = ["rejected_lines"]

PIECE_BYTES = 256 * 1024


async def rejected_lines(blobs: BlobStore, record: Record, after_line: int) -> AsyncGenerator[bytes, None]:
    """Yield whole lines in line order. Raises FileGone once the batch has an error file that has them."""
    if record.plan is None or not record.plan.rejected:
        return
    pieces = _pieces(await blobs.local(rejected_key(record.batch_id)), after_line)
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


def _pieces(path: Path, after_line: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            for _ in range(after_line):
                if not file.readline():
                    return
            while lines := file.readlines(PIECE_BYTES):
                yield b"".join(lines)
    except FileNotFoundError:
        raise errors.FileGone from None

"""What time and kills leave behind, removed: expired files, bytes nobody needs, blobs without a record, stale scratch files.

Everything here can be interrupted and repeated at any point. A delete marks the record first and removes the blob next; when a
kill comes between, the record is still `doomed`, and the next sweep goes on. An upload commits its blob first and records it next;
when a kill comes between, the blob has no record and goes after a grace period that no living upload needs.
"""

from __future__ import annotations

import asyncio

from haywain import errors, log
from haywain.blobs import BlobStore
from haywain.clock import Clock
from services.files.store import PUBLISH_SECONDS, FileStore

__all__ = ["Sweep"]

SWEEP_SECONDS = 30.0
SCAN_EVERY = 20
"""The folders are only looked through on each n-th sweep."""
GRACE_SECONDS = 2 * PUBLISH_SECONDS
REQUEST_SECONDS = 86_400.0
"""How long an upload's request_id is remembered."""
PAGE = 500
_log = log.get()


class Sweep:
    """Removes what is over."""

    def __init__(self, store: FileStore, blobs: BlobStore, clock: Clock) -> None:
        """Decide by `clock`, against the storage's own times for what has no record."""
        self._store = store
        self._blobs = blobs
        self._clock = clock

    async def run(self, stopping: asyncio.Event) -> None:
        """Sweep at once and then every 30 seconds, until `stopping` is set."""
        sweeps = 0
        while not stopping.is_set():
            try:
                await self.expire()
                await self.purge()
                if sweeps % SCAN_EVERY == 0:
                    await self.scan()
            except errors.HaywainError as error:
                _log.warning("sweep.failed", error=error.message)
            sweeps += 1
            try:
                async with asyncio.timeout(SWEEP_SECONDS):
                    await stopping.wait()
            except TimeoutError:
                continue

    async def expire(self) -> None:
        """Mark the files whose time has come."""
        count = await self._store.expire()
        if count:
            _log.info("files.expired", count=count)

    async def purge(self) -> None:
        """Remove the bytes of expired and deleted files that nobody holds."""
        while doomed := await self._store.doomed(PAGE):
            for key in doomed.values():
                await self._blobs.delete(key)
            await self._store.bytes_removed(list(doomed))
            _log.info("files.purged", count=len(doomed))

    async def scan(self) -> None:
        """Remove uploads' blobs that were never recorded, scratch files nobody writes any more, and old request ids."""
        now = self._clock.now()
        stale = [key for key in await self._blobs.stale(now - GRACE_SECONDS) if key.startswith("input-")]
        for start in range(0, len(stale), PAGE):
            for key in await self._store.unrecorded(stale[start : start + PAGE]):
                await self._blobs.delete(key)
                _log.info("blob.orphan_removed", blob_key=key)
        await self._blobs.clear_scratch(now - GRACE_SECONDS)
        await self._store.forget_requests(now - REQUEST_SECONDS)

"""What time and kills leave behind, removed: expired files, bytes nobody needs, blobs without a record, stale scratch files.

Everything here can be interrupted and repeated at any point. A delete marks the record first and removes the blob next; when a
kill comes between, the record is still `doomed`, and the next sweep goes on. An upload commits its blob first and records it next;
when a kill comes between, the blob has no record and goes after a grace period that no living upload needs. Parts go the same ways.
"""

from __future__ import annotations

import asyncio

from haywain import crash, errors, log
from haywain.blobs import BlobStore
from haywain.clock import Clock
from services.files.answers import Answers
from services.files.store import PUBLISH_SECONDS, FileStore
from services.files.upload_store import UploadStore

__all__ = ["Sweep"]

SWEEP_SECONDS = 30.0
SCAN_EVERY = 20
"""The folders are only looked through on each n-th sweep."""
GRACE_SECONDS = 2 * PUBLISH_SECONDS
REQUEST_SECONDS = 86_400.0
"""How long an upload's request_id is remembered."""
RELEASE_SECONDS = 7 * 86_400.0
"""How long a release is remembered: longer than a hold can be on its way to a process that was stopped meanwhile."""
PAGE = 500
_log = log.get()


class Sweep:
    """Removes what is over."""

    def __init__(self, store: FileStore, uploads: UploadStore, answers: Answers, blobs: BlobStore, clock: Clock) -> None:
        """Decide by `clock`, against the storage's own times for what has no record."""
        self._store = store
        self._uploads = uploads
        self._answers = answers
        self._blobs = blobs
        self._clock = clock

    async def run(self, stopping: asyncio.Event) -> None:
        """Sweep at once and then every 30 seconds, until `stopping` is set."""
        sweeps = 0
        while not stopping.is_set():
            try:
                await self.expire()
                crash.point("files:expired")
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
        """Mark the files and uploads whose time has come."""
        files, uploads = await self._store.expire(), await self._uploads.expire()
        if files or uploads:
            _log.info("files.expired", files=files, uploads=uploads)

    async def purge(self) -> None:
        """Remove the bytes of expired and deleted files that nobody holds, and of parts that no upload needs."""
        while doomed := await self._store.doomed(PAGE):
            for key in doomed.values():
                await self._blobs.delete(key)
            crash.point("files:bytes-removed")
            await self._store.bytes_removed(list(doomed))
            _log.info("files.purged", count=len(doomed))
        while parts := await self._uploads.doomed_parts(PAGE):
            for key in parts:
                await self._blobs.delete(key)
            crash.point("files:part-bytes-removed")
            await self._uploads.parts_removed(parts)
            _log.info("parts.purged", count=len(parts))

    async def purge_now(self) -> None:
        """Purge after what was asked for is on disk: a failure is left to the next sweep."""
        try:
            await self.purge()
        except errors.HaywainError as error:
            _log.warning("purge.failed", error=error.message)

    async def scan(self) -> None:
        """Remove blobs of uploads and parts that were never recorded, scratch files nobody writes any more, and old request ids."""
        now = self._clock.now()
        stale = await self._blobs.stale(now - GRACE_SECONDS)
        for prefix, unrecorded in (("input-", self._store.unrecorded), ("part_", self._uploads.unrecorded)):
            keys = [key for key in stale if key.startswith(prefix)]
            for start in range(0, len(keys), PAGE):
                for key in await unrecorded(keys[start : start + PAGE]):
                    await self._blobs.delete(key)
                    crash.point("files:orphan-removed")
                    _log.info("blob.orphan_removed", blob_key=key)
        await self._blobs.clear_scratch(now - GRACE_SECONDS)
        await self._answers.forget()
        await self._store.forget_requests(now - REQUEST_SECONDS)
        await self._uploads.forget_requests(now - REQUEST_SECONDS)
        await self._store.forget_releases(now - RELEASE_SECONDS)

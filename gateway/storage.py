"""Whether there is room on the disk: without it nothing new is taken in, and rows that end wait for it."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import time
from pathlib import Path

from haywain.blobs import KEPT_BYTES

__all__ = ["PROBE_BYTES", "Storage"]

PROBE_BYTES = 256 * 1024
"""Less room than that is none."""
_BELIEVED_SECONDS = 0.5
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Storage:
    """Looks whether new work is taken in, and tries it out by writing a file without a name: free space says nothing of quotas."""

    def __init__(self, folder: Path) -> None:
        """Take the folder that blobs, journals and databases are in."""
        self._folder = folder
        self._full = False
        self._asked_at = float("-inf")

    async def is_full(self) -> bool:
        """Tell; what was found is believed for a moment. False as well when the folder can't be used here at all."""
        if time.monotonic() > self._asked_at + _BELIEVED_SECONDS:
            self._full = await asyncio.to_thread(self._refuses)
            self._asked_at = time.monotonic()
        return self._full

    def _refuses(self) -> bool:
        try:
            found = os.statvfs(self._folder)
            if found.f_bavail * found.f_frsize < KEPT_BYTES:
                return True
            with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
                return file.write(bytes(PROBE_BYTES)) < PROBE_BYTES
        except OSError as error:
            return error.errno in _FULL

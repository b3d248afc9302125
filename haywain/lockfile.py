"""One process a file: a lock that the kernel lets go of when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

from haywain.errors import SettingsError

__all__ = ["held", "of_address"]

_PATIENCE_SECONDS = 2.0


@contextlib.contextmanager
def held(path: Path, refusal: str, *, patience_seconds: float = 0.0, shared: bool = False) -> Iterator[None]:
    """Hold the lock on `path` until the block ends; blocking. With `shared`, together with others who share it.

    Whoever was killed may need a moment to be gone: the lock is tried for `patience_seconds`. Raises SettingsError with `refusal`
    when another process has it, OSError when the file can't be made.
    """
    give_up = time.monotonic() + patience_seconds
    with path.open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    raise SettingsError(refusal) from None
                time.sleep(0.05)
        yield


@contextlib.contextmanager
def of_address(address: str) -> Iterator[None]:
    """Be the only process that serves a gRPC target until the block ends; for a Unix socket, whose folder is made.

    Binding a socket file takes it over from whoever has it, without a word to either. Raises SettingsError.
    """
    if not address.startswith("unix:"):
        yield
        return
    socket = Path(address.removeprefix("unix:"))
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    refusal = f"another process serves {address} already"
    with held(socket.with_suffix(".lock"), refusal, patience_seconds=_PATIENCE_SECONDS):
        yield

"""A decoder process as the engine sees it: started, talked to over a socket pair, and its end noticed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from engine.llamacpp.messages import LENGTH, FromDecoder, Open, Ready, Refused, ToDecoder, frame, from_decoder
from haywain import log, orphans
from haywain.errors import HaywainError, SettingsError

__all__ = ["DecoderDied", "DecoderProcess"]

# A KV cache is emptied in a quarter of the time, at each change of the layout, where glibc asks for large pages.
_DEFAULTS: Final = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# OpenBLAS, which comes with numpy and isn't used, would start a thread for every core.
_FIXED: Final = {"OPENBLAS_NUM_THREADS": "1"}
_log = log.get()


class DecoderDied(HaywainError):
    """A decoder process ended by itself."""


class DecoderProcess:
    """One life of a decoder process."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Made by `start`."""
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, wanted: Open) -> DecoderProcess:
        """Start one and wait until its model is loaded.

        Raises SettingsError when the model can't be loaded, and DecoderDied when the process doesn't live that long. From the
        main thread: the kernel ends a decoder with the thread that started it.
        """
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "engine.llamacpp.decoder", str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env=_DEFAULTS | os.environ | _FIXED | {orphans.PARENT_VARIABLE: str(os.getpid())},
                )
            undo.pop_all()
        reader, writer = await asyncio.open_connection(sock=ours)
        decoder = cls(process, reader, writer)
        try:
            await decoder._open(wanted)
        except BaseException:
            await decoder.stop()
            raise
        return decoder

    async def _open(self, wanted: Open) -> None:
        self.send([wanted])
        async with contextlib.aclosing(self.messages()) as frames:
            async for messages in frames:
                match messages[0]:
                    case Ready(gpu_layers=layers):
                        if layers:
                            _log.info("decoder.offloads", layers=layers)
                        return
                    case Refused(reason):
                        raise SettingsError(reason)
        raise DecoderDied(f"a decoder process ended while it loaded the model: {await self.end()}")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, messages: Sequence[ToDecoder]) -> None:
        """Send; never blocks. What a dead process doesn't get is lost, as is all it had."""
        if not self._writer.is_closing():
            self._writer.write(frame(messages))

    async def messages(self) -> AsyncGenerator[list[FromDecoder], None]:
        """Give what it says, a frame at a time, until it ends."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self._reader.readexactly(LENGTH)
                yield from_decoder.decode(await self._reader.readexactly(int.from_bytes(head, "little")))

    def kill(self) -> None:
        """End it; `messages` then ends, too."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def end(self) -> str:
        """Wait for its end and tell how it came."""
        code = await self._process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    async def stop(self) -> None:
        """End it at once: it has nothing to save."""
        self._writer.close()
        self.kill()
        await self._process.wait()

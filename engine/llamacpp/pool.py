"""The decoder processes: runs are spread over them (dealing.py), and what dies is started again.

A decoder gets as many runs as it has slots and one more; the others wait here. One that has runs and says nothing for too long is
killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from engine.llamacpp import weights
from engine.llamacpp.dealing import Dealer
from engine.llamacpp.figures import DecoderFigures
from engine.llamacpp.messages import Begin, Cancel, Delta, Ended, Figures, Open, ToDecoder
from engine.llamacpp.process import DecoderDied, DecoderProcess
from haywain import log
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import SettingsError

__all__ = ["Listener", "Pool"]

_STEADY_SECONDS: Final = 10.0
"""a decoder that lived this long may be started again at once"""
_MAX_PAUSE_SECONDS: Final = 5.0
_MAX_STARTS: Final = 5
"""starts in a row that may fail before the backend gives up"""
_log = log.get()


class Listener(Protocol):
    """Who is told what happens to runs."""

    def told(self, event: Delta | Ended) -> None:
        """Take news of a run."""

    def lost(self, runs: list[int], how: str) -> None:
        """Take that these runs were in a decoder that died."""

    def gave_up(self, reason: str) -> None:
        """Take that a decoder can't be started any more."""


class _Decoder:
    """A place for a decoder process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: DecoderProcess | None = None
        self.outbox: list[ToDecoder] = []
        self.heard = 0.0
        """when it last said something or got its first run, by the monotonic clock"""


class Pool:
    """`count` decoders of one model. For the event loop's thread, which must be the main one."""

    def __init__(self, wanted: Open, count: int, listener: Listener, *, silence_seconds: float = 120.0) -> None:
        """Nothing runs until `start`. `silence_seconds` is what a step may take at most."""
        self._wanted = wanted
        self._listener = listener
        self._silence = silence_seconds
        self._file = weights.version(Path(wanted.path))
        self._decoders = [_Decoder(number) for number in range(count)]
        self._dealer = Dealer(count, wanted.slots, embeds=bool(wanted.pooling))
        self._at: dict[int, _Decoder | None] = {}
        self._keeping: list[asyncio.Task[None]] = []
        cells = 0 if wanted.pooling else wanted.cells or wanted.slots * wanted.context_length
        self._figures = DecoderFigures(count, wanted.slots, cells)

    async def start(self, path: str = "") -> None:
        """Start all of them, with the model in another file if `path` is given.

        Raises SettingsError when the model can't be loaded.
        """
        if path:
            self._wanted = msgspec.structs.replace(self._wanted, path=path)
            self._file = weights.version(Path(path))
        failure: SettingsError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for decoder in self._decoders:
                    group.create_task(self._start(decoder))
        except* (SettingsError, DecoderDied) as failed:
            failure = SettingsError(str(failed.exceptions[0]))
        if failure is not None:
            await self.close()
            raise failure
        self._figures.begin()
        for keeping in (self._watch(), *map(self._keep, self._decoders)):
            self._keeping.append(asyncio.create_task(keeping))
            self._keeping[-1].add_done_callback(self._stopped_keeping)

    @property
    def pids(self) -> list[int]:
        """Process ids of those that live."""
        return [decoder.process.pid for decoder in self._decoders if decoder.process is not None]

    @property
    def load(self) -> pb.Load:
        """How busy they are."""
        return self._figures.load

    def submit(self, begins: Iterable[Begin]) -> None:
        """Take runs; never blocks."""
        for begin in begins:
            self._at[begin.run] = None
            self._dealer.add(begin)
        self._place()

    def cancel(self, runs: Iterable[int]) -> None:
        """Stop runs; each is told as ended, unless it was already."""
        for run in runs:
            decoder = self._at.get(run)
            if decoder is not None:
                decoder.outbox.append(Cancel(run))
            elif self._dealer.discard(run):
                del self._at[run]
                self._listener.told(Ended(run=run, text="", finish="cancelled", output_tokens=0, run_ms=0))
        self._send()

    async def close(self) -> None:
        """Stop all of them."""
        self._figures.end()
        for keeping in self._keeping:
            keeping.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        for decoder in self._decoders:
            if decoder.process is not None:
                process, decoder.process = decoder.process, None
                await process.stop()

    def _place(self) -> None:
        """Give waiting runs to decoders with room."""
        while (dealt := self._dealer.deal()) is not None:
            number, begin = dealt
            decoder = self._decoders[number]
            if self._dealer.at(number) == 1:
                decoder.heard = time.monotonic()
            decoder.outbox.append(begin)
            self._at[begin.run] = decoder
            self._figures.given(len(begin.tokens) // 4)
        self._send()

    def _send(self) -> None:
        for decoder in self._decoders:
            if decoder.outbox and decoder.process is not None:
                decoder.process.send(decoder.outbox)
            decoder.outbox = []

    async def _start(self, decoder: _Decoder) -> None:
        decoder.process = await DecoderProcess.start(self._wanted)
        self._dealer.started(decoder.number)
        self._figures.started(decoder.number, decoder.process.pid)

    async def _keep(self, decoder: _Decoder) -> None:
        """Listen to a decoder; when it dies, tell what was lost and start it again, after a pause while it keeps dying."""
        pause = 0.0
        while decoder.process is not None:
            started = time.monotonic()
            how = await self._listen(decoder, decoder.process)
            runs, decoder.process = self._dealer.died(decoder.number), None
            self._figures.died(decoder.number)
            _log.error("decoder.died", how=how, runs=len(runs))
            for run in runs:
                del self._at[run]
            self._listener.lost(runs, how)
            self._place()  # nothing waits any more for what it had evaluated
            pause = 0.0 if time.monotonic() - started > _STEADY_SECONDS else min(pause * 2 or 0.05, _MAX_PAUSE_SECONDS)
            await self._restart(decoder, pause)
            self._place()

    async def _listen(self, decoder: _Decoder, process: DecoderProcess) -> str:
        async with contextlib.aclosing(process.messages()) as frames:
            async for messages in frames:
                decoder.heard = time.monotonic()
                for message in messages:
                    if isinstance(message, Ended):
                        self._dealer.ended(decoder.number, message.run)
                        del self._at[message.run]
                        self._figures.ended(message)
                    elif isinstance(message, Figures):
                        self._figures.told(decoder.number, message)
                    if isinstance(message, Delta | Ended):
                        self._listener.told(message)
                if any(isinstance(message, Ended) for message in messages):
                    self._place()
        how = await process.end()
        await process.stop()
        return how

    async def _watch(self) -> None:
        """Kill decoders that hang."""
        while True:
            await asyncio.sleep(self._silence / 4)
            late = time.monotonic() - self._silence
            for decoder in self._decoders:
                runs = self._dealer.at(decoder.number)
                if runs and decoder.heard < late and decoder.process is not None:
                    _log.error("decoder.hangs", runs=runs)
                    decoder.process.kill()

    async def _restart(self, decoder: _Decoder, pause: float) -> None:
        for _ in range(_MAX_STARTS):
            await asyncio.sleep(pause)
            if weights.version(Path(self._wanted.path)) != self._file:
                return self._listener.gave_up(f"model file {self._wanted.path} has changed or is gone")
            try:
                return await self._start(decoder)
            except SettingsError as error:
                return self._listener.gave_up(error.message)
            except DecoderDied as error:
                _log.error("decoder.start_failed", reason=error.message)
                pause = min(pause * 2 or 0.05, _MAX_PAUSE_SECONDS)
        return self._listener.gave_up(f"a decoder process could not be started {_MAX_STARTS} times in a row")

    def _stopped_keeping(self, keeping: asyncio.Task[None]) -> None:
        if not keeping.cancelled() and (error := keeping.exception()) is not None:
            _log.error("decoders.unwatched", exc_info=error)
            self._listener.gave_up("a defect in watching decoder processes")

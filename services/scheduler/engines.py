"""The engines known: registrations, heartbeats, and one Run stream to each.

    register ──▶ CONNECTING ──first message──▶ READY ──drain──▶ DRAINING
                   ▲      ▲                      │
                   │      └──stream broke, redial┘
                   └──register again── LOST ◀── three heartbeats missed

A new incarnation replaces the one before. What was in flight on a stream that ended goes back to the queue (`Returns.lost`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Coroutine, Mapping
from typing import Any

import grpc

from haywain import crash, log, rpc
from haywain.clock import Clock
from haywain.engine.v1 import engine_pb2, engine_pb2_grpc
from haywain.errors import Conflict, InvalidRequest, NotFound
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import SchedulerSettings
from services.scheduler.dispatch import Dispatcher
from services.scheduler.link import Link
from services.scheduler.returns import Returns

__all__ = ["Engines", "Entry"]

_REDIAL_SECONDS = (0.05, 5.0)
_MISSED_MAX = 3
_FORGET_SECONDS = 60.0
"""A lost engine's models stay known for so long: an engine that restarts makes no batch fail."""
_TELL_SECONDS = 3_600.0
_State = pb.EngineStatus
_log = log.get()


class _StreamEnded(Exception):
    """The engine ended its stream in good order."""


class Entry:
    """One engine."""

    def __init__(self, engine: engine_pb2.Engine, now: float, ended: int = 0) -> None:
        """`ended` is carried over from its life before."""
        self.engine = engine
        self.state: pb.EngineStatus.State = _State.STATE_CONNECTING
        self.seen = self.told = now
        self.link: Link | None = None
        self.draining = False
        self.replaced = False
        """The same incarnation described itself anew: nothing died."""
        self.ended = ended
        self.running: asyncio.Task[None] | None = None

    def status(self) -> pb.EngineStatus:
        """Make the message."""
        link = self.link
        return pb.EngineStatus(
            engine=self.engine,
            state=_State.STATE_DRAINING if self.draining and self.state == _State.STATE_READY else self.state,
            active=link.active if link else 0,
            credits=link.credits if link else 0,
            ended=self.ended + (link.ended if link else 0),
        )


class Engines:
    """Registers engines and moves messages between them and the dispatcher."""

    def __init__(self, settings: SchedulerSettings, clock: Clock, dispatcher: Dispatcher, returns: Returns) -> None:
        """No engine is known."""
        self._heartbeat_ms = settings.heartbeat_ms
        self._clock = clock
        self._dispatcher = dispatcher
        self._returns = returns
        self._entries: dict[str, Entry] = {}
        self._group: asyncio.TaskGroup | None = None
        self._swept = clock.monotonic()
        self._drained: Mapping[str, str] = {}
        self.registered = asyncio.Event()
        """An engine registered in this life of the scheduler."""

    async def run(self) -> None:
        """Watch heartbeats and hold streams until cancelled."""
        self._swept = self._clock.monotonic()
        async with asyncio.TaskGroup() as self._group:
            for entry in self._entries.values():
                if entry.state != _State.STATE_LOST:
                    self._connect(entry)
            while True:
                await asyncio.sleep(self._heartbeat_ms / 2000)
                self._sweep()

    def register(self, engine: engine_pb2.Engine) -> bool:
        """Take a registration or heartbeat; True when it should be remembered: new, or not told for long.

        Raises InvalidRequest, Conflict.
        """
        if not (engine.engine_id and engine.address and engine.models and engine.slots > 0):
            raise InvalidRequest("an engine registers with an id, an address, models and slots")
        self.registered.set()
        now = self._clock.monotonic()
        entry = self._entries.get(engine.engine_id)
        if entry is not None and entry.engine == engine:
            entry.seen = now
            if entry.state == _State.STATE_LOST:
                entry.state = _State.STATE_CONNECTING
                self._connect(entry)
            news = now - entry.told > _TELL_SECONDS
            entry.told = now if news else entry.told
            return news
        if entry is not None and self._is_another(entry, engine):
            raise Conflict(f"The engine at {entry.engine.address} is called '{engine.engine_id}', too: set engine.id.")
        if entry is not None and entry.running is not None:
            entry.replaced = entry.engine.incarnation == engine.incarnation
            entry.running.cancel()
        _log.info("engine.registered", engine_id=engine.engine_id, incarnation=engine.incarnation, address=engine.address)
        self._entries[engine.engine_id] = new = Entry(engine, now, entry.status().ended if entry else 0)
        new.draining = entry is not None and entry.draining and entry.engine.incarnation == engine.incarnation
        new.draining = new.draining or self._drained.get(engine.engine_id) == engine.incarnation
        self._connect(new)
        return True

    def _is_another(self, entry: Entry, engine: engine_pb2.Engine) -> bool:
        """Tell whether the engine that is known is alive beside one of the same name: they would take each other's rows away."""
        alive = entry.link is not None and entry.link.ready and entry.state != _State.STATE_LOST
        known = entry.engine
        return alive and known.incarnation != engine.incarnation and known.address != engine.address

    def remember(self, engine: engine_pb2.Engine) -> None:
        """Know an engine of an earlier life of the scheduler; it is lost until it registers."""
        entry = Entry(engine, self._clock.monotonic())
        entry.state = _State.STATE_LOST
        self._entries.setdefault(engine.engine_id, entry)

    def drain(self, engine_id: str) -> pb.EngineStatus:
        """Send an engine nothing more. Raises NotFound."""
        entry = self._entries.get(engine_id)
        if entry is None:
            raise NotFound(f"No engine found with id '{engine_id}'.")
        entry.draining = True
        if entry.link is not None:
            entry.link.draining = True
        return entry.status()

    def drained(self, incarnations: Mapping[str, str]) -> None:
        """Drain the engines that were to be drained: by another scheduler, or in an earlier life of this one."""
        self._drained = incarnations
        for engine_id, incarnation in incarnations.items():
            entry = self._entries.get(engine_id)
            if entry is not None and not entry.draining and entry.engine.incarnation == incarnation:
                self.drain(engine_id)

    def entries(self) -> list[Entry]:
        """List the engines by id."""
        return [self._entries[engine_id] for engine_id in sorted(self._entries)]

    def _connect(self, entry: Entry) -> None:
        if self._group is not None:
            name = f"engine {entry.engine.engine_id}"
            # A context of its own: not the ids of the request that registered it.
            entry.running = self._group.create_task(self._hold(entry), name=name, context=contextvars.Context())

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        late = now - self._swept - self._heartbeat_ms / 1000
        self._swept = now
        for engine_id, entry in list(self._entries.items()):
            entry.seen += max(0.0, late)  # when we were stopped, engines could not be heard
            silent = now - entry.seen
            if entry.state == _State.STATE_LOST:
                if silent > _FORGET_SECONDS:
                    del self._entries[engine_id]
            elif silent > _MISSED_MAX * self._heartbeat_ms / 1000:
                _log.warning("engine.lost", engine_id=engine_id, silent_seconds=round(silent, 3))
                entry.state = _State.STATE_LOST
                if entry.running is not None:
                    entry.running.cancel()

    async def _hold(self, entry: Entry) -> None:
        """Keep a stream open to one incarnation until cancelled."""
        shortest, longest = _REDIAL_SECONDS
        pause = shortest
        channel = rpc.channel(entry.engine.address)
        try:
            while True:
                began = self._clock.monotonic()
                await self._stream(entry, channel)
                pause = shortest if self._clock.monotonic() - began > longest else min(longest, 2 * pause)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311
        finally:
            with contextlib.suppress(Exception):
                await channel.close()

    async def _stream(self, entry: Entry, channel: grpc.aio.Channel) -> None:
        link = Link(entry.engine)
        link.draining = entry.draining
        entry.link = link
        entry.state = _State.STATE_CONNECTING
        self._dispatcher.links.connect(link)
        call = engine_pb2_grpc.EngineServiceStub(channel).Run()
        in_order = False
        try:
            match await _first_failure(self._read(entry, link, call), self._write(link, call)):
                case _StreamEnded():
                    in_order = True
                case (grpc.aio.AioRpcError() | asyncio.InvalidStateError() | grpc.aio.UsageError()) as error:
                    _log.warning(
                        "engine.stream_broke", engine_id=entry.engine.engine_id, error=_first_line(error), active=link.active
                    )
                case error:  # whatever an engine does ends its stream only
                    _log.error("engine.stream_failed", engine_id=entry.engine.engine_id, exc_info=error)
        finally:
            call.cancel()
            entry.ended += link.ended
            if entry.link is link:  # else the engine came back before this stream had ended
                entry.link = None
                if entry.state != _State.STATE_LOST:
                    entry.state = _State.STATE_CONNECTING
            self._returns.lost(link, in_order=in_order or entry.replaced)

    async def _read(self, entry: Entry, link: Link, call: Any) -> None:
        while True:
            response = await call.read()
            if response is grpc.aio.EOF:
                if await call.code() == grpc.StatusCode.OK:
                    raise _StreamEnded
                raise grpc.aio.UsageError(await call.details())
            if response is None:
                raise grpc.aio.UsageError("a message that can't be read")
            if entry.state == _State.STATE_CONNECTING:
                entry.state = _State.STATE_READY
                link.ready = True
            entry.seen = self._clock.monotonic()
            self._returns.arrived(link, response)

    async def _write(self, link: Link, call: Any) -> None:
        while True:
            link.wake.clear()
            message = await self._dispatcher.message(link)
            if message is None:
                await link.wake.wait()
            else:
                await call.write(message)
                crash.point("scheduler:rows-sent")


async def _first_failure(*endless: Coroutine[Any, Any, None]) -> BaseException | None:
    """Run all until one fails, and end the others.

    Not a TaskGroup: up to Python 3.12 its owner looks cancelled ever after, and it forgets that it was when a member fails as well.
    """
    running = [asyncio.create_task(one) for one in endless]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).exception()
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _first_line(error: BaseException) -> str:
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
    return str(details or type(error).__name__).partition("\n")[0]

"""The engines known: registrations, heartbeats, and one Run stream to each.

    register ──▶ CONNECTING ──first message──▶ READY ──drain──▶ DRAINING ──remove, when nothing runs──▶ forgotten
                   ▲      ▲                      │
                   │      └──stream broke, redial┘
                   └──register again── LOST ◀── three heartbeats missed

An engine that was added is asked how it is (`Probes`), which counts as its registration.

A new incarnation replaces the one before. What was in flight on a stream that ended goes back to the queue (`Returns.lost`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc

from haywain import crash, log, rpc
from haywain.clock import Clock
from haywain.engine.v1 import engine_pb2, engine_pb2_grpc
from haywain.errors import Conflict, NotFound
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import SchedulerSettings
from services.scheduler.dispatch import Dispatcher
from services.scheduler.entry import Entry
from services.scheduler.failing import first_failure, first_line
from services.scheduler.link import Link
from services.scheduler.returns import Returns
from services.scheduler.speed import Speed

__all__ = ["Engines"]

_REDIAL_SECONDS = (0.05, 5.0)
_MISSED_MAX = 3
_TELL_SECONDS = 3_600.0
_State = pb.EngineStatus
_log = log.get()


class _StreamEnded(Exception):
    """The engine ended its stream in good order."""


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
        self._pins = settings.pin_batch_to_digest
        self._drained: Mapping[str, str] = {}
        self._removed: Mapping[str, str] = {}
        self.shut_out: set[str] = set()
        """Removed engines that go on registering."""
        self.standing: Mapping[str, str] = {}
        """The addresses of those that were added, by id: they are never forgotten."""
        self.forgot: Callable[[str], None] = lambda engine_id: None
        """Called with an engine that was removed and runs nothing any more."""
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
        """Take a registration or heartbeat that was checked; True when it should be remembered: new, or not told for long.

        Raises Conflict.
        """
        self.registered.set()
        now = self._clock.monotonic()
        entry = self._entries.get(engine.engine_id)
        same = entry is not None and entry.engine.incarnation == engine.incarnation
        if not same and self._removed.get(engine.engine_id) == engine.incarnation:
            self.shut_out.add(engine.engine_id)
            return False
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
            entry.replaced = same
            entry.running.cancel()
        _log.info("engine.registered", engine_id=engine.engine_id, incarnation=engine.incarnation, address=engine.address)
        self._entries[engine.engine_id] = new = Entry(engine, now, entry.status(now).ended if entry else 0)
        if entry is not None and same:
            new.draining, new.removing = entry.draining, entry.removing
        new.draining = new.draining or self._drained.get(engine.engine_id) == engine.incarnation
        self._connect(new)
        return True

    def _is_another(self, entry: Entry, engine: engine_pb2.Engine) -> bool:
        """Tell whether the engine that is known is alive beside one of the same name: they would take each other's rows away."""
        known = entry.engine
        return entry.alive and known.incarnation != engine.incarnation and known.address != engine.address

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
        return self.status(entry)

    def remove(self, engine_id: str) -> pb.EngineStatus:
        """Drain an engine, and forget it once it runs nothing. Raises NotFound."""
        status = self.drain(engine_id)
        entry = self._entries[engine_id]
        entry.removing = True
        self._end_removed(entry)
        return status

    def _end_removed(self, entry: Entry) -> bool:
        """Forget an engine that is to be removed, if nothing runs there."""
        if not (entry.removing and entry.idle):
            return False
        entry.replaced = True  # a row that is being made ready for it goes back
        if entry.running is not None:
            entry.running.cancel()
        engine_id = entry.engine.engine_id
        del self._entries[engine_id]
        _log.info("engine.removed", engine_id=engine_id)
        self.forgot(engine_id)
        return True

    def drained(self, incarnations: Mapping[str, str]) -> None:
        """Drain the engines that were to be drained: by another scheduler, or in an earlier life of this one."""
        self._drained = incarnations
        for engine_id, incarnation in incarnations.items():
            entry = self._entries.get(engine_id)
            if entry is not None and not entry.draining and entry.engine.incarnation == incarnation:
                self.drain(engine_id)

    def undrained(self, engine_ids: Iterable[str]) -> None:
        """Send these rows again, if they are drained."""
        for entry in filter(None, map(self._entries.get, engine_ids)):
            if entry.draining and not entry.removing:
                entry.draining = False
                if entry.link is not None:
                    entry.link.draining = False
                    entry.link.wake.set()

    def removed(self, incarnations: Mapping[str, str]) -> None:
        """Remove the engines that were to be removed, likewise."""
        self._removed = incarnations
        for engine_id, incarnation in incarnations.items():
            entry = self._entries.get(engine_id)
            if entry is not None and not entry.removing and entry.engine.incarnation == incarnation:
                self.remove(engine_id)

    def find(self, engine_id: str) -> Entry | None:
        """Look an engine up."""
        return self._entries.get(engine_id)

    def status(self, entry: Entry) -> pb.EngineStatus:
        """Tell how an engine is."""
        return entry.status(self._clock.monotonic(), standing=entry.engine.engine_id in self.standing)

    def serving(self) -> list[engine_pb2.Engine]:
        """List the engines whose models can be asked for: what is lost for a moment is waited for."""
        now = self._clock.monotonic()
        return [entry.engine for entry in self.entries() if not entry.draining and not entry.gone(now)]

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
            if entry.speed is not None:
                entry.speed.look(now)
            if self._end_removed(entry):
                continue
            if entry.state == _State.STATE_LOST:
                if entry.gone(now) and engine_id not in self.standing:
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
        link = Link(entry.engine, pins=self._pins)
        link.draining = entry.draining
        entry.link = link
        entry.speed = Speed(link.tokens, self._clock.monotonic())
        entry.state = _State.STATE_CONNECTING
        self._dispatcher.links.connect(link)
        call = engine_pb2_grpc.EngineServiceStub(channel).Run()
        in_order = False
        try:
            match await first_failure(self._read(entry, link, call), self._write(link, call)):
                case _StreamEnded():
                    in_order = True
                case (grpc.aio.AioRpcError() | asyncio.InvalidStateError() | grpc.aio.UsageError()) as error:
                    _log.warning(
                        "engine.stream_broke", engine_id=entry.engine.engine_id, error=first_line(error), active=link.active
                    )
                case error:  # whatever an engine does ends its stream only
                    _log.error("engine.stream_failed", engine_id=entry.engine.engine_id, exc_info=error)
        finally:
            call.cancel()
            entry.ended += link.ended
            if entry.link is link:  # else the engine came back before this stream had ended
                entry.link = entry.speed = None
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

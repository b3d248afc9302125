"""Which engines there are, for those who ask from outside: registrations, what operators say of engines, and calls that need one.

SQL has what operators said, and all schedulers follow it: told at once by the one that was asked, or by looking twice a second.

    add ──▶ asked how it is, for good ──remove──▶ forgotten
    registers ──▶ as long as it does ──remove──▶ forgotten, until another incarnation registers
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from haywain import aliases, errors, log
from haywain.clock import Clock
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from haywain.settings import SchedulerSettings
from services.scheduler.aliases import Aliases
from services.scheduler.calls import Call
from services.scheduler.dispatch import Dispatcher
from services.scheduler.engine_store import EngineStore, Known
from services.scheduler.engines import Engines
from services.scheduler.link import names_of
from services.scheduler.models import by_name, merged
from services.scheduler.others import Others, together
from services.scheduler.probes import Probes, ask, check

__all__ = ["Registry"]

_KEPT_SECONDS = 86_400.0
_COME_SECONDS = 3.0
_LOOK_SECONDS = 0.5
_ADD_SECONDS = _TELL_SECONDS = 5.0
_log = log.get()


class Registry:
    """The engines of the mesh: `Engines` has those of this scheduler's life, SQL what all schedulers know."""

    def __init__(
        self,
        settings: SchedulerSettings,
        engines: Engines,
        dispatcher: Dispatcher,
        store: EngineStore,
        others: Others,
        clock: Clock,
    ) -> None:
        """Nothing is read yet."""
        self._several = settings.replicas > 1
        self._engines = engines
        self._dispatcher = dispatcher
        self._store = store
        self._others = others
        self._clock = clock
        self._come_until = clock.monotonic() + (_COME_SECONDS if self._several else 0)
        self._turn = asyncio.Lock()
        """What was read of SQL is acted on before anybody writes there, and the other way round."""
        self._probes = Probes(settings.heartbeat_ms, self._probed)
        self.aliases = Aliases(settings.aliases)
        self._named: list[engine_pb2.Engine] = []
        """The engines that `_names` was made of."""
        self._names: Mapping[str, str] = {}
        engines.forgot = self._probes.drop
        engines.standing = self._probes.addresses

    async def load(self) -> None:
        """Know the engines of an earlier life, and what was to become of them."""
        known = await self._store.all()
        for one in known:
            if one.removed != one.engine.incarnation and (one.standing or one.seen_at > self._clock.now() - _KEPT_SECONDS):
                self._engines.remember(one.engine)
        self._follow(known)

    async def run(self) -> None:
        """Ask engines that were added how they are, and see what was said to other schedulers, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._probes.run())
            while self._several:
                await asyncio.sleep(_LOOK_SECONDS)
                try:
                    async with self._turn:
                        self._follow(await self._store.all())
                except errors.HaywainError as error:
                    _log.warning("engines.not_read", error=error.message)

    async def sweep(self) -> None:
        """Forget engines that nobody heard of for long; of removed ones that nobody hears of that they were removed."""
        shut_out, self._engines.shut_out = self._engines.shut_out, set()
        await self._store.keep(shut_out)
        await self._store.drop(self._clock.now() - _KEPT_SECONDS)

    async def close(self) -> None:
        """Hang up."""
        await self._others.close()

    # -- engines --------------------------------------------------------------------------------------------------------------

    async def register(self, engine: engine_pb2.Engine, load: engine_pb2.Load | None = None) -> None:
        """Take an engine's registration or heartbeat. Raises InvalidRequest, Conflict."""
        check(engine)
        if engine.engine_id not in self._probes.addresses:  # else it is asked, at the address that it was added with
            await self._take(engine, load)

    async def _probed(self, engine: engine_pb2.Engine, load: engine_pb2.Load | None) -> None:
        entry = self._engines.find(engine.engine_id)
        if entry is None or not entry.removing or entry.engine.incarnation == engine.incarnation:
            await self._take(engine, load)

    async def _take(self, engine: engine_pb2.Engine, load: engine_pb2.Load | None) -> None:
        news, entry = self._engines.register(engine), self._engines.find(engine.engine_id)
        if entry is not None:
            entry.load = load
        if news:
            await self._store.put(engine)

    async def add(self, address: str) -> pb.EngineStatus:
        """Know the engine at an address from now on, and send it rows. Raises Unavailable, InvalidRequest, Conflict."""
        kind, _, place = address.rpartition(":")
        if not place or not (address.startswith("unix:") or (kind and place.isdecimal() and "/" not in kind)):
            raise errors.InvalidRequest(
                f"'{address}' is no address of an engine: expected HOST:PORT or unix:/PATH", param="address"
            )
        engine = await ask(address, _ADD_SECONDS)
        check(engine)
        engine_id = engine.engine_id
        async with self._turn:
            entry = self._engines.find(engine_id)
            if entry is not None and entry.alive and self._probes.addresses.get(engine_id) != address:
                how = "was added" if engine_id in self._probes.addresses else "registers itself"
                raise errors.Conflict(f"The engine '{engine_id}' is there already: it {how} at {entry.engine.address}.")
            if entry is not None and entry.removing:
                raise errors.Conflict(f"The engine '{engine_id}' is being removed, and still runs what it has.")
            await self._store.add(engine)
            self._follow(await self._store.all())
            self._engines.register(engine)
        entry = self._engines.find(engine_id)
        return self._engines.status(entry) if entry is not None else _away(engine)

    async def drain(self, engine_id: str, *, local: bool) -> pb.EngineStatus:
        """Send an engine nothing more, and have the others, and this one's next life, do the same. Raises NotFound."""
        async with self._turn:
            status = self._engines.drain(engine_id)
            if not local:
                await self._store.drain(status.engine)
                self._follow(await self._store.all())
        request = pb.DrainEngineRequest(engine_id=engine_id, local=True)
        heard, _ = ([], []) if local else await self._others.ask("DrainEngine", request, _TELL_SECONDS)
        return together([status, *(answer.engine for answer in heard)])[0]

    async def remove(self, engine_id: str, *, local: bool) -> pb.EngineStatus:
        """Drain an engine and forget it, and have the others do the same. Raises NotFound."""
        async with self._turn:
            entry, standing = self._engines.find(engine_id), engine_id in self._probes.addresses
            engine = entry.engine if entry is not None else await self._stored(engine_id)
            if not local:
                await self._store.remove(engine)
                self._follow(await self._store.all())
            entry = self._engines.find(engine_id)
            status = self._engines.remove(engine_id) if entry is not None else _away(engine)
            status.standing = standing
        request = pb.RemoveEngineRequest(engine_id=engine_id, local=True)
        heard, _ = ([], []) if local else await self._others.ask("RemoveEngine", request, _TELL_SECONDS)
        return together([status, *(answer.engine for answer in heard)])[0]

    async def _stored(self, engine_id: str) -> engine_pb2.Engine:
        known = await self._store.get(engine_id)
        if known is None:
            raise errors.NotFound(f"No engine found with id '{engine_id}'.")
        return known.engine

    async def listing(self, *, local: bool) -> pb.ListEnginesResponse:
        """List the engines, with what all schedulers have at them."""
        mine = [self._engines.status(entry) for entry in self._engines.entries()]
        heard, silent = ([], []) if local else await self._others.ask("ListEngines", pb.ListEnginesRequest(local=True))
        return pb.ListEnginesResponse(
            engines=together([*mine, *(one for answer in heard for one in answer.engines)]), silent=silent
        )

    def _follow(self, known: Iterable[Known]) -> None:
        """Do what operators said."""
        known = list(known)
        standing = {one.engine_id: one.standing for one in known if one.standing}
        self._engines.removed({one.engine_id: one.removed for one in known if one.removed is not None})
        for engine_id in list(self._probes.addresses):
            entry = self._engines.find(engine_id)
            if engine_id not in standing and (entry is None or not entry.removing):
                self._probes.drop(engine_id)
        for engine_id, address in standing.items():
            self._probes.put(engine_id, address)
        drained = {one.engine_id: one.drained for one in known if one.drained}
        self._engines.undrained(standing.keys() - drained.keys())
        self._engines.drained(drained)

    # -- models ---------------------------------------------------------------------------------------------------------------

    def models(self) -> Iterable[engine_pb2.ModelDescription]:
        """List the models that are served."""
        return self.aliases.told(merged(self._engines.serving()))

    def names(self) -> Mapping[str, str]:
        """Give the ids of these models by every name of theirs: made anew when engines came or went, since each row may ask."""
        engines = self._engines.serving()
        if len(engines) != len(self._named) or any(one is not other for one, other in zip(engines, self._named, strict=True)):
            self._named, self._names = engines, by_name(self.aliases.told(merged(engines)))
        return self._names

    def called(self, request: pb.CompleteRequest) -> Call:
        """Make a call of a request, which may name an alias."""
        name, table = request.model, self.aliases.table
        if table:
            ids = {model.model for engine in self._engines.serving() for model in engine.models} if name in table else ()
            request.model = self.aliases.model(name, ids)
            request.request = self.aliases.body(request.request, request.model)
        call = Call(request)
        call.asked = name
        return call

    async def reach(self, call: Call) -> None:
        """Give engines a moment to find a scheduler that has just started beside another that has them all."""
        serves = self._dispatcher.links.serves
        while not serves(call.key) and self._clock.monotonic() < self._come_until:  # noqa: ASYNC110 - a link tells nobody
            await asyncio.sleep(0.05)

    def call(self, call: Call) -> None:
        """Queue an interactive request. Raises ModelMissing, InvalidRequest, Unavailable, CapacityExceeded."""
        if not self._dispatcher.links.serves(call.key):
            raise self._no_engine(call)
        self._dispatcher.call(call)

    def _no_engine(self, call: Call) -> errors.HaywainError:
        model, endpoint = call.request.model, call.request.endpoint
        known = [names_of(engine).get(model) for engine in self._engines.serving()]
        found = [description for description in known if description is not None]
        if not found:
            return errors.ModelMissing(aliases.missing(call.asked, self.aliases.table), param="model")
        if not any(not description.endpoints or endpoint in description.endpoints for description in found):
            return errors.InvalidRequest(f"The model '{call.asked}' does not serve {endpoint}.", param="model")
        return errors.Unavailable(f"No engine that serves the model '{call.asked}' is connected.", retry_after=1)


def _away(engine: engine_pb2.Engine) -> pb.EngineStatus:
    return pb.EngineStatus(engine=engine, state=pb.EngineStatus.STATE_LOST)

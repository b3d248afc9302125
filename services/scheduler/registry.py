"""Which engines there are, for those who ask from outside: registrations, drains, and calls that need one; SQL remembers them."""

from __future__ import annotations

import asyncio

from haywain import errors
from haywain.clock import Clock
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from services.scheduler.calls import Call
from services.scheduler.dispatch import Dispatcher
from services.scheduler.engines import Engines
from services.scheduler.link import names_of
from services.scheduler.shared import Shared
from services.scheduler.store import Store

__all__ = ["Registry"]

_KEPT_SECONDS = 86_400.0
_COME_SECONDS = 3.0


class Registry:
    """The engines of the mesh: `Engines` has those of this scheduler's life, SQL what all schedulers know."""

    def __init__(
        self, engines: Engines, dispatcher: Dispatcher, store: Store, shared: Shared, clock: Clock, *, alone: bool
    ) -> None:
        """Nothing is read yet."""
        self._engines = engines
        self._dispatcher = dispatcher
        self._store = store
        self._shared = shared
        self._clock = clock
        self._come_until = clock.monotonic() + (0 if alone else _COME_SECONDS)

    async def load(self) -> None:
        """Know the engines of an earlier life, and what was to become of them."""
        for engine in await self._store.engines(self._clock.now() - _KEPT_SECONDS):
            self._engines.remember(engine)
        self._engines.drained(await self._shared.drained())

    async def sweep(self) -> None:
        """Forget engines that nobody heard of for long."""
        await self._shared.drop_engines(self._clock.now() - _KEPT_SECONDS)

    async def register(self, engine: engine_pb2.Engine) -> None:
        """Take an engine's registration or heartbeat."""
        if self._engines.register(engine):
            await self._store.put_engine(engine, self._clock.now())

    async def drain(self, engine_id: str) -> pb.EngineStatus:
        """Send an engine nothing more, and have the others, and this one's next life, do the same. Raises NotFound."""
        status = self._engines.drain(engine_id)
        await self._shared.drain(status.engine)
        return status

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
        model, endpoint, _ = call.key
        known = [names_of(entry.engine).get(model) for entry in self._engines.entries() if not entry.draining]
        found = [description for description in known if description is not None]
        if not found:
            return errors.ModelMissing(f"The model '{model}' does not exist or is not served now.", param="model")
        if not any(not description.endpoints or endpoint in description.endpoints for description in found):
            return errors.InvalidRequest(f"The model '{model}' does not serve {endpoint}.", param="model")
        return errors.Unavailable(f"No engine that serves the model '{model}' is connected.", retry_after=1)

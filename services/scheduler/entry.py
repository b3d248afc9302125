"""One engine as this scheduler knows it."""

from __future__ import annotations

import asyncio

from haywain.clock import timestamp
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2 as pb
from services.scheduler.link import Link
from services.scheduler.speed import Speed

__all__ = ["Entry"]

_FORGET_SECONDS = 60.0
"""A lost engine's models stay known for so long: an engine that restarts makes no batch fail."""
_State = pb.EngineStatus


class Entry:
    """An incarnation, its state, and its stream while there is one."""

    def __init__(self, engine: engine_pb2.Engine, now: float, ended: int = 0) -> None:
        """`ended` is carried over from its life before."""
        self.engine = engine
        self.state: pb.EngineStatus.State = _State.STATE_CONNECTING
        self.seen = self.told = now
        self.load: engine_pb2.Load | None = None
        """As it said itself."""
        self.link: Link | None = None
        self.speed: Speed | None = None
        """Of the link."""
        self.draining = False
        self.removing = False
        """It is forgotten as soon as nothing of it runs."""
        self.replaced = False
        """The stream was ended from here, or the same incarnation described itself anew: nothing died."""
        self.ended = ended
        self.running: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Tell whether it has spoken and is not lost."""
        return self.link is not None and self.link.ready and self.state != _State.STATE_LOST

    @property
    def idle(self) -> bool:
        """Tell whether nothing is at it."""
        return self.link is None or not self.link.active

    def gone(self, now: float) -> bool:
        """Tell whether it was lost so long ago that nobody waits for it."""
        return self.state == _State.STATE_LOST and now - self.seen > _FORGET_SECONDS

    def status(self, now: float, *, standing: bool = False) -> pb.EngineStatus:
        """Make the message."""
        link, breaker = self.link, self.link.breaker if self.link else None
        quarantined = breaker is not None and breaker.quarantined
        given, cached, output = self.speed.rates(now) if self.speed is not None else (0.0, 0.0, 0.0)
        return pb.EngineStatus(
            engine=self.engine,
            state=self._state(quarantined=quarantined),
            active=link.active if link else 0,
            credits=link.credits if link else 0,
            ended=self.ended + (link.ended if link else 0),
            standing=standing,
            input_tokens_per_second=given,
            cached_tokens_per_second=cached,
            output_tokens_per_second=output,
            quarantine_reason=breaker.why if breaker else "",
            quarantine_until_time=timestamp(breaker.until_time) if breaker and quarantined else None,
            slow=link.slow if link else False,
            load=None if self.state == _State.STATE_LOST else self.load,
        )

    def _state(self, *, quarantined: bool) -> pb.EngineStatus.State:
        if self.state != _State.STATE_READY:
            return self.state
        return _State.STATE_DRAINING if self.draining else _State.STATE_QUARANTINED if quarantined else _State.STATE_READY

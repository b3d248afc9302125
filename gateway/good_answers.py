"""Telling batches which creations were answered well, so that their batches begin: in passing, and many at a time.

Nothing depends on it but how soon they do (services/batches/held.py). A moment goes by first: the answer leaves this process, and
others come along; a longer one while several do.
"""

from __future__ import annotations

import asyncio

from gateway.answer import TENANT
from gateway.peers import Peer
from haywain import errors, log, rpc
from haywain.batches.v1 import batches_pb2

__all__ = ["GoodAnswers"]

TOGETHER_SECONDS, MANY_SECONDS = 0.02, 0.1
TELL_SECONDS = 5.0
MOST = 4_096
"""Those beyond begin ten seconds later."""
_log = log.get()


class GoodAnswers:
    """The request ids that are to be told of."""

    def __init__(self, batches: Peer) -> None:
        """Take who is told."""
        self._batches = batches
        self._ids: list[str] = []
        self._telling: asyncio.Task[None] | None = None

    def add(self, request_id: str) -> None:
        """Tell of this one, soon."""
        if len(self._ids) < MOST:
            self._ids.append(request_id)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        pause = TOGETHER_SECONDS
        while self._ids:
            await asyncio.sleep(pause)
            pause = MANY_SECONDS if len(self._ids) > 1 else TOGETHER_SECONDS
            (first, *also), self._ids = self._ids, []
            request = batches_pb2.AnswerCreationRequest(request_id=first, also=also, tenant=TENANT)
            try:
                await rpc.call(self._batches.stub.AnswerCreation, request, timeout=TELL_SECONDS, tenant=TENANT)
            except errors.HaywainError as error:
                _log.info("creations.untold", count=1 + len(also), reason=error.reason())

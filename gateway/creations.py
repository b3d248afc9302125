"""Creations that come at about the same time go to batches in one call; each has an outcome of its own.

Those that are waited for go alone: with records that are validated first, or a key that another request may be using.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from gateway.creation import MAX_WAIT_SECONDS
from gateway.peers import Peer
from haywain import errors
from haywain.batches.v1 import batches_pb2
from haywain.gather import Gathered
from haywain.status import unpacked

__all__ = ["Creations"]

CREATE_SECONDS = MAX_WAIT_SECONDS + 30.0
_AT_ONCE = 2
_Created = batches_pb2.CreateBatchResponse


class Creations:
    """Calls CreateBatch, or CreateBatches."""

    def __init__(self, batches: Peer) -> None:
        """Take the service that owns the batches."""
        self._batches = batches
        self._together: Gathered[batches_pb2.Creation, _Created] = Gathered(self._create, at_once=_AT_ONCE)

    async def __call__(self, request: batches_pb2.CreateBatchRequest) -> _Created:
        """Create a batch. Raises what the service raised, Unavailable, DeadlineExceeded."""
        if request.inline_input or request.wait_seconds or request.HasField("idempotency"):
            return await self._alone(request)
        http_request_id = str(structlog.contextvars.get_contextvars().get("request_id", ""))
        return await self._together(batches_pb2.Creation(request=request, http_request_id=http_request_id))

    async def _alone(self, request: batches_pb2.CreateBatchRequest) -> _Created:
        created: _Created = await self._batches.ask(self._batches.stub.CreateBatch, request, timeout=CREATE_SECONDS)
        return created

    async def _create(self, creations: list[batches_pb2.Creation]) -> Sequence[_Created | BaseException]:
        if len(creations) == 1:
            with structlog.contextvars.bound_contextvars(request_id=creations[0].http_request_id):
                return [await self._alone(creations[0].request)]
        request = batches_pb2.CreateBatchesRequest(creations=creations)
        answer = await self._batches.ask(self._batches.stub.CreateBatches, request, timeout=CREATE_SECONDS)
        return [_outcome(one) for one in answer.outcomes]


def _outcome(outcome: batches_pb2.CreationOutcome) -> _Created | BaseException:
    if outcome.HasField("created"):
        return outcome.created
    return unpacked(outcome.error) or errors.HaywainError()

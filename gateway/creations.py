"""Creations that come at about the same time go to batches in one call; each has an outcome of its own.

Those that are waited for go alone: with records that are validated first, or a key that another request may be using. So do
those that are larger than good ones are: together they could be more than a call takes, and fail the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from gateway.creation import MAX_WAIT_SECONDS
from gateway.peers import TRIES, Peer
from haywain import errors
from haywain.batches.v1 import batches_pb2
from haywain.gather import Gathered
from haywain.status import unpacked

__all__ = ["Creations"]

CREATE_SECONDS = MAX_WAIT_SECONDS + 30.0
_AT_ONCE = 2
_SHARING_BYTES = 65_536
_Created = batches_pb2.CreateBatchResponse


class Creations:
    """Calls CreateBatch, or CreateBatches."""

    def __init__(self, batches: Peer) -> None:
        """Take the service that owns the batches."""
        self._batches = batches
        self._together: Gathered[batches_pb2.Creation, _Created] = Gathered(self._create, at_once=_AT_ONCE)

    async def __call__(self, request: batches_pb2.CreateBatchRequest) -> _Created:
        """Create a batch. Raises what the service raised, Unavailable, DeadlineExceeded."""
        waited_for = request.inline_input or request.wait_seconds or request.HasField("idempotency")
        if waited_for or request.ByteSize() > _SHARING_BYTES:
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
        certain, left = True, TRIES

        async def create(request: batches_pb2.CreateBatchesRequest, **options: Any) -> list[_Created | errors.HaywainError]:
            """Try it. As for one alone, who is told of a peer that is away asks again, and `undone` speaks for all tries."""
            nonlocal certain, left
            before, certain, left = certain, False, left - 1
            outcomes = [_outcome(one) for one in (await self._batches.stub.CreateBatches(request, **options)).outcomes]
            refusals = [outcome for outcome in outcomes if isinstance(outcome, errors.HaywainError)]
            for error in refusals:
                error.undone = before and error.undone is True
            away = [error for error in refusals if type(error) is errors.Unavailable]
            if left and away:
                certain = away[0].undone = len(refusals) == len(outcomes) and all(error.undone for error in refusals)
                raise away[0]
            return outcomes

        request = batches_pb2.CreateBatchesRequest(creations=creations)
        told: Sequence[_Created | BaseException] = await self._batches.ask(create, request, timeout=CREATE_SECONDS)
        return told


def _outcome(outcome: batches_pb2.CreationOutcome) -> _Created | errors.HaywainError:
    if outcome.HasField("created"):
        return outcome.created
    return unpacked(outcome.error) or errors.HaywainError()

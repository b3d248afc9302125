"""/v1/chat/completions: one request relayed to an engine, as one JSON body or as server-sent events.

The engine makes the bodies; here bytes are framed. An error before the first event gets its status; after it the status is gone and
the error travels as an event.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from google.api import httpbody_pb2

from gateway import envelope
from gateway.answer import TENANT, Context, json_body
from gateway.body import decoded, type_error
from gateway.models import Models
from gateway.peers import Peer
from gateway.query import parameters
from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2

__all__ = ["Chat"]

ENDPOINT = "/v1/chat/completions"
_DONE = httpbody_pb2.HttpBody(data=b"data: [DONE]\n\n")
_EVENTS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


class Chat:
    """The chat route."""

    def __init__(self, scheduler: Peer, models: Models, timeout_seconds: float) -> None:
        """`timeout_seconds` is for a whole answer."""
        self._scheduler = scheduler
        self._models = models
        self._timeout_seconds = timeout_seconds

    async def complete(self, body: httpbody_pb2.HttpBody, context: Context) -> AsyncGenerator[httpbody_pb2.HttpBody, None]:
        """Run the request now."""
        parameters(context)
        members = await decoded(body.data)
        model, stream = await self._checked(members)
        request = scheduler_pb2.CompleteRequest(tenant=TENANT, endpoint=ENDPOINT, model=model, request=body.data, stream=stream)
        await self._scheduler.connected()
        method = self._scheduler.stub.Complete
        events = rpc.stream(method, request, timeout=self._timeout_seconds, tenant=TENANT)
        async with (
            contextlib.aclosing(events),
            contextlib.aclosing(_events(events, context) if stream else _whole(events, context)) as answer,
        ):
            async for part in answer:
                yield part

    async def _checked(self, members: dict[str, Any]) -> tuple[str, bool]:
        """Tell model and `stream`. Raises InvalidRequest for what the model's engines don't honour, ModelMissing."""
        name, stream = members.get("model"), members.get("stream")
        if name is None:
            raise errors.InvalidRequest("Missing required parameter: 'model'.", code="missing_required_parameter", param="model")
        if not isinstance(name, str):
            raise type_error("model", "a string", name)
        if not isinstance(stream, bool | None):
            raise type_error("stream", "a boolean", stream)
        model = await self._models.find(name)
        if model.endpoints and ENDPOINT not in model.endpoints:
            raise errors.InvalidRequest(
                f"The model '{name}' does not serve {ENDPOINT}.", code="unsupported_endpoint", param="model"
            )
        for field, value in members.items():
            asked = value is not None and value is not False and field not in {"model", "messages"}
            if asked and model.fields and field not in model.fields:
                raise errors.InvalidRequest(
                    f"Unsupported parameter: '{field}' is not supported with this model.", code="unsupported_parameter", param=field
                )
        return model.model, bool(stream)


async def _whole(
    events: AsyncIterator[scheduler_pb2.CompleteResponse], context: Context
) -> AsyncGenerator[httpbody_pb2.HttpBody, None]:
    async for event in events:
        if event.WhichOneof("event") == "result":
            await context.send_initial_metadata(_headers(event.result))
            yield json_body(event.result.body)
            return
    raise errors.Unavailable(retry_after=1)


async def _events(
    events: AsyncIterator[scheduler_pb2.CompleteResponse], context: Context
) -> AsyncGenerator[httpbody_pb2.HttpBody, None]:
    begun = False
    try:
        async for event in events:
            if event.WhichOneof("event") == "delta":
                if not begun:
                    await context.send_initial_metadata(_EVENTS)
                yield _event(event.delta.body, first=not begun)
                begun = True
                continue
            if event.result.status_code == 200:
                if not begun:
                    await context.send_initial_metadata(_EVENTS)
                    yield _event(b"", first=True)
                yield _DONE
            elif begun:
                yield _event(event.result.body)
            else:
                await context.send_initial_metadata(_headers(event.result))
                yield json_body(event.result.body)
            return
        raise errors.Unavailable(retry_after=1)
    except errors.HaywainError as error:
        if not begun:
            raise
        yield _event(envelope.envelope(error))


def _event(body: bytes, *, first: bool = False) -> httpbody_pb2.HttpBody:
    data = b"data: %b\n\n" % body if body else b""
    return httpbody_pb2.HttpBody(content_type="text/event-stream" if first else "", data=data)


def _headers(result: engine_pb2.SequenceResult) -> tuple[tuple[str, str], ...]:
    pairs = [("x-content-length", str(len(result.body)))]
    if result.status_code != 200:
        pairs.append(("x-http-status", str(result.status_code or 500)))
        if result.status_code in {429, 503}:
            pairs.append(("retry-after", "1"))
    return tuple(pairs)

"""/v1/chat/completions, /v1/completions, /v1/embeddings: a request relayed to an engine, answered by one JSON body or by events.

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
from gateway.leases import lease_named
from gateway.models import Models
from gateway.patience import Waiting, patient
from gateway.peers import Peer
from gateway.query import parameters
from haywain import errors, openai, rpc
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2
from haywain.settings import GatewaySettings

__all__ = ["CHAT", "COMPLETIONS", "EMBEDDINGS", "Completions"]

CHAT, COMPLETIONS, EMBEDDINGS = openai.ENDPOINTS
_FIELDS = {CHAT: openai.CHAT_FIELDS, COMPLETIONS: openai.COMPLETION_FIELDS, EMBEDDINGS: openai.EMBEDDING_FIELDS}
_KNOWN = frozenset().union(*_FIELDS.values())
_PROMPTS = frozenset({"model", "messages", "prompt", "input"})
"""what a request is about: engines don't list it among the fields that they honour"""
_DONE = httpbody_pb2.HttpBody(data=b"data: [DONE]\n\n")
_STILL_HERE = b": waiting\n\n"
_EVENTS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))

Answer = AsyncGenerator[httpbody_pb2.HttpBody, None]


class Completions:
    """The three routes."""

    def __init__(self, scheduler: Peer, models: Models, settings: GatewaySettings) -> None:
        """Take the service that has the engines."""
        self._scheduler = scheduler
        self._models = models
        self._settings = settings

    async def create(self, endpoint: str, body: httpbody_pb2.HttpBody, context: Context) -> Answer:
        """Run the request now."""
        parameters(context)
        model, stream = await self._checked(endpoint, await decoded(body.data))
        request = scheduler_pb2.CompleteRequest(
            tenant=TENANT, endpoint=endpoint, model=model, request=body.data, stream=stream, lease_id=lease_named(context)
        )
        await self._scheduler.connected()
        method = self._scheduler.stub.Complete
        events = rpc.stream(method, request, timeout=self._settings.completion_timeout_seconds, tenant=TENANT)
        quiet = self._settings.event_keepalive_seconds
        answer = _events(patient(events, quiet), context) if stream else _whole(events, context)
        async with contextlib.aclosing(events), contextlib.aclosing(answer):
            async for part in answer:
                yield part

    async def _checked(self, endpoint: str, members: dict[str, Any]) -> tuple[str, bool]:
        """Tell model and `stream`. Raises InvalidRequest for what the model's engines don't honour, ModelMissing."""
        name, stream = members.get("model"), members.get("stream")
        if name is None:
            raise errors.InvalidRequest("Missing required parameter: 'model'.", code="missing_required_parameter", param="model")
        if not isinstance(name, str):
            raise type_error("model", "a string", name)
        if not isinstance(stream, bool | None):
            raise type_error("stream", "a boolean", stream)
        model = await self._models.find(name)
        if model.endpoints and endpoint not in model.endpoints:
            raise errors.InvalidRequest(
                f"The model '{name}' does not serve {endpoint}.", code="unsupported_endpoint", param="model"
            )
        mine = _FIELDS[endpoint]
        for field, value in members.items():
            if openai.asks_for_nothing(field, value) or field in mine & _PROMPTS:
                continue
            if field in _KNOWN - mine:
                message = f"Unsupported parameter: '{field}' is not supported by {endpoint}."
                raise errors.InvalidRequest(message, code="unsupported_parameter", param=field)
            if model.fields and field not in model.fields:
                message = f"Unsupported parameter: '{field}' is not supported with this model."
                raise errors.InvalidRequest(message, code="unsupported_parameter", param=field)
        return model.model, bool(stream)


async def _whole(events: AsyncIterator[scheduler_pb2.CompleteResponse], context: Context) -> Answer:
    async for event in events:
        if event.WhichOneof("event") == "result":
            await context.send_initial_metadata(_headers(event.result))
            yield json_body(event.result.body)
            return
    raise errors.Unavailable(retry_after=1)


async def _events(events: AsyncIterator[scheduler_pb2.CompleteResponse | Waiting], context: Context) -> Answer:
    begun = False
    try:
        async for event in events:
            if isinstance(event, Waiting) or event.WhichOneof("event") == "delta":
                if not begun:
                    await context.send_initial_metadata(_EVENTS)
                yield _event(_STILL_HERE if isinstance(event, Waiting) else _data(event.delta.body), first=not begun)
                begun = True
                continue
            if event.result.status_code == 200:
                if not begun:
                    await context.send_initial_metadata(_EVENTS)
                    yield _event(b"", first=True)
                yield _DONE
            elif begun:
                yield _event(_data(event.result.body))
            else:
                await context.send_initial_metadata(_headers(event.result))
                yield json_body(event.result.body)
            return
        raise errors.Unavailable(retry_after=1)
    except errors.HaywainError as error:
        if not begun:
            raise
        yield _event(_data(envelope.envelope(error)))


def _data(body: bytes) -> bytes:
    return b"data: %b\n\n" % body


def _event(data: bytes, *, first: bool = False) -> httpbody_pb2.HttpBody:
    return httpbody_pb2.HttpBody(content_type="text/event-stream" if first else "", data=data)


def _headers(result: engine_pb2.SequenceResult) -> tuple[tuple[str, str], ...]:
    pairs = [("x-content-length", str(len(result.body)))]
    if result.status_code != 200:
        pairs.append(("x-http-status", str(result.status_code or 500)))
        if result.status_code in {429, 503}:
            pairs.append(("retry-after", "1"))
    return tuple(pairs)

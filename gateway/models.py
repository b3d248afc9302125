"""/v1/models: what the engines serve now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec
from google.api import httpbody_pb2

from gateway.answer import Context, json_body
from gateway.peers import Peer
from gateway.query import parameters
from haywain import errors
from haywain.aliases import missing
from haywain.engine.v1 import engine_pb2
from haywain.scheduler.v1 import scheduler_pb2

__all__ = ["ModelObject", "Models"]

FRESH_SECONDS, MISSING_SECONDS = 1.0, 0.1


class ModelObject(msgspec.Struct, kw_only=True):
    """A model as clients see it; `created` is 0 when nobody knows."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str

    @classmethod
    def of(cls, model: engine_pb2.ModelDescription) -> ModelObject:
        """Make from an engine's description."""
        return cls(id=model.model, created=model.create_time.seconds, owned_by=model.owned_by or "haywain")


class ModelList(msgspec.Struct, kw_only=True):
    """All models; there are no pages."""

    object: Literal["list"] = "list"
    data: list[ModelObject]


class Models:
    """The model routes, and the lookup of a request's model."""

    def __init__(
        self, scheduler: Peer, monotonic: Callable[[], float] = time.monotonic, *, aliases: Mapping[str, str] | None = None
    ) -> None:
        """Take the service that knows the engines and applies the operator's `aliases`."""
        self._aliases = aliases or {}
        self._scheduler = scheduler
        self._monotonic = monotonic
        self._known: dict[str, engine_pb2.ModelDescription] = {}
        self._known_at = float("-inf")
        self._asking = asyncio.Lock()

    async def listing(self, context: Context) -> httpbody_pb2.HttpBody:
        """Answer all."""
        parameters(context)
        return json_body(ModelList(data=[ModelObject.of(model) for model in await self._ask()]))

    async def get(self, model: str, context: Context) -> httpbody_pb2.HttpBody:
        """Describe one; the id may hold slashes."""
        parameters(context)
        await self._ask()
        return json_body(ModelObject.of(self._found(model)))

    async def find(self, model: str) -> engine_pb2.ModelDescription:
        """Look a model up by its id or an alias; up to a second old, less for one that wasn't there. Raises ModelMissing."""
        if self._is_stale(model):
            async with self._asking:  # a thousand requests that find it stale ask once
                if self._is_stale(model):
                    await self._ask()
        return self._found(model)

    def _is_stale(self, model: str) -> bool:
        return self._monotonic() - self._known_at > (FRESH_SECONDS if model in self._known else MISSING_SECONDS)

    def _found(self, model: str) -> engine_pb2.ModelDescription:
        if model not in self._known:
            raise errors.ModelMissing(missing(model, self._aliases), param="model")
        return self._known[model]

    async def _ask(self) -> list[engine_pb2.ModelDescription]:
        answer = await self._scheduler.ask(self._scheduler.stub.ListModels, scheduler_pb2.ListModelsRequest())
        models: list[engine_pb2.ModelDescription] = [*answer.models]
        self._known = {name: model for model in models for name in model.aliases} | {model.model: model for model in models}
        self._known_at = self._monotonic()
        return models

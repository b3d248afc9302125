"""The models served, one description each whatever the number of engines."""

from __future__ import annotations

from collections.abc import Iterable

from haywain.engine.v1 import engine_pb2
from haywain.openai import ENDPOINTS

__all__ = ["by_name", "merged"]


def by_name(models: Iterable[engine_pb2.ModelDescription]) -> dict[str, str]:
    """Tell the model's id for every name that means it; an id wins over an alias."""
    told = list(models)
    return {alias: model.model for model in told for alias in model.aliases} | {model.model: model.model for model in told}


def merged(engines: Iterable[engine_pb2.Engine]) -> list[engine_pb2.ModelDescription]:
    """Merge what engines say of the same model: only what all of them honour and promise, by model id."""
    found: dict[str, list[engine_pb2.ModelDescription]] = {}
    for engine in engines:
        for model in engine.models:
            found.setdefault(model.model, []).append(model)
    return [_merge(models) for _, models in sorted(found.items())]


def _merge(models: list[engine_pb2.ModelDescription]) -> engine_pb2.ModelDescription:
    first = models[0]
    lists = [frozenset(model.fields) for model in models if model.fields]
    fields = frozenset.intersection(*lists) if lists else frozenset()
    endpoints = {endpoint for model in models for endpoint in model.endpoints or ENDPOINTS}
    return engine_pb2.ModelDescription(
        model=first.model,
        aliases=sorted({alias for model in models for alias in model.aliases}),
        digest=first.digest,
        context_length=min((model.context_length for model in models if model.context_length), default=0),
        endpoints=sorted(endpoints),
        fields=sorted(fields),
        deterministic=any(model.deterministic for model in models),  # a row that needs it goes to one that can
        create_time=first.create_time,
        owned_by=first.owned_by,
    )

"""Other names for models, chosen by the operator: `scheduler.aliases`, from an alias to a model's id."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["check", "missing"]


def check(aliases: Mapping[str, str]) -> None:
    """Raise ValueError for aliases that can't be: each must lead to a model in one step."""
    for alias, model in aliases.items():
        if not alias or not model:
            raise ValueError(f"the alias '{alias}' stands for '{model}': both must be names")
        if alias == model:
            raise ValueError(f"the alias '{alias}' stands for itself")
        if model in aliases:
            raise ValueError(f"the alias '{alias}' stands for '{model}', which is an alias itself: name the model")


def missing(model: str, aliases: Mapping[str, str]) -> str:
    """Say that nobody serves what a request asks for."""
    if model in aliases:
        return f"The model '{model}' is an alias of '{aliases[model]}', which does not exist or is not served now."
    return f"The model '{model}' does not exist or is not served now."

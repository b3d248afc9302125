"""The operator's aliases at work: what requests name, models told with them, and bodies that name the model itself.

An engine never hears of them: what a backend passes on (to a server of its own, say) must name a model that is known there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from haywain.engine.v1 import engine_pb2
from services.scheduler.models import by_name

__all__ = ["Aliases"]


class _Asked(msgspec.Struct):
    model: Any = None


_asked = msgspec.json.Decoder(_Asked)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Aliases:
    """A model's id wins over an alias of the same name."""

    def __init__(self, table: Mapping[str, str]) -> None:
        """`table` leads from an alias to a model's id, or to an alias that its engine tells."""
        self.table = table

    def model(self, name: str, models: Collection[str]) -> str:
        """Tell what is meant by a name; `models` are the ids that are served."""
        return name if name in models else self.table.get(name, name)

    def body(self, body: bytes, model: str) -> bytes:
        """Have a body that names an alias name the model that it goes to."""
        if not self.table:
            return body
        try:
            name = _asked.decode(body).model
            if name == model or type(name) is not str or name not in self.table:
                return body
            members = _members.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # the engine says what is wrong with it
            return body
        members["model"] = msgspec.Raw(msgspec.json.encode(model))
        return msgspec.json.encode(members)

    def told(self, models: Sequence[engine_pb2.ModelDescription]) -> Sequence[engine_pb2.ModelDescription]:
        """Add the aliases to the descriptions of their models, which are changed."""
        ids = by_name(models)
        for alias, target in self.table.items():
            if target not in ids or ids.get(alias) == alias:
                continue
            for model in models:
                if (alias in model.aliases) != (meant := model.model == ids[target]):
                    model.aliases[:] = sorted({*model.aliases, alias} if meant else {*model.aliases} - {alias})
        return models

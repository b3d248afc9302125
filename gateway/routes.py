"""The routes, as the proto's `google.api.http` annotations have them: the table behind Envoy's 405s and the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from google.api import annotations_pb2

from haywain.gateway.v1 import gateway_pb2

__all__ = ["ROUTES", "Route", "lua_table"]

_METHODS = ("GET", "HEAD", "POST", "DELETE")
_VARIABLE = re.compile(r"\{([a-z_]+)(=\*\*)?\}")


class Route(msgspec.Struct, frozen=True):
    """A method on a path, and the RPC that answers it."""

    method: str
    template: str
    """as in the proto: `/v1/models/{model=**}`"""
    rpc: str

    @property
    def path(self) -> str:
        """The template without its patterns: `/v1/models/{model}`."""
        return _VARIABLE.sub(r"{\1}", self.template)

    @property
    def variables(self) -> list[str]:
        """The names in the path."""
        return [match[1] for match in _VARIABLE.finditer(self.template)]

    @property
    def lua_pattern(self) -> str:
        """What matches paths of this route, as a Lua pattern."""
        if self.template == "/":
            return "^/?$"  # slashes at the end are cut before
        pieces = _VARIABLE.split(self.template)
        # split gives text, name, `=**` or None, text, …
        escaped = [re.sub(r"([^A-Za-z0-9/_])", r"%\1", text) for text in pieces[::3]]
        several = [".+" if suffix else "[^/]+" for suffix in pieces[2::3]]
        return f"^{''.join(text + (several[at] if at < len(several) else '') for at, text in enumerate(escaped))}$"


def _annotated() -> Iterator[Route]:
    for method in gateway_pb2.DESCRIPTOR.services_by_name["OpenAIService"].methods:
        options: Any = method.GetOptions()
        rule = options.Extensions[annotations_pb2.http]
        for one in (rule, *rule.additional_bindings):
            kind = str(one.WhichOneof("pattern"))
            verb, template = (one.custom.kind, one.custom.path) if kind == "custom" else (kind.upper(), getattr(one, kind))
            yield Route(verb, template, method.name)


ROUTES = tuple(_annotated())


def lua_table() -> str:
    """Write the paths and their methods as members of a Lua table, in the order of the proto."""
    methods: dict[str, list[str]] = {}
    for route in ROUTES:
        methods.setdefault(route.lua_pattern, []).append(route.method)
    listed = {pattern: ", ".join(sorted(known, key=_METHODS.index)) for pattern, known in methods.items()}
    return "\n".join(f'  {{ "{pattern}", "{known}" }},' for pattern, known in listed.items())

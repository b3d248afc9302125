"""/openapi.json: routes from the proto, bodies from the structs that are sent, as an OpenAPI 3.1 document."""

from __future__ import annotations

import functools
import http
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.operations import EVENTS, OPERATIONS, Operation
from gateway.routes import ROUTES, Route
from haywain import __version__, openai

__all__ = ["document"]

_TEMPLATE = "#/components/schemas/{name}"
_REQUEST_ID = {"x-request-id": {"description": "What the logs call this request.", "schema": {"type": "string"}}}


@functools.cache
def document() -> bytes:
    """Make the document."""
    schemas, components = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, OPERATIONS[route.rpc], schemas)
    return openai.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Haywain",
                "version": __version__,
                "summary": "Batch inference: OpenAI's Batch API and what goes with it.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "tags": [{"name": name} for name in dict.fromkeys(operation.tag for operation in OPERATIONS.values())],
            "paths": paths,
            "components": {"schemas": components, "responses": {"Error": _error(schemas)}},
        }
    )


def _operation(route: Route, operation: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    summary, _, more = operation.summary.partition(". ")
    made: dict[str, Any] = {
        "operationId": _name(route),
        "tags": [operation.tag],
        "summary": summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.variables),
            *(
                {"name": one.name, "in": one.place, "description": one.what, "schema": schemas[one.type]}
                for one in operation.parameters
            ),
        ],
        "responses": {
            str(status): _answer(status, bodies, operation, schemas, head=route.method == "HEAD")
            for status, bodies in operation.answers.items()
        }
        | {"4XX": {"$ref": "#/components/responses/Error"}, "5XX": {"$ref": "#/components/responses/Error"}},
    }
    if more:
        made["description"] = more
    if operation.request:
        content = {kind: {"schema": schemas[body]} for kind, body in operation.request.items()}
        made["requestBody"] = {"required": operation.body_needed, "content": content}
    return made


def _name(route: Route) -> str:
    """Name an operation: as its RPC, and so that an RPC with several routes has a name for each."""
    if route.method == "HEAD":
        return f"{route.rpc}Head"
    same = [other for other in ROUTES if other.rpc == route.rpc and other.method == route.method]
    return route.rpc if same[0] == route else f"{route.rpc}{''.join(word.title() for word in route.variables)}"


def _answer(status: int, bodies: Any, operation: Operation, schemas: dict[Any, Any], *, head: bool) -> dict[str, Any]:
    headers = {name: {"description": what, "schema": {"type": "string"}} for name, what in operation.headers.items()}
    made: dict[str, Any] = {"description": http.HTTPStatus(status).phrase, "headers": headers | _REQUEST_ID}
    if not head:
        made["content"] = {kind: _content(kind, body, schemas) for kind, body in bodies.items()}
    return made


def _content(kind: str, body: Any, schemas: dict[Any, Any]) -> dict[str, Any]:
    if kind == EVENTS:
        said = {"contentMediaType": "application/json", "contentSchema": schemas[body]}
        return {"schema": {"type": "string", "description": "Events, each with such an object as its data.", **said}}
    return {"schema": schemas[body]} if body is not None else {}


def _error(schemas: dict[Any, Any]) -> dict[str, Any]:
    return {
        "description": "What was wrong. 429 and 503 carry `retry-after`, a 409 that a retry can't cure `x-should-retry: false`.",
        "headers": _REQUEST_ID,
        "content": {"application/json": {"schema": schemas[openai.ErrorEnvelope]}},
    }


def _schemas() -> tuple[dict[Any, Any], dict[str, Any]]:
    """Make the schema of every type that is mentioned, by type, and what these refer to."""
    received, sent = list(dict.fromkeys(_received())), list(dict.fromkeys(_sent()))
    received_schemas, components = msgspec.json.schema_components(received, ref_template=_TEMPLATE)
    sent_schemas, more = msgspec.json.schema_components(sent, ref_template=_TEMPLATE)
    for schema in more.values():
        _require_all(schema)
    twice = components.keys() & more.keys()
    if twice:
        raise TypeError(f"both sent and received: {twice}")
    return dict(zip((*received, *sent), (*received_schemas, *sent_schemas), strict=True)), components | more


def _received() -> Iterator[Any]:
    for operation in OPERATIONS.values():
        yield from (one.type for one in operation.parameters)
        yield from operation.request.values()


def _sent() -> Iterator[Any]:
    yield openai.ErrorEnvelope
    for operation in OPERATIONS.values():
        for bodies in operation.answers.values():
            yield from (body for body in bodies.values() if body is not None)


_SOMETIMES = {
    "DetailedHealth": {"error"},
    "ChatMessage": {"tool_calls"},
    "ChatDelta": {"role", "content", "reasoning_content", "tool_calls"},
}
"""members that an answer may lack; all others are there, null where empty"""


def _require_all(schema: dict[str, Any]) -> None:
    if "properties" in schema:
        schema["required"] = [name for name in schema["properties"] if name not in _SOMETIMES.get(schema["title"], ())]

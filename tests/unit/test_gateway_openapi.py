"""The OpenAPI document: valid, complete, and in step with what is really accepted and sent."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from engine.chat import ChatRequest, Message
from engine.completion import CompletionRequest, EmbeddingRequest
from gateway import bodies, creation, uploads
from gateway.body import Body
from gateway.openapi import document
from gateway.operations import OPERATIONS
from gateway.routes import ROUTES
from haywain import errors, openai


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """The document."""
    return dict(json.loads(document()))


def _properties(described: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(described["components"]["schemas"][name]["properties"])


def test_valid(described: dict[str, Any]) -> None:
    """The document is OpenAPI 3.1, by its own schema."""
    assert not list(OpenAPIV31SpecValidator(described).iter_errors())


def test_every_route_is_described(described: dict[str, Any]) -> None:
    """Paths and methods are those of the proto, neither more nor less; each operation has an RPC of its own."""
    found = {(method.upper(), path) for path, operations in described["paths"].items() for method in operations}
    assert found == {(route.method, route.path) for route in ROUTES}
    assert set(OPERATIONS) == {route.rpc for route in ROUTES}
    ids = [operation["operationId"] for operations in described["paths"].values() for operation in operations.values()]
    assert len(ids) == len(set(ids))


def test_every_schema_is_used(described: dict[str, Any]) -> None:
    """No schema is left over, and none that is referred to is missing."""
    text = json.dumps(described)
    for name, schema in described["components"]["schemas"].items():
        assert f'"#/components/schemas/{name}"' in text, name
        assert schema["description"], name


def test_every_answer_can_be_an_error(described: dict[str, Any]) -> None:
    """Every operation tells of 4XX and 5XX, in the envelope."""
    for operations in described["paths"].values():
        for operation in operations.values():
            assert {"4XX", "5XX"} <= set(operation["responses"])
    assert described["components"]["schemas"]["ErrorBody"]["required"] == ["message", "type", "param", "code"]


class _Asking(Body):
    """Remembers what is asked for, at any depth."""

    asked: ClassVar[set[str]] = set()

    def _take(self, name: str, expected: str, *kinds: type, nullable: bool = True) -> Any:
        self.asked.add(self._prefix + name)
        return super()._take(name, expected, *kinds, nullable=nullable)

    def member(self, name: str) -> Body | None:
        value = self._take(name, "an object", dict)
        return None if value is None else _Asking(value, f"{self._prefix}{name}.")


@pytest.mark.parametrize(
    ("module", "translate", "body", "schema"),
    [
        (creation, "creation", {"input_file_id": "a", "output_expires_after": {"seconds": 3600}}, "BatchCreation"),
        (
            uploads,
            "announcement",
            {"filename": "a", "purpose": "b", "mime_type": "c", "bytes": 1, "expires_after": {"seconds": 3600}},
            "UploadCreation",
        ),
    ],
)
def test_bodies_are_what_is_read(
    described: dict[str, Any], monkeypatch: pytest.MonkeyPatch, module: Any, translate: str, body: dict[str, Any], schema: str
) -> None:
    """A described body has just the fields that the gateway asks for, and requires those that it requires."""
    monkeypatch.setattr(module, "Body", _Asking)
    monkeypatch.setattr(_Asking, "asked", set())
    getattr(module, translate)(body)
    assert {name for name in _Asking.asked if "." not in name} == set(_properties(described, schema))
    inner = {name.partition(".")[2] for name in _Asking.asked if "." in name}
    assert inner == set(_properties(described, "ExpiresAfter"))
    for name in described["components"]["schemas"][schema]["required"]:
        with pytest.raises(errors.InvalidRequest) as missing:
            getattr(module, translate)({key: value for key, value in body.items() if key != name})
        assert (missing.value.code, missing.value.param) == ("missing_required_parameter", name)


@pytest.mark.parametrize(
    ("mine", "engines", "fields"),
    [
        (bodies.ChatRequest, ChatRequest, openai.CHAT_FIELDS),
        (bodies.CompletionRequest, CompletionRequest, openai.COMPLETION_FIELDS),
        (bodies.EmbeddingRequest, EmbeddingRequest, openai.EMBEDDING_FIELDS),
    ],
)
def test_completions_are_what_engines_read(mine: Any, engines: Any, fields: frozenset[str]) -> None:
    """The fields of a completion are those that engines may honour."""
    assert set(mine.__struct_fields__) == set(engines.__struct_fields__) == fields


def test_messages_are_what_engines_read() -> None:
    """The fields of a message are those that engines read."""
    assert set(bodies.Message.__struct_fields__) == set(Message.__struct_fields__)

"""What every handler shares: headers of the request, and answers as JSON bodies."""

from __future__ import annotations

from typing import Any

from google.api import httpbody_pb2

from haywain import openai

__all__ = ["TENANT", "Context", "header", "json_body"]

TENANT = "default"
"""everybody, until there are keys"""

Context = Any
"""grpc.aio.ServicerContext, which has no types of its own for metadata."""


def json_body(value: Any) -> httpbody_pb2.HttpBody:
    """Encode a struct as the body of an answer; bytes are JSON already."""
    data = value if isinstance(value, bytes) else openai.encode(value)
    return httpbody_pb2.HttpBody(content_type="application/json", data=data)


def header(context: Context, name: str) -> str:
    """Read a request header by its lower-case name; empty when absent."""
    return next((str(value) for key, value in context.invocation_metadata() or () if key == name), "")

"""The header `Idempotency-Key`: the client's name for one request, so that repeating it does nothing twice.

The service that does the work keeps key and answer (services/batches/creating.py, services/files/answers.py). A batch's creation is
compared by the body's bytes as they came, what stores bytes by what it means: the boundary of a form is another each time. Another
request under the same key is 422, one that is still running 409, which a retry cures.
"""

from __future__ import annotations

import hashlib
from typing import Any

from gateway.answer import Context
from haywain import errors
from haywain.batches.v1 import batches_pb2

__all__ = ["REPLAYED", "idempotency", "idempotency_key", "tell_replayed"]

NAME = "idempotency-key"
REPLAYED = (("idempotent-replayed", "true"),)
"""Initial metadata of an answer that an earlier request got."""
MAX_BYTES = 512


def idempotency_key(context: Context) -> str:
    """Read the header; empty when there is none. Raises InvalidRequest when it has no or too many bytes, or comes twice."""
    keys = [value for key, value in context.invocation_metadata() or () if key == NAME]
    if not keys:
        return ""
    key = keys[0] if isinstance(keys[0], str) else keys[0].decode("latin-1")
    size = len(key.encode())
    if len(keys) > 1 or not 1 <= size <= MAX_BYTES:
        found = f"{len(keys)} of them came" if len(keys) > 1 else f"this one has {size}"
        raise errors.InvalidRequest(f"An Idempotency-Key has 1 to {MAX_BYTES} bytes, but {found}.", param="Idempotency-Key")
    return key


def idempotency(context: Context, body: bytes) -> batches_pb2.Idempotency | None:
    """Read the header of a creation with this body; None when there is none. Raises InvalidRequest."""
    key = idempotency_key(context)
    return batches_pb2.Idempotency(key=key, fingerprint=hashlib.sha256(body).hexdigest()) if key else None


async def tell_replayed(context: Context, answer: Any) -> None:
    """Mark an answer that an earlier request got."""
    if answer.replayed:
        await context.send_initial_metadata(REPLAYED)

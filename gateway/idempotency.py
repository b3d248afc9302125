"""The header `Idempotency-Key`: the client's name for one request, so that repeating it does nothing twice.

The service that does the work keeps key and answer in the transaction of the work itself (services/batches/creating.py). Here only
the fingerprint is made, of the body's bytes as they came, and errors get their HTTP side: another body under the same key is 422,
a request that is still running 409, which a retry cures.
"""

from __future__ import annotations

import hashlib

from gateway.answer import Context
from haywain import errors
from haywain.batches.v1 import batches_pb2

__all__ = ["REPLAYED", "idempotency"]

NAME = "idempotency-key"
REPLAYED = (("idempotent-replayed", "true"),)
"""Initial metadata of an answer that an earlier request got."""
MAX_BYTES = 512


def idempotency(context: Context, body: bytes) -> batches_pb2.Idempotency | None:
    """Read the header; None when there is none. Raises InvalidRequest when it has no or too many bytes, or comes twice."""
    keys = [value for key, value in context.invocation_metadata() or () if key == NAME]
    if not keys:
        return None
    key = keys[0] if isinstance(keys[0], str) else keys[0].decode("latin-1")
    size = len(key.encode())
    if len(keys) > 1 or not 1 <= size <= MAX_BYTES:
        found = f"{len(keys)} of them came" if len(keys) > 1 else f"this one has {size}"
        raise errors.InvalidRequest(f"An Idempotency-Key has 1 to {MAX_BYTES} bytes, but {found}.", param="Idempotency-Key")
    return batches_pb2.Idempotency(key=key, fingerprint=hashlib.sha256(body).hexdigest())

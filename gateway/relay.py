"""Bytes that a client sends, handed on to a service as they come: in messages worth their cost, with patience that ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from gateway.answer import TENANT
from gateway.peers import Peer
from haywain import errors, rpc

__all__ = ["MESSAGE_BYTES", "gathered", "store"]

MESSAGE_BYTES = 256 * 1024
"""smaller chunks are put together: a message costs the same whatever it holds"""
HELD_BYTES = 1024 * 1024
"""what is smaller as a whole is held, and sent again when the service went away meanwhile"""
STORE_SECONDS = 120.0
"""after the last byte; disks may be slow"""


async def gathered(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Put chunks together to `MESSAGE_BYTES` or more; the last one may be smaller."""
    held: list[bytes] = []
    size = 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= MESSAGE_BYTES:
            yield b"".join(held)
            held.clear()
            size = 0
    if size:
        yield b"".join(held)


async def store(peer: Peer, method: Any, requests: AsyncGenerator[Any, None]) -> Any:
    """Call a client-streaming RPC of `peer`; the client may take its time, the service only once it has heard everything.

    The call must be one that can be repeated, which happens to small ones when the service restarts. Raises what `requests` or the
    service raised, Unavailable, or DeadlineExceeded.
    """
    async with contextlib.aclosing(requests):
        held, size = [], 0
        async for request in requests:
            held.append(request)
            size += request.ByteSize()
            if size >= HELD_BYTES:
                return await _stream(peer, method, held, requests)
        return await peer.ask(method, held, timeout=STORE_SECONDS)


async def _stream(peer: Peer, method: Any, held: list[Any], rest: AsyncIterator[Any]) -> Any:
    await peer.connected()
    try:
        async with asyncio.timeout(None) as limit, contextlib.aclosing(_chained(held, rest, limit)) as messages:
            return await rpc.call(method, messages, timeout=None, tenant=TENANT, wait=False)
    except TimeoutError:
        raise errors.DeadlineExceeded(retry_after=1) from None


async def _chained(held: list[Any], rest: AsyncIterator[Any], limit: asyncio.Timeout) -> AsyncGenerator[Any, None]:
    while held:
        yield held.pop(0)
    async for request in rest:
        yield request
    limit.reschedule(asyncio.get_running_loop().time() + STORE_SECONDS)

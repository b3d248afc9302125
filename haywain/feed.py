"""Requests that go out as a stream, so that the call's own status survives.

grpc.aio sends a request iterator by itself, and when a write meets a call that has ended it puts "internal error" over the status
that says why (grpc/grpc#36066): a refused upload would sometimes be told as a fault of ours, and a peer's death always might.
Here a write that fails only ends the sending; what the call ended with is read from the call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

__all__ = ["feeding"]


@contextlib.asynccontextmanager
async def feeding(calling: Any, requests: AsyncIterator[Any]) -> AsyncIterator[None]:
    """Send `requests` on a call that was begun without them, while the block awaits its answer.

    Sending ends with the block at the latest. An exception of `requests` cancels the call and is raised here.
    """
    sending = asyncio.ensure_future(_send(calling, requests))
    sending.add_done_callback(lambda done: None if done.cancelled() or not done.exception() else calling.cancel())
    try:
        yield
    except asyncio.CancelledError:
        if sending.done() and not sending.cancelled() and (error := sending.exception()) is not None:
            raise error from None
        raise
    finally:
        sending.cancel()
        await asyncio.wait([sending])


async def _send(calling: Any, requests: AsyncIterator[Any]) -> None:
    ended = (cygrpc.InternalError, grpc.aio.AioRpcError)
    with contextlib.suppress(*ended):
        await calling.wait_for_connection()
    async for request in requests:
        try:
            # The public `write` is what would replace the status.
            await calling._cython_call.send_serialized_message(request.SerializeToString())  # noqa: SLF001
        except ended:
            return
    with contextlib.suppress(*ended):
        await calling.done_writing()

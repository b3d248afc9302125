"""The services behind the gateway: a channel each, calls with deadlines, and patience while one restarts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.answer import TENANT
from haywain import errors, rpc
from haywain.batches.v1 import batches_pb2_grpc
from haywain.files.v1 import files_pb2_grpc
from haywain.scheduler.v1 import scheduler_pb2_grpc
from haywain.settings import Settings

__all__ = ["TRIES", "Peer", "Peers"]

CONNECT_SECONDS = 3.0
"""A service that is killed is back within about one."""
CALL_SECONDS = 30.0
TRIES = 3


class Peer:
    """One service."""

    def __init__(self, name: str, address: str | Sequence[str], stub: Any) -> None:
        """Open the channel, to one of several processes if there are such; it connects when first used."""
        self.name = name
        self.channel: grpc.aio.Channel = rpc.channel(address)
        self.stub = stub(self.channel)

    async def connected(self, within: float = CONNECT_SECONDS) -> None:
        """Wait for the connection. Raises Unavailable when there is none within that many seconds."""
        if self.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            return
        try:
            async with asyncio.timeout(within):
                await self.channel.channel_ready()
        except TimeoutError:
            raise errors.Unavailable(retry_after=1) from None

    async def ask(self, method: Any, request: Any, *, timeout: float = CALL_SECONDS) -> Any:
        """Call an RPC with one answer that can be repeated: a read, an idempotent write, or one with a request id.

        `request` is a message, or a list of them for an RPC that takes a stream. It is repeated when the service went away during
        it. Raises what the service raised, Unavailable, or DeadlineExceeded; an error that is `undone` speaks for all tries.
        """
        undone = True
        for left in reversed(range(TRIES)):
            await self._reached(undone=undone)
            try:
                sent = _each(request) if isinstance(request, list) else request
                return await rpc.call(method, sent, timeout=timeout, tenant=TENANT, wait=False)
            except errors.HaywainError as error:
                undone = error.undone = undone and error.undone is True
                if not left or type(error) is not errors.Unavailable:
                    raise
                await asyncio.sleep(0.05)  # the channel needs a moment to see that its peer is gone
        raise AssertionError("unreachable")

    async def _reached(self, *, undone: bool) -> None:
        try:
            await self.connected()
        except errors.Unavailable as error:
            error.undone = undone
            raise

    async def healthy(self, within: float = 1.0) -> bool:
        """Tell whether the service answers its health check in time."""
        with contextlib.suppress(errors.HaywainError):
            await self.connected(within)
            check = health_pb2_grpc.HealthStub(self.channel).Check
            answer = await rpc.call(check, health_pb2.HealthCheckRequest(), timeout=within, wait=False)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        return False


async def _each(messages: list[Any]) -> AsyncGenerator[Any, None]:
    for message in messages:
        yield message


class Peers:
    """All services."""

    def __init__(self, settings: Settings) -> None:
        """Open the channels."""
        self.files = Peer("files", settings.address("files"), files_pb2_grpc.FilesServiceStub)
        self.batches = Peer("batches", settings.address("batches"), batches_pb2_grpc.BatchesServiceStub)
        self.scheduler = Peer("scheduler", settings.addresses("scheduler"), scheduler_pb2_grpc.SchedulerServiceStub)
        self.schedulers = [self.scheduler]
        """Each on its own."""
        if len(names := settings.replicas("scheduler")) > 1:
            stub = scheduler_pb2_grpc.SchedulerServiceStub
            both = zip(names, settings.addresses("scheduler"), strict=True)
            self.schedulers = [Peer(name, address, stub) for name, address in both]

    async def close(self) -> None:
        """Close the channels."""
        for peer in {self.files, self.batches, self.scheduler, *self.schedulers}:
            await peer.channel.close()

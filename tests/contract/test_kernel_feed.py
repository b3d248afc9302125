"""Streams of requests over a real socket: the caller learns what the call ended with, whatever was still being sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2, engine_pb2_grpc
from haywain.files.v1 import files_pb2, files_pb2_grpc


class Refusing(files_pb2_grpc.FilesServiceServicer, engine_pb2_grpc.EngineServiceServicer):
    """Refuses a stream at its first message."""

    async def UploadFile(self, messages: AsyncIterator[Any], context: Any) -> files_pb2.UploadFileResponse:
        await anext(messages, None)
        raise errors.TooLarge("enough")

    async def Run(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[engine_pb2.RunResponse]:
        yield engine_pb2.RunResponse()
        await anext(messages, None)
        raise errors.CapacityExceeded("enough", retry_after=3)


@pytest.fixture
def grpc_servicer() -> Refusing:
    return Refusing()


@pytest.fixture
def grpc_add_to_server() -> Callable[[Any, Any], None]:
    def add(servicer: Any, server: Any) -> None:
        files_pb2_grpc.add_FilesServiceServicer_to_server(servicer, server)
        engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)

    return add


async def uploads(count: int) -> AsyncIterator[files_pb2.UploadFileRequest]:
    for _ in range(count):
        yield files_pb2.UploadFileRequest(data=b"x" * 50_000)


async def test_a_refusal_is_never_masked_by_a_write(grpc_channel: Any) -> None:
    """A stream refused while its caller still writes ends with the refusal, each time."""
    stub = files_pb2_grpc.FilesServiceStub(grpc_channel)
    for _ in range(200):
        with pytest.raises(errors.TooLarge, match="enough"):
            await rpc.call(stub.UploadFile, uploads(100))


async def test_a_refusal_of_a_dialogue_is_never_masked(grpc_channel: Any) -> None:
    """So does a stream both ways, after the messages that came before."""
    stub = engine_pb2_grpc.EngineServiceStub(grpc_channel)

    async def requests() -> AsyncIterator[engine_pb2.RunRequest]:
        for _ in range(100):
            yield engine_pb2.RunRequest(cancel_sequence_ids=range(10_000))

    async def talk() -> None:
        async for _ in rpc.stream(stub.Run, requests(), timeout=10):
            pass

    for _ in range(100):
        with pytest.raises(errors.CapacityExceeded) as raised:
            await talk()
        assert raised.value.retry_after == 3


async def test_an_exception_of_the_requests_is_the_caller_s(grpc_channel: Any) -> None:
    """What the caller's own iterator raises cancels the call and arrives as it was."""

    async def failing() -> AsyncIterator[files_pb2.UploadFileRequest]:
        raise ZeroDivisionError
        yield files_pb2.UploadFileRequest()

    with pytest.raises(ZeroDivisionError):
        await rpc.call(files_pb2_grpc.FilesServiceStub(grpc_channel).UploadFile, failing())


async def test_requests_are_closed_with_the_call(grpc_channel: Any) -> None:
    """When the call ends before its requests do, the iterator's `finally` has run."""
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[files_pb2.UploadFileRequest]:
        try:
            yield files_pb2.UploadFileRequest(data=b"x")
            await asyncio.Event().wait()
        finally:
            closed.set()

    with pytest.raises(errors.TooLarge):
        await rpc.call(files_pb2_grpc.FilesServiceStub(grpc_channel).UploadFile, endless())
    assert closed.is_set()

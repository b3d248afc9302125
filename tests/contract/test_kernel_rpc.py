"""gRPC both ways over a real socket: errors that keep their class, broken streams, deadlines, health, names."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from haywain import errors, rpc
from haywain.engine.v1 import engine_pb2, engine_pb2_grpc
from haywain.errors import HaywainError
from haywain.files.v1 import files_pb2, files_pb2_grpc

POISON = b"\xff\xff\xff\xff"
SECRET = "the secret of the handler"  # noqa: S105
TOLD = sorted({*errors._tree(HaywainError).values()} - {HaywainError, errors.SettingsError}, key=lambda kind: kind.__name__)


class Peer(files_pb2_grpc.FilesServiceServicer, engine_pb2_grpc.EngineServiceServicer):
    """Raises what it is told to, in an RPC of each kind; streams give one message before."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.messages = 1
        self.closed = asyncio.Event()
        self.released = asyncio.Event()

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

    async def GetFile(self, request: files_pb2.GetFileRequest, context: Any) -> files_pb2.GetFileResponse:
        self._raise()
        bound = structlog.contextvars.get_contextvars()
        return files_pb2.GetFileResponse(file=files_pb2.File(file_id=request.file_id, filename=bound["request_id"]))

    async def DeleteFile(self, request: files_pb2.DeleteFileRequest, context: Any) -> files_pb2.DeleteFileResponse:
        await self.released.wait()
        return files_pb2.DeleteFileResponse()

    async def UploadFile(self, messages: AsyncIterator[Any], context: Any) -> files_pb2.UploadFileResponse:
        size = sum([len(message.data) async for message in messages])
        self._raise()
        return files_pb2.UploadFileResponse(file=files_pb2.File(size_bytes=size))

    async def DownloadFile(self, request: Any, context: Any) -> AsyncIterator[files_pb2.DownloadFileResponse]:
        try:
            for _ in range(self.messages):
                yield files_pb2.DownloadFileResponse(data=b"x")
            self._raise()
            await self.released.wait()
        finally:
            self.closed.set()

    async def Run(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[engine_pb2.RunResponse]:
        async for _ in messages:
            yield engine_pb2.RunResponse()
        self._raise()


@pytest.fixture
def grpc_servicer() -> Peer:
    return Peer()


@pytest.fixture
def grpc_add_to_server() -> Callable[[Any, Any], None]:
    def add(servicer: Any, server: Any) -> None:
        files_pb2_grpc.add_FilesServiceServicer_to_server(servicer, server)
        engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)

    return add


@pytest.fixture
def grpc_stub_cls() -> type[files_pb2_grpc.FilesServiceStub]:
    return files_pb2_grpc.FilesServiceStub


@pytest.fixture
def grpc_interceptor() -> rpc.Interceptor:
    return rpc.Interceptor(on_error=lambda error: (("x-http-status", error.code),), on_broken_stream=POISON)


async def four_kinds(channel: grpc.aio.Channel) -> list[Any]:
    """Call an RPC of each kind, and give what each ended with."""
    files, engine = files_pb2_grpc.FilesServiceStub(channel), engine_pb2_grpc.EngineServiceStub(channel)

    async def consumed(messages: AsyncIterator[Any]) -> None:
        async for _ in messages:
            pass

    async def requests(message: Any) -> AsyncIterator[Any]:
        yield message

    return await asyncio.gather(
        rpc.call(files.GetFile, files_pb2.GetFileRequest()),
        rpc.call(files.UploadFile, requests(files_pb2.UploadFileRequest())),
        consumed(rpc.stream(files.DownloadFile, files_pb2.DownloadFileRequest(), timeout=5)),
        consumed(rpc.stream(engine.Run, requests(engine_pb2.RunRequest()), timeout=5)),
        return_exceptions=True,
    )


@pytest.mark.parametrize("kind", TOLD)
async def test_errors_keep_their_class(grpc_channel: grpc.aio.Channel, grpc_servicer: Peer, kind: type[HaywainError]) -> None:
    """Every class arrives as itself from every kind of RPC, with message, code, param and retry_after."""
    grpc_servicer.error = kind("Grüße, 世界 — 'what'\nhappened", code="some_code", param="metadata.Ü", retry_after=2.5)
    for ended in await four_kinds(grpc_channel):
        assert type(ended) is kind
        assert (ended.message, ended.code, ended.param) == ("Grüße, 世界 — 'what'\nhappened", "some_code", "metadata.Ü")
        assert ended.retry_after == 2.5


@pytest.mark.parametrize("kind", TOLD)
async def test_defaults_travel(grpc_channel: grpc.aio.Channel, grpc_servicer: Peer, kind: type[HaywainError]) -> None:
    """An error raised with nothing but its class has the class's message and code at the caller."""
    grpc_servicer.error = kind()
    (ended, *_) = await four_kinds(grpc_channel)
    assert (type(ended), ended.message, ended.code) == (kind, kind().message, kind.default_code)


@pytest.mark.parametrize(
    "error",
    [RuntimeError(SECRET), KeyError(SECRET), HaywainError(SECRET), errors.SettingsError(SECRET), StopAsyncIteration(SECRET)],
)
async def test_the_unforeseen_tells_nothing(grpc_channel: grpc.aio.Channel, grpc_servicer: Peer, error: Exception) -> None:
    """What nobody meant for the caller, however it was raised, is told as an internal error without its text."""
    grpc_servicer.error = error
    for ended in await four_kinds(grpc_channel):
        assert type(ended) is HaywainError
        assert SECRET not in ended.message
        assert ended.message == HaywainError().message


async def test_an_internal_error_with_a_code_is_told(grpc_channel: grpc.aio.Channel, grpc_servicer: Peer) -> None:
    """An error of ours that was given a code was meant for the caller."""
    grpc_servicer.error = HaywainError("The engine failed twice.", code="engine_error")
    for ended in await four_kinds(grpc_channel):
        assert (type(ended), ended.message, ended.code) == (HaywainError, "The engine failed twice.", "engine_error")


@pytest.mark.parametrize("text", ["x" * 100_000, "世" * 10_000, "😀" * 3_000, "bad \ud800 surrogate", "\x00\x7f%"])
async def test_any_message_arrives(grpc_channel: grpc.aio.Channel, grpc_servicer: Peer, text: str) -> None:
    """However long or odd a message or param is, the class arrives, and the message's beginning."""
    grpc_servicer.error = errors.InvalidRequest(text, param=text)
    for _ in range(25):  # over the soft limit of metadata gRPC refuses at random
        for ended in await four_kinds(grpc_channel):
            assert type(ended) is errors.InvalidRequest, ended.message
            assert ended.message[:4] == text[:4]


async def test_the_hook_adds_metadata(grpc_stub: Any, grpc_servicer: Peer) -> None:
    """What `on_error` gives is in the trailing metadata beside the status."""
    grpc_servicer.error = errors.Conflict("no", code="409")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await grpc_stub.GetFile(files_pb2.GetFileRequest())
    assert ("x-http-status", "409") in tuple(raised.value.trailing_metadata())
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


# -- broken streams -----------------------------------------------------------------------------------------------------------


async def raw(channel: grpc.aio.Channel, *metadata: tuple[str, str]) -> tuple[list[bytes], grpc.StatusCode]:
    call = channel.unary_stream("/haywain.files.v1.FilesService/DownloadFile")(b"", metadata=metadata)
    messages = []
    try:
        async for message in call:
            messages.append(message)  # noqa: PERF401 - those before the error count
    except grpc.aio.AioRpcError as error:
        return messages, error.code()
    return messages, await call.code()


async def test_a_broken_stream_is_poisoned_for_rest(grpc_channel: grpc.aio.Channel, grpc_servicer: Peer) -> None:
    """A stream that breaks after its first message ends, for a transcoder, with bytes that no parser takes."""
    grpc_servicer.error = RuntimeError(SECRET)
    messages, _ = await raw(grpc_channel, ("x-haywain-rest", "1"))
    assert messages[-1] == POISON
    assert len(messages) == 2


async def test_a_broken_stream_is_a_status_for_grpc(grpc_channel: grpc.aio.Channel, grpc_servicer: Peer) -> None:
    """The same stream ends with a status for a caller who speaks gRPC."""
    grpc_servicer.error = RuntimeError(SECRET)
    messages, code = await raw(grpc_channel)
    assert (len(messages), code) == (1, grpc.StatusCode.INTERNAL)


async def test_a_stream_that_never_began_is_a_status_for_all(grpc_channel: grpc.aio.Channel, grpc_servicer: Peer) -> None:
    """A stream that is refused before its first message is a status for a transcoder too."""
    grpc_servicer.error = errors.FileMissing()
    grpc_servicer.messages = 0
    assert await raw(grpc_channel, ("x-haywain-rest", "1")) == ([], grpc.StatusCode.NOT_FOUND)


async def test_closing_a_stream_ends_the_handler(grpc_stub: Any, grpc_servicer: Peer) -> None:
    """A caller who stops reading cancels the call, and the handler's `finally` runs."""
    messages = rpc.stream(grpc_stub.DownloadFile, files_pb2.DownloadFileRequest())
    assert (await anext(messages)).data == b"x"
    await messages.aclose()
    async with asyncio.timeout(5):
        await grpc_servicer.closed.wait()


# -- deadlines, restarts, addresses -------------------------------------------------------------------------------------------


async def test_every_call_has_a_deadline(grpc_stub: Any) -> None:
    """A handler that doesn't answer in time is DeadlineExceeded."""
    with pytest.raises(errors.DeadlineExceeded):
        await rpc.call(grpc_stub.DeleteFile, files_pb2.DeleteFileRequest(), timeout=0.05)


async def test_a_peer_that_is_away(data_dir: Path) -> None:
    """Nobody at the address is Unavailable at once without `wait`, and DeadlineExceeded after the timeout with it."""
    async with rpc.channel(f"unix:{data_dir}/nobody.sock") as channel:
        stub = files_pb2_grpc.FilesServiceStub(channel)
        with pytest.raises(errors.Unavailable):
            await rpc.call(stub.GetFile, files_pb2.GetFileRequest(), wait=False)
        with pytest.raises(errors.DeadlineExceeded):
            await rpc.call(stub.GetFile, files_pb2.GetFileRequest(), timeout=0.1)


async def test_a_call_waits_for_a_restart(data_dir: Path, grpc_add_to_server: Any) -> None:
    """A call to a peer that isn't there yet is answered when it comes, also over a socket that a killed one left."""
    left = socket.socket(socket.AF_UNIX)
    left.bind(f"{data_dir}/peer.sock")
    left.close()
    address = f"unix:{data_dir}/peer.sock"
    async with rpc.channel(address) as channel:
        stub = files_pb2_grpc.FilesServiceStub(channel)
        waiting = asyncio.ensure_future(rpc.call(stub.GetFile, files_pb2.GetFileRequest(file_id="f"), timeout=10))
        for _ in range(2):
            async with rpc.serving(address, [(Peer(), grpc_add_to_server, "x")], grace_seconds=0):
                assert (await waiting).file.file_id == "f"
            if channel.get_state() is grpc.ChannelConnectivity.READY:  # a call on a connection that is being lost is lost with it
                await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
            waiting = asyncio.ensure_future(rpc.call(stub.GetFile, files_pb2.GetFileRequest(file_id="f"), timeout=0.3))
        with pytest.raises(errors.DeadlineExceeded):
            await waiting


async def test_large_messages_pass(grpc_stub: Any) -> None:
    """Messages far over gRPC's default of 4 MiB pass."""

    async def messages() -> AsyncIterator[files_pb2.UploadFileRequest]:
        yield files_pb2.UploadFileRequest(data=b"x" * 20_000_000)

    assert (await rpc.call(grpc_stub.UploadFile, messages())).file.size_bytes == 20_000_000


async def test_the_request_id_travels(grpc_stub: Any) -> None:
    """The id bound in the caller's context is the one in the handler's; a call without one gets a new one."""
    assert (await rpc.call(grpc_stub.GetFile, files_pb2.GetFileRequest())).file.filename.startswith("req_")
    with structlog.contextvars.bound_contextvars(request_id="req_of_the_caller"):
        assert (await rpc.call(grpc_stub.GetFile, files_pb2.GetFileRequest())).file.filename == "req_of_the_caller"


async def test_health_is_told(grpc_channel: grpc.aio.Channel, grpc_server: rpc.Server) -> None:
    """Health answers SERVING for the server and its services, and NOT_SERVING when told so."""
    stub = health_pb2_grpc.HealthStub(grpc_channel)
    for serving in (True, False):
        await grpc_server.set_serving(serving)
        for name in ("", "test.Service"):
            status = (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status
            assert (status == health_pb2.HealthCheckResponse.SERVING) is serving


async def test_reflection_lists_services(grpc_channel: grpc.aio.Channel) -> None:
    """Reflection names what is served."""

    async def asked() -> AsyncIterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    call = reflection_pb2_grpc.ServerReflectionStub(grpc_channel).ServerReflectionInfo(asked())
    names = [service.name async for answer in call for service in answer.list_services_response.service]
    assert {"test.Service", "grpc.health.v1.Health"} <= set(names)

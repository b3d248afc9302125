"""gRPC both ways: servers with one interceptor, health and reflection; clients with deadlines; errors that keep their class.

A server maps every `HaywainError` to a status, see status.py, and everything else to "internal error"; `call` and `stream` rebuild
the class at the caller. Handlers never call `context.abort`. The request id travels in `x-request-id`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import grpc
import structlog
import uvloop
from grpc_health.v1 import _async as health_aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from haywain import errors, ids, lockfile, log, metrics
from haywain.balance import Balanced
from haywain.feed import feeding
from haywain.status import Metadata, details, error_of, short

__all__ = [
    "OPTIONS", "Interceptor", "Server", "as_request_id", "call", "channel", "error_of", "for_callers", "metadata", "run", "serving",
    "stream",
]  # fmt: skip

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.so_reuseport", 0),
    # A fixed window. gRPC's own estimate takes a busy machine for a long line, and then lets 30 MB of each stream pile up here.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 2 * 1024 * 1024),
    ("grpc.max_metadata_size", 64 * 1024),  # Envoy lets 15 KiB of headers through; from 8 KiB on the default refuses at random
    ("grpc.absolute_max_metadata_size", 64 * 1024),
]
_REQUEST_ID = re.compile(r"[!-~]{1,128}")

ErrorHook = Callable[[errors.HaywainError], Metadata]
_T = TypeVar("_T")
_log = log.get()


class Interceptor(grpc.aio.ServerInterceptor):
    """Binds ids to the log, and is the one door from exceptions to statuses. Works for all four kinds of RPC."""

    def __init__(self, on_error: ErrorHook | None = None, on_broken_stream: bytes | None = None) -> None:
        """`on_error` adds trailing metadata to an error.

        `on_broken_stream` is sent as the last message when a response stream fails after its first message and the call has
        `x-haywain-rest`: bytes that no protobuf parser takes make a transcoder cut the HTTP response instead of ending it well.
        """
        self._on_error = on_error
        self._on_broken_stream = on_broken_stream

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        """Wrap the handler."""
        handler = await continuation(details)
        if handler is None or details.method.startswith("/grpc."):
            return handler
        if handler.response_streaming:
            return self._streaming(handler, details.method)
        kind = "stream_unary" if handler.request_streaming else "unary_unary"
        inner = getattr(handler, kind)

        async def unary(request: Any, context: Any) -> Any:
            _bind(context, details.method)
            try:
                return await inner(request, context)
            except Exception as error:  # noqa: BLE001 - the one place that may
                await self._abort(context, error)

        return handler._replace(**{kind: unary})

    def _streaming(self, handler: Any, method: str) -> Any:
        kind = "stream_stream" if handler.request_streaming else "unary_stream"
        inner = getattr(handler, kind)
        serialize = handler.response_serializer

        async def streaming(request: Any, context: Any) -> AsyncIterator[Any]:
            _bind(context, method)
            started = False
            messages = inner(request, context)
            try:
                async for message in messages:
                    started = True
                    yield message
            except Exception as error:  # noqa: BLE001 - the one place that may
                if started and self._on_broken_stream is not None and _header(context, "x-haywain-rest"):
                    _log.exception("stream.broken")
                    yield self._on_broken_stream
                    return
                await self._abort(context, error)
            finally:
                await messages.aclose()

        return handler._replace(
            **{kind: streaming}, response_serializer=lambda message: message if type(message) is bytes else serialize(message)
        )

    async def _abort(self, context: Any, error: Exception) -> None:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        told = for_callers(error)
        extra = self._on_error(told) if self._on_error else ()
        await context.abort(told.status, short(told.message), trailing_metadata=(*details(told), *extra))


def for_callers(error: BaseException) -> errors.HaywainError:
    """Give what callers are told of an exception: nothing, when its text wasn't meant for them; then it is logged.

    That are foreign ones, the operator's errors, and those of no class that have no code either.
    """
    match error:
        case errors.SettingsError():
            pass
        case errors.HaywainError() if type(error) is not errors.HaywainError or error.code:
            return error
    _log.error("rpc.failed", exc_info=error)
    return errors.HaywainError()


def _bind(context: Any, method: str) -> None:
    request_id = as_request_id(_header(context, "x-request-id"))
    structlog.contextvars.bind_contextvars(rpc=method.rsplit("/", 1)[-1], request_id=request_id)


def as_request_id(given: str) -> str:
    """Take what a caller calls its request, or name it: it goes on to our peers, and C-core refuses to send what isn't ASCII."""
    return given if _REQUEST_ID.fullmatch(given) else ids.new("req_")


def _header(context: Any, name: str) -> str:
    return next((str(value) for key, value in context.invocation_metadata() or () if key == name), "")


class Server:
    """A running gRPC server with its health."""

    def __init__(self, server: grpc.aio.Server, servicer: Any, names: Sequence[str]) -> None:
        """Made by `serving`."""
        self.grpc = server
        self._health = servicer
        self._names = names

    async def set_serving(self, serving: bool) -> None:
        """Tell the health service's askers whether to send calls here."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)


@contextlib.asynccontextmanager
async def serving(
    address: str,
    services: Iterable[tuple[Any, Callable[[Any, Any], None], str]],
    *,
    interceptor: Interceptor | None = None,
    grace_seconds: float = 2.0,
    reflected: Sequence[str] = (),
    figures: metrics.Figures | None = None,
) -> AsyncIterator[Server]:
    """Serve `(servicer, add_XServicer_to_server, full name)`s at `address` until the block ends.

    `reflected` are the names that reflection lists, where they are others than those served here; `figures` go into GET /metrics.
    Health answers SERVING inside the block; at its end NOT_SERVING, then calls get `grace_seconds` to end.
    Raises SettingsError when the address can't be bound, or another process serves it: a Unix socket would be taken over silently.
    """
    server = grpc.aio.server(interceptors=[metrics.CallMeter(), interceptor or Interceptor()], options=OPTIONS)
    names = []
    for servicer, add, name in (*services, metrics.telemetry(figures)):
        add(servicer, server)
        names.append(name)
    health_servicer = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection([*(reflected or names), health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    with lockfile.of_address(address):
        try:
            server.add_insecure_port(address)
        except RuntimeError as error:
            raise errors.SettingsError(f"can't listen on {address}: is it taken?") from error
        await server.start()
        running = Server(server, health_servicer, names)
        await running.set_serving(True)
        try:
            yield running
        finally:
            await running.set_serving(False)
            await server.stop(grace_seconds)


def run(main: Callable[[asyncio.Event], Awaitable[_T]]) -> _T:
    """Run a process: `main` gets an event that SIGTERM and SIGINT set, and should return soon after."""

    async def supervised() -> _T:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        return await main(stopping)

    # Rows come and go by the thousand and make no cycles; collecting after every 700 objects took a third of an engine's time.
    gc.set_threshold(50_000, 20, 20)
    return uvloop.run(supervised())


# -- clients ------------------------------------------------------------------------------------------------------------------


def channel(address: str | Sequence[str], *, retry_ms: int = 1_000) -> grpc.aio.Channel:
    """Open a channel to a target such as `unix:/path` or `host:port`. Connects when first used, reconnects by itself.

    Of several targets each call goes to one that is there, see haywain/balance.py. `retry_ms`: the longest pause between tries to
    connect.
    """
    if not isinstance(address, str):
        each = [channel(one, retry_ms=retry_ms) for one in address]
        return each[0] if len(each) == 1 else Balanced(each)
    options = [(key, retry_ms if key == "grpc.max_reconnect_backoff_ms" else value) for key, value in OPTIONS]
    return grpc.aio.insecure_channel(address, options=options)


async def call(method: Any, request: Any, *, timeout: float | None = 10.0, tenant: str = "", wait: bool = True) -> Any:
    """Call a unary-answer RPC (`stub.GetFile`), with a message or an async iterator of them.

    `timeout` in seconds. With `wait`, a peer that restarts is waited for within the timeout. Raises the HaywainError that the
    peer raised, Unavailable or DeadlineExceeded.
    """
    options = {"timeout": timeout, "wait_for_ready": wait, "metadata": metadata(tenant)}
    try:
        if not isinstance(request, AsyncIterator):
            return await method(request, **options)
        calling = method(**options)
        async with feeding(calling, request):
            return await calling
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from None


async def stream(method: Any, request: Any, *, timeout: float | None = None, tenant: str = "") -> AsyncGenerator[Any, None]:
    """Call a streaming-answer RPC; closing the iterator cancels the call. Raises as `call` does."""
    options = {"timeout": timeout, "wait_for_ready": timeout is not None, "metadata": metadata(tenant)}
    feeds = isinstance(request, AsyncIterator)
    calling = method(**options) if feeds else method(request, **options)
    try:
        async with feeding(calling, request) if feeds else contextlib.nullcontext():
            async for message in calling:
                yield message
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from None
    finally:
        calling.cancel()


def metadata(tenant: str = "") -> list[tuple[str, str]]:
    """Make what every call carries: the request id at hand, and the tenant."""
    request_id = structlog.contextvars.get_contextvars().get("request_id", "")
    pairs = [("x-request-id", str(request_id))] if request_id else []
    return [*pairs, ("x-haywain-tenant", tenant)] if tenant else pairs

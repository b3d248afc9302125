"""The connection to Triton: raw stubs, a stream for each request.

A stream for each, because Triton cancels by stream alone; with the header `triton_grpc_error` an error ends it with a status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from engine.triton.failures import Failure, failure
from engine.triton.interface import Interface
from haywain import rpc
from haywain.errors import SettingsError, Unavailable
from haywain.settings import TritonSettings

__all__ = ["Client"]

_ERRORS_AS_STATUS: Final = (("triton_grpc_error", "true"),)
_ASK_SECONDS: Final = 20.0


class Client:
    """Calls of one server."""

    def __init__(self, settings: TritonSettings) -> None:
        """Open the channel; it connects when first used. Raises SettingsError for files that can't be read."""
        self._settings = settings
        options = [*rpc.OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        if settings.tls:
            credentials = grpc.ssl_channel_credentials(
                _file(settings.tls_ca_file, "tls_ca_file"),
                _file(settings.tls_key_file, "tls_key_file"),
                _file(settings.tls_cert_file, "tls_cert_file"),
            )
            self._channel = grpc.aio.secure_channel(settings.url, credentials, options=options)
        else:
            self._channel = grpc.aio.insecure_channel(settings.url, options=options)
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def close(self) -> None:
        """Break everything off."""
        await self._channel.close()

    async def models(self) -> dict[str, str]:
        """List the repository: each model's state, empty for one that isn't loaded. Raises Unavailable."""
        index = await self._call(self._stub.RepositoryIndex, service_pb2.RepositoryIndexRequest())
        states: dict[str, str] = {}
        for model in index.models:
            if model.state == "READY" or not states.get(model.name):
                states[model.name] = model.state
        return states

    async def ready(self, model: str) -> bool:
        """Ask whether a model takes requests. Raises Unavailable when the server doesn't say."""
        request = service_pb2.ModelReadyRequest(name=model, version=self._settings.version)
        return bool((await self._call(self._stub.ModelReady, request, self._settings.probe_seconds)).ready)

    async def server(self) -> str:
        """Tell the server's version. Raises Unavailable."""
        return str((await self._call(self._stub.ServerMetadata, service_pb2.ServerMetadataRequest())).version)

    async def interface(self, model: str) -> Interface:
        """Read what a model takes and gives. Raises Unavailable, also when the model isn't loaded."""
        version = self._settings.version
        metadata = await self._call(self._stub.ModelMetadata, service_pb2.ModelMetadataRequest(name=model, version=version))
        config = await self._call(self._stub.ModelConfig, service_pb2.ModelConfigRequest(name=model, version=version))
        return Interface.of(metadata, config.config)

    async def infer(self, request: Any, timeout: float, each: Callable[[Any], bool]) -> None:
        """Send a ModelInferRequest and call `each` with its ModelInferResponses, until it says that it has enough.

        Leaving early cancels the request in Triton. Raises Failure.
        """
        calling = self._stub.ModelStreamInfer(timeout=timeout, metadata=_ERRORS_AS_STATUS)
        ended = False
        try:
            await calling.write(request)
            await calling.done_writing()
            while (message := await calling.read()) is not grpc.aio.EOF:
                if message.error_message:
                    raise failure(None, message.error_message, connected=True)
                if each(message.infer_response):
                    return
            ended = True
            code = await calling.code()
            if code is not grpc.StatusCode.OK:
                raise self._failure(code, await calling.details(), timeout)
        except grpc.aio.AioRpcError as error:
            ended = True
            raise self._failure(error.code(), error.details() or "", timeout) from None
        except asyncio.InvalidStateError:  # the call ended while it was written to
            ended = True
            raise self._failure(await calling.code(), await calling.details(), timeout) from None
        finally:
            if not ended:
                calling.cancel()

    def _failure(self, code: grpc.StatusCode, details: str, timeout: float) -> Failure:
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Failure("slow", f"no answer within {timeout:g} s")
        connected = self._channel.get_state() is grpc.ChannelConnectivity.READY
        return failure(code, details, connected=connected)

    async def _call(self, method: Any, request: Any, seconds: float = _ASK_SECONDS) -> Any:
        try:
            return await method(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"{error.code().name}: {error.details()}") from None


def _file(path: str, setting: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"engine.triton.{setting} {path} can't be read: {error.strerror}") from None

"""What becomes of rows that have spoken when the model's process dies beside them, at a server that a test plays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from engine.triton import fitted
from engine.triton.client import Client
from engine.triton.failures import Failure
from engine.triton.interface import Interface, Tensor
from engine.triton.pump import Pump
from engine.triton.run import End, Run
from engine.triton.tensors import encode
from haywain.settings import TritonContractSettings, TritonSettings


class Server(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Of prompts: `speak` is answered by a word and no end, `die` by the model's death once somebody has spoken."""

    def __init__(self) -> None:
        """It listens after `served`."""
        self.prompts: list[str] = []
        self.spoke = asyncio.Event()

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Answer."""
        prompt = (await anext(requests)).raw_input_contents[0][4:].decode()
        self.prompts.append(prompt)
        if prompt == "speak":
            answer = service_pb2.ModelInferResponse(raw_output_contents=[encode("BYTES", ["word"])])
            answer.outputs.add(name="text_output", datatype="BYTES", shape=[1])
            yield service_pb2.ModelStreamInferResponse(infer_response=answer)
            await asyncio.Event().wait()
        await self.spoke.wait()
        await context.abort(grpc.StatusCode.INTERNAL, "Stub process 'm' is not healthy.")


class Owner:
    """A `RunOwner`."""

    def __init__(self, server: Server) -> None:
        """It tells the server that somebody spoke."""
        self._server = server
        self.texts: list[str] = []
        self.failure: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()

    def piece(self, run: Run, text: str) -> None:
        """Take text."""
        self.texts.append(text)
        self._server.spoke.set()

    def ended(self, run: Run, end: End) -> None:
        """Never."""
        raise AssertionError(end)

    def failed(self, run: Run, failure: Failure) -> None:
        """Take the end."""
        self.failure.set_result(failure)


@contextlib.asynccontextmanager
async def served(server: Server) -> AsyncIterator[str]:
    """Give the address."""
    listening = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(server, listening)
    port = listening.add_insecure_port("127.0.0.1:0")
    await listening.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await listening.stop(0)


def ask(prompt: str) -> service_pb2.ModelInferRequest:
    """Make a request."""
    return service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[encode("BYTES", [prompt])])


async def test_what_has_spoken_is_not_sent_again() -> None:
    """A model dies while it runs two rows: the one whose text was passed on fails, and its text is never passed on twice."""
    interface = Interface(
        model="m", version="1", platform="x", batch=0, instances=1, decoupled=True, parameters={},
        inputs={"text_input": Tensor("text_input", "BYTES", 1, True), "max_tokens": Tensor("max_tokens", "INT32", 1)},
        outputs={"text_output": Tensor("text_output", "BYTES", 1)},
    )  # fmt: skip
    server = Server()
    async with served(server) as address:
        client = Client(TritonSettings(url=address))
        pump = Pump(client, fitted.find(interface, TritonContractSettings()), 2, request_seconds=20, hold_seconds=20)
        speaks, dies = Owner(server), Owner(server)
        pump.submit([Run(speaks, 0, ask("speak"), "speak"), Run(dies, 0, ask("die"), "die")])
        try:
            async with asyncio.timeout(10):
                failure = await speaks.failure
            assert (failure.kind, speaks.texts, server.prompts.count("speak")) == ("lost", ["word"], 1)
            assert not dies.failure.done()
        finally:
            await pump.close()
            await client.close()

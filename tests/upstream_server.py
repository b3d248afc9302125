"""An OpenAI-compatible server of which a test decides every byte: HTTP/1.1 over asyncio, with or without TLS.

As a program, `python upstream_server.py`, it answers chats and says its address first: for tests that stop the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

__all__ = ["Answer", "Request", "Upstream", "chat_body", "reply", "upstream"]


class Request:
    """A request as it came in."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        self.path = path
        self.headers = headers
        self.body = body
        self.writer = writer

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


Answer = Callable[[Request], Awaitable[bytes | None]]
"""Gives the whole reply, or None: close the connection without one."""


def reply(status: int, body: bytes | dict[str, Any], content_type: str = "application/json", **headers: str) -> bytes:
    """Write a reply; underscores in header names become dashes."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"content-type: {content_type}", f"content-length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def chat_body(text: str = "hi", **more: Any) -> dict[str, Any]:
    """Make a chat.completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 2}}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage} | more


HALF = b"{"
"""the body by which the backend asks whether there is an endpoint"""


class Upstream:
    """The server: `models` answers GET /v1/models, `half` who asks whether there is an endpoint, `answer` everything else."""

    def __init__(self) -> None:
        self.url = ""
        self.models: Answer = self._models
        self.half: Answer = self._half
        self.answer: Answer = self._chat
        self.requests: list[Request] = []
        """what `answer` is asked"""
        self.halves: list[str] = []
        """paths of who asks whether they are there"""
        self.probes = 0
        """GET /v1/models"""
        self.gone = asyncio.Event()
        """a client left before its answer"""
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._port = 0

    async def _models(self, request: Request) -> bytes:
        return reply(200, {"object": "list", "data": [{"id": "m", "object": "model", "created": 5, "max_model_len": 4096}]})

    async def _half(self, request: Request) -> bytes:
        return reply(400, {"error": {"message": "We could not parse the JSON body of your request."}})

    async def _chat(self, request: Request) -> bytes:
        return reply(200, chat_body(request.json["messages"][-1]["content"]))

    async def listen(self, context: ssl.SSLContext | None = None) -> None:
        """Accept connections; on the same port as before, if there was one."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port, ssl=context)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self._port}/v1"

    async def die(self) -> None:
        """Refuse connections, and cut those that are open."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await self._server.wait_closed()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while request := await self._read(reader, writer):
                if request.path == "/v1/models":
                    self.probes += 1
                    answering = asyncio.ensure_future(self.models(request))
                elif request.body == HALF:
                    self.halves.append(request.path)
                    answering = asyncio.ensure_future(self.half(request))
                else:
                    self.requests.append(request)
                    answering = asyncio.ensure_future(self.answer(request))
                leaving = asyncio.ensure_future(reader.read(1))
                await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    answering.cancel()
                    self.gone.set()
                    return
                leaving.cancel()
                await asyncio.wait({leaving})
                if (given := answering.result()) is None:
                    return
                writer.write(given)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
        if (first_byte := await reader.readexactly(1)) == b"\x16":  # TLS
            writer.write(reply(400, {}))
            return None
        head = first_byte + await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Request(first.split(" ")[1], headers, body, writer)


@contextlib.asynccontextmanager
async def upstream(context: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
    """Run one."""
    server = Upstream()
    await server.listen(context)
    try:
        yield server
    finally:
        await server.die()


async def _main() -> None:
    async with upstream() as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())

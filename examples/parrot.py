"""A whole engine without any of Haywain's code: gRPC, and the stubs of protos/. It answers a chat with its last message.

    python examples/parrot.py 127.0.0.1:9000                                                        # only serves
    python examples/parrot.py unix:haywain-data/run/parrot.sock unix:haywain-data/run/scheduler.sock   # tells a scheduler, too
    haywain engines check 127.0.0.1:9000

The numbers in comments are the steps of docs/engines.md, "Another engine, in any language".
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import _async as health
from grpc_health.v1 import health_pb2, health_pb2_grpc

from haywain.engine.v1 import engine_pb2 as pb
from haywain.engine.v1 import engine_pb2_grpc
from haywain.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc

SLOTS, SECONDS_A_WORD = 4, 0.02
CHAT, FIELDS = "/v1/chat/completions", ["max_tokens", "messages", "model"]  # sorted
Results = asyncio.Queue[pb.RunResponse | None]


class Slots:
    """Room for so many sequences at a time; who waits for a slot gets it by lane, then in turn."""

    def __init__(self) -> None:
        self.free, self.waiting, self.order = SLOTS, list[tuple[int, int, asyncio.Future[None]]](), itertools.count()

    async def take(self, lane: int) -> None:
        mine = asyncio.get_running_loop().create_future()
        heapq.heappush(self.waiting, (lane, next(self.order), mine))
        self.grant()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.give()
            raise

    def give(self) -> None:
        self.free += 1
        self.grant()

    def grant(self) -> None:
        while self.waiting and self.free:
            mine = heapq.heappop(self.waiting)[2]
            if not mine.done():
                self.free -= 1
                mine.set_result(None)


class Engine(engine_pb2_grpc.EngineServiceServicer):
    """The service."""

    def __init__(self, address: str) -> None:
        model = pb.ModelDescription(model="parrot", digest="parrot:1", endpoints=[CHAT], fields=FIELDS, owned_by="example")
        self.engine = pb.Engine(engine_id="parrot-0", incarnation=uuid.uuid4().hex, backend="example", version="1", slots=SLOTS)
        self.engine.address = address
        self.engine.models.append(model)
        self.slots = Slots()

    async def DescribeEngine(self, request: pb.DescribeEngineRequest, context: Any) -> pb.DescribeEngineResponse:  # noqa: N802
        return pb.DescribeEngineResponse(engine=self.engine)

    async def Run(self, requests: AsyncIterator[pb.RunRequest], context: Any) -> AsyncIterator[pb.RunResponse]:  # noqa: N802
        held: dict[int, asyncio.Task[pb.SequenceResult]] = {}  # ids are this stream's own
        results: Results = asyncio.Queue()  # as long as there are credits, at most
        yield pb.RunResponse(credits=2 * SLOTS)  # 2: first of all, and alone
        reading = asyncio.create_task(self.read(requests, held, results))
        try:
            while (response := await results.get()) is not None:
                yield response
        finally:  # 5: the stream ended or broke
            for one in (reading, *held.values()):
                one.cancel()

    async def read(self, requests: AsyncIterator[pb.RunRequest], held: dict[int, asyncio.Task[Any]], results: Results) -> None:
        def ended(one: asyncio.Task[pb.SequenceResult], number: int) -> None:
            del held[number]
            if one.cancelled():
                result = failed(499, "cancelled", "The request was cancelled.")
            elif error := one.exception():  # ours; what isn't answered is never given back
                result = failed(500, "engine_error", type(error).__name__)
            else:
                result = one.result()
            result.sequence_id = number
            results.put_nowait(pb.RunResponse(results=[result], credits=1))  # 3: one result, and its credit back

        async for request in requests:
            for sequence in request.sequences:
                number = sequence.sequence_id
                if len(held) >= 2 * SLOTS:  # 2: it came without a credit, and costs none
                    refusal = failed(429, "engine_overloaded", "There is no credit for it.", retryable=True)
                    refusal.sequence_id = number
                    results.put_nowait(pb.RunResponse(results=[refusal]))
                    continue
                held[number] = asyncio.create_task(self.answer(sequence))
                held[number].add_done_callback(lambda one, number=number: ended(one, number))  # type: ignore[misc]
            for number in request.cancel_sequence_ids:  # 4: unknown ones are ignored
                if number in held:
                    held[number].cancel()
        await asyncio.gather(*held.values(), return_exceptions=True)  # the caller has no more to send
        results.put_nowait(None)

    async def answer(self, sequence: pb.Sequence) -> pb.SequenceResult:
        try:
            body, text = asked(sequence)
        except LookupError as refusal:
            status, code, message, param = refusal.args
            return failed(status, code, message, param)
        left = sequence.deadline.ToNanoseconds() / 1e9 - time.time() if sequence.HasField("deadline") else None
        words = text.split(" ")[: body.get("max_tokens")]
        try:
            async with asyncio.timeout(left):  # 4
                await self.slots.take(sequence.lane)
                try:
                    await asyncio.sleep(SECONDS_A_WORD * len(words))
                finally:
                    self.slots.give()
        except TimeoutError:
            return failed(504, "row_timeout", "The row was not finished by its deadline.")
        said, spent = " ".join(words), len(text.split(" "))
        message = {"role": "assistant", "content": said}
        answer = {
            "id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "created": int(time.time()), "model": sequence.model,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop" if said == text else "length"}],
            "usage": {"prompt_tokens": spent, "completion_tokens": len(words), "total_tokens": spent + len(words)},
        }  # fmt: skip
        usage = pb.Usage(input_tokens=spent, output_tokens=len(words))
        return pb.SequenceResult(status_code=200, body=json.dumps(answer).encode(), usage=usage)


def asked(sequence: pb.Sequence) -> tuple[dict[str, Any], str]:
    """Read a request: its body, and the text of its last message. Raises LookupError with status, code, message and field."""
    if sequence.model != "parrot":
        raise LookupError(404, "model_not_found", f"There is no model {sequence.model!r} here.", "model")
    if sequence.endpoint != CHAT:
        raise LookupError(400, "invalid_url", f"The model doesn't serve {sequence.endpoint}.", "")
    try:
        body = json.loads(sequence.request)
    except (ValueError, RecursionError) as error:
        raise LookupError(400, "invalid_json", f"The body is no JSON: {error}.", "") from None
    if not isinstance(body, dict):
        raise LookupError(400, "invalid_json", "The body is no JSON object.", "")
    body = {field: value for field, value in body.items() if value is not None and value is not False}  # these ask for nothing
    if unknown := next((field for field in body if field not in FIELDS), None):  # 3: refused, never ignored
        raise LookupError(400, "unsupported_parameter", f"Unsupported parameter: '{unknown}'.", unknown)
    try:
        text = body["messages"][-1]["content"]
    except (KeyError, IndexError, TypeError):
        text = None
    if not isinstance(text, str):
        raise LookupError(400, "missing_required_parameter", "The last message needs a content that is a string.", "messages")
    if not isinstance(body.get("max_tokens", 1), int) or body.get("max_tokens", 1) < 1:
        raise LookupError(400, "invalid_value", "max_tokens is not a number above 0.", "max_tokens")
    return body, text


def failed(status: int, code: str, message: str, param: str = "", *, retryable: bool = False) -> pb.SequenceResult:
    """Make a result that is an error."""
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": param or None, "code": code}})
    error = pb.SequenceError(code=code, message=message, param=param)
    return pb.SequenceResult(status_code=status, body=body.encode(), error=error, retryable=retryable)


async def register(scheduler: str, engine: pb.Engine) -> None:
    """Tell the scheduler again and again that there is this engine: step 1."""
    async with grpc.aio.insecure_channel(scheduler) as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        while True:
            seconds = 1.0
            try:
                answer = await stub.RegisterEngine(scheduler_pb2.RegisterEngineRequest(engine=engine), timeout=5)
                seconds = answer.heartbeat_ms / 1_000
            except grpc.aio.AioRpcError as error:
                sys.stderr.write(f"not registered: {error.details()}\n")
            await asyncio.sleep(seconds)


async def main(address: str, scheduler: str = "") -> None:
    """Serve until killed: what runs here then is run elsewhere."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 * 1024 * 1024)])
    engine = Engine(address)
    engine_pb2_grpc.add_EngineServiceServicer_to_server(engine, server)
    checked = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checked, server)
    await checked.set("", health_pb2.HealthCheckResponse.SERVING)  # 7
    server.add_insecure_port(address)
    await server.start()
    await (register(scheduler, engine.engine) if scheduler else server.wait_for_termination())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))

"""GET /metrics: what every process counts, in one answer. And what the gateway itself counts: its answers over HTTP.

A process that says nothing for a second is `haywain_up` 0; the answer is never an error. Engines are those that the scheduler
knows, or knew when it could last be asked; what they say is not trusted to make sense. Who asks while others do shares their
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import grpc
from google.api import httpbody_pb2
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder

from gateway.answer import Context, header
from gateway.peers import Peers
from gateway.query import parameters
from gateway.routes import ROUTES
from haywain import errors, metrics, rpc
from haywain.scheduler.v1 import scheduler_pb2
from haywain.telemetry.v1 import telemetry_pb2, telemetry_pb2_grpc

__all__ = ["CountingInterceptor", "Merged", "Metrics"]

ANSWER_SECONDS = 1.0
_ANSWERS = metrics.counter(
    "haywain_http_answers", "Answers of the REST routes; what Envoy refuses by itself is not among them.", "route", "status"
)
_ROUTES = {route.rpc: f"{route.method} {route.path}" for route in reversed(ROUTES)}
_FAMILIES: dict[int, Callable[[str, str], Metric]] = {
    telemetry_pb2.Family.KIND_COUNTER: CounterMetricFamily,
    telemetry_pb2.Family.KIND_GAUGE: GaugeMetricFamily,
    telemetry_pb2.Family.KIND_HISTOGRAM: HistogramMetricFamily,
}
_SUFFIXES: dict[int, tuple[str, ...]] = {
    telemetry_pb2.Family.KIND_COUNTER: ("_total",),
    telemetry_pb2.Family.KIND_GAUGE: ("",),
    telemetry_pb2.Family.KIND_HISTOGRAM: ("_bucket", "_sum", "_count"),
}
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
Labels = dict[str, str]


class Metrics:
    """The route."""

    def __init__(self, peers: Peers) -> None:
        """Take the services to ask."""
        self._peers = peers
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._engines: dict[str, str] = {}
        """addresses by id"""
        self._gathering: asyncio.Task[Merged] | None = None

    async def scrape(self, context: Context) -> httpbody_pb2.HttpBody:
        """Ask all processes, and answer in the format that the caller prefers."""
        parameters(context)
        if self._gathering is None or self._gathering.done():
            self._gathering = asyncio.create_task(self._gather())
        merged = await asyncio.shield(self._gathering)
        encode, content_type = _encoder(header(context, "accept"))
        return httpbody_pb2.HttpBody(content_type=content_type, data=encode(merged))

    async def close(self) -> None:
        """Close the channels to engines."""
        if self._gathering is not None:
            self._gathering.cancel()
        await self._close(keep=())

    async def _gather(self) -> Merged:
        services = (self._peers.files, self._peers.batches, *self._peers.schedulers)
        own = telemetry_pb2.CollectResponse(families=[metrics.message(family) for family in await metrics.collect()])
        async with asyncio.TaskGroup() as group:
            asked = [({"process": peer.name}, group.create_task(_ask(peer.channel))) for peer in services]
            engines = await self._known_engines()
            for engine_id, address in engines.items():
                labels = {"process": "engine", "engine": engine_id}
                asked.append((labels, group.create_task(_ask(self._channel(address)))))
        merged = Merged()
        merged.add({"process": "gateway"}, own)
        for labels, answer in asked:
            merged.add(labels, answer.result())
        await self._close(keep=engines.values())
        return merged

    async def _known_engines(self) -> dict[str, str]:
        with contextlib.suppress(errors.HaywainError):
            listing = self._peers.scheduler.stub.ListEngines
            answer = await rpc.call(listing, scheduler_pb2.ListEnginesRequest(local=True), timeout=ANSWER_SECONDS)
            self._engines = {status.engine.engine_id: status.engine.address for status in answer.engines}
        return self._engines

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = rpc.channel(address)
        return self._channels[address]

    async def _close(self, keep: Iterable[str]) -> None:
        for address in self._channels.keys() - set(keep):
            await self._channels.pop(address).close()


def _encoder(accept: str) -> tuple[Callable[[Any], bytes], str]:
    """Choose a format by what the caller accepts: the plain one for a version that is no number, which can't be compared."""
    try:
        return choose_encoder(accept)
    except TypeError:
        return choose_encoder("")


async def _ask(channel: grpc.aio.Channel) -> telemetry_pb2.CollectResponse | None:
    """Ask a process; None when it gives no answer."""
    try:
        collect = telemetry_pb2_grpc.TelemetryServiceStub(channel).Collect
        answer: telemetry_pb2.CollectResponse = await rpc.call(collect, telemetry_pb2.CollectRequest(), timeout=ANSWER_SECONDS)
    except errors.HaywainError:
        return None
    return answer


class Merged:
    """The families of all processes, each once. What prometheus_client's encoders take for a registry."""

    def __init__(self) -> None:
        """Nobody has answered."""
        self._up = GaugeMetricFamily("haywain_up", "1 when the process answered.")
        self._families: dict[str, Metric] = {"haywain_up": self._up}

    def add(self, labels: Labels, answer: telemetry_pb2.CollectResponse | None) -> None:
        """Add what a process answered; None when it did not."""
        self._up.add_sample("haywain_up", labels, float(answer is not None))
        for family in filter(_makes_sense, answer.families if answer is not None else ()):
            made = _FAMILIES[family.kind](family.name, family.help)
            known = self._families.setdefault(family.name, made)
            if known.type == made.type and known is not self._up:
                for sample in family.samples:
                    known.add_sample(sample.name, {**sample.labels, **labels}, sample.value)

    def collect(self) -> Iterable[Metric]:
        """Give them by name."""
        return [self._families[name] for name in sorted(self._families)]


def _makes_sense(family: telemetry_pb2.Family) -> bool:
    """Tell whether a family can be written down: one that can't would spoil the whole answer."""
    allowed = {family.name + suffix for suffix in _SUFFIXES.get(family.kind, ())}
    labels = {name for sample in family.samples for name in sample.labels}
    names = {sample.name for sample in family.samples}
    return bool(allowed) and names <= allowed and all(_NAME.fullmatch(name) for name in (family.name, *labels))


class CountingInterceptor(rpc.Interceptor):
    """Counts answers by route and by the status that HTTP sees."""

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        """Wrap the handler."""
        handler = await super().intercept_service(continuation, details)
        route = _ROUTES.get(details.method.rpartition("/")[2])
        if handler is None or route is None or details.method.startswith("/grpc."):
            return handler
        kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
        inner = getattr(handler, kind)

        async def unary(request: Any, context: Any) -> Any:
            with _counted(route, context) as seen:
                return await inner(request, seen)

        async def streaming(request: Any, context: Any) -> AsyncIterator[Any]:
            with _counted(route, context) as seen:
                async with contextlib.aclosing(inner(request, seen)) as messages:
                    async for message in messages:
                        yield message

        return handler._replace(**{kind: streaming if handler.response_streaming else unary})


class _Seen:
    """A context that remembers what was said of the HTTP status."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.status = "200"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def send_initial_metadata(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._note(pairs)
        await self._context.send_initial_metadata(pairs)

    async def abort(self, code: Any, details: str = "", trailing_metadata: Iterable[tuple[str, str]] = ()) -> None:
        self.status = "500"
        self._note(trailing_metadata)
        await self._context.abort(code, details, trailing_metadata)

    def _note(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.status = next((value for name, value in pairs if name == "x-http-status"), self.status)


@contextlib.contextmanager
def _counted(route: str, context: Any) -> Iterator[_Seen]:
    """Count the answer that is made inside the block; 499 when the client left before its end."""
    seen = _Seen(context)
    try:
        yield seen
    except (asyncio.CancelledError, GeneratorExit):
        seen.status = "499"
        raise
    finally:
        _ANSWERS.labels(route, seen.status).inc()

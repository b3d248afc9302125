"""What a process counts and measures: its registry, the interceptor that counts calls, and the RPC that tells everything.

What grows lives in `REGISTRY`, made where it is counted by `counter`, `gauge` and `histogram`. What is looked up only when somebody
asks (rows that wait, engines) comes from a `Figures` that the process gives to `rpc.serving`. The gateway's GET /metrics asks every
process. Labels have few values: never the id of a batch or a file, never a tenant. docs/operations.md lists every name.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily

from haywain import __version__, errors, log
from haywain.telemetry.v1 import telemetry_pb2, telemetry_pb2_grpc

__all__ = ["NAME", "REGISTRY", "CallMeter", "Figures", "collect", "counter", "figure", "gauge", "histogram", "message", "telemetry"]

NAME = "haywain.telemetry.v1.TelemetryService"
Figures = Callable[[], Awaitable[Iterable[Metric]]]
"""tells figures that are looked up when they are asked for"""

REGISTRY = CollectorRegistry(auto_describe=False)
"""the process's own"""

_KINDS = {
    "counter": telemetry_pb2.Family.KIND_COUNTER,
    "gauge": telemetry_pb2.Family.KIND_GAUGE,
    "histogram": telemetry_pb2.Family.KIND_HISTOGRAM,
}
_log = log.get()


def counter(name: str, what: str, *labels: str) -> Counter:
    """Make a counter; `name` without `_total`."""
    return Counter(name, what, labels, registry=REGISTRY)


def gauge(name: str, what: str, *labels: str) -> Gauge:
    """Make a gauge."""
    return Gauge(name, what, labels, registry=REGISTRY)


def histogram(name: str, what: str, buckets: Sequence[float], *labels: str) -> Histogram:
    """Make a histogram."""
    return Histogram(name, what, labels, registry=REGISTRY, buckets=buckets)


def figure(name: str, what: str, values: Mapping[Any, float], *labels: str) -> Metric:
    """Make a gauge of values that were just looked up, by a tuple of the values of its labels."""
    family = GaugeMetricFamily(name, what, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


disable_created_metrics()  # type: ignore[no-untyped-call]
ProcessCollector(registry=REGISTRY)
gauge("haywain_build_info", "1; the version is a label.", "version").labels(__version__).set(1)
_CALLS = counter("haywain_rpc_calls", "gRPC calls that ended here.", "method", "code")
_SECONDS = histogram(
    "haywain_rpc_seconds",
    "What calls took; streams to their end.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 600),
    "method",
)


class CallMeter(grpc.aio.ServerInterceptor):
    """Counts and times calls, by method and status code. The first of a server's interceptors: it sees what the others make.

    What all of them make of a handler is the same for every call, so it is made once.
    """

    def __init__(self) -> None:
        """Nothing is wrapped yet."""
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        """Wrap the handler."""
        if (wrapped := self._wrapped.get(details.method)) is not None:
            return wrapped
        handler = await continuation(details)
        if handler is None or details.method.startswith("/grpc."):
            return handler
        wrapped = self._wrapped[details.method] = self._metered(handler, details)
        return wrapped

    def _metered(self, handler: Any, details: grpc.HandlerCallDetails) -> Any:
        method = details.method.rpartition(".")[2]  # FilesService/GetFile
        kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
        inner = getattr(handler, kind)

        async def unary(request: Any, context: Any) -> Any:
            began, code = time.perf_counter(), "OK"
            try:
                return await inner(request, context)
            except BaseException as error:
                code = _code(context, error)
                raise
            finally:
                _count(method, code, began)

        async def streaming(request: Any, context: Any) -> AsyncIterator[Any]:
            began, code = time.perf_counter(), "OK"
            messages = inner(request, context)
            try:
                async for message in messages:
                    yield message
            except BaseException as error:
                code = _code(context, error)
                raise
            finally:
                _count(method, code, began)
                await messages.aclose()

        return handler._replace(**{kind: streaming if handler.response_streaming else unary})


def _count(method: str, code: str, began: float) -> None:
    ended, timed = _children(method, code)
    ended.inc()
    timed.observe(time.perf_counter() - began)


@functools.cache  # finding them takes longer than counting
def _children(method: str, code: str) -> tuple[Counter, Histogram]:
    return _CALLS.labels(method, code), _SECONDS.labels(method)


def _code(context: Any, error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "CANCELLED"
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"


class _Telemetry(telemetry_pb2_grpc.TelemetryServiceServicer):
    """Tells what the process counts."""

    def __init__(self, figures: Figures | None) -> None:
        """`figures` are looked up at each call."""
        self._figures = figures

    async def Collect(self, request: telemetry_pb2.CollectRequest, context: Any) -> telemetry_pb2.CollectResponse:  # noqa: N802
        """Tell everything."""
        return telemetry_pb2.CollectResponse(families=[message(family) for family in await collect(self._figures)])


async def collect(figures: Figures | None = None) -> list[Metric]:
    """Gather what there is; figures that can't be looked up now are left out."""
    families = list(REGISTRY.collect())
    if figures is not None:
        try:
            families += await figures()
        except errors.HaywainError as error:
            _log.warning("figures.missing", reason=error.reason(), error=error.message)
    return families


def telemetry(figures: Figures | None) -> tuple[Any, Callable[[Any, Any], None], str]:
    """Make the service as `rpc.serving` takes it."""
    return _Telemetry(figures), telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server, NAME


def message(family: Metric) -> telemetry_pb2.Family:
    """Make the message of a family."""
    samples = [telemetry_pb2.Sample(name=sample.name, labels=sample.labels, value=sample.value) for sample in family.samples]
    kind = _KINDS.get(family.type, telemetry_pb2.Family.KIND_UNSPECIFIED)
    return telemetry_pb2.Family(name=family.name, help=family.documentation, kind=kind, samples=samples)

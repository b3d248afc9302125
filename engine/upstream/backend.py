"""A backend that relays: each sequence is one HTTP request to the upstream, its bytes unchanged, its answer's bytes too.

submit ─▶ a place (concurrency.py) ─▶ POST {url}/chat/completions ─▶ reply (replies.py) ─▶ result
             ▲                             │ busy, or away
             └── pause: Retry-After, else ─┘ longer each time; after `hold_seconds` the sequence goes back, for elsewhere
                 0.25 s doubled, jittered
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

import httpx
import httpx_sse

from engine import answers, invalid
from engine.backend import Emit
from engine.upstream import connection, replies
from engine.upstream.concurrency import Concurrency
from haywain import clock, log
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import SettingsError, Unavailable
from haywain.settings import EngineSettings, UpstreamSettings

__all__ = ["UpstreamBackend", "create"]

_PAUSE_SECONDS: Final = 0.25
_PAUSE_SECONDS_MAX: Final = 10.0
_ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
_JSON: Final = {"content-type": "application/json"}
_OURS: Final = b'"max_context_length"'
_CALL_HOLD_SECONDS: Final = 2.0
"""someone waits for a synchronous request: better told soon"""
_TRIES: Final = 2
"""how often a sequence may be what the upstream went away under, before it goes back"""
_log = log.get()


def create(settings: EngineSettings) -> UpstreamBackend:
    """Make the backend. Raises SettingsError."""
    return UpstreamBackend(settings.upstream)


class UpstreamBackend:
    """Runs up to `slots` sequences at a time, fewer while the upstream is busy."""

    name = "upstream"

    def __init__(self, settings: UpstreamSettings) -> None:
        """Nothing is opened yet. Raises SettingsError."""
        if settings.slots < 1:
            raise SettingsError(f"engine.upstream.slots is {settings.slots}, expected at least 1")
        self._endpoints = settings.endpoints or _ENDPOINTS
        unknown = [endpoint for endpoint in self._endpoints if endpoint not in _ENDPOINTS]
        if unknown:
            raise SettingsError(f"engine.upstream.endpoints: {unknown[0]!r} is none of {', '.join(_ENDPOINTS)}")
        self.version = f"httpx-{version('httpx')}"
        self.slots = settings.slots
        self._settings = settings
        self._places = Concurrency(settings.slots)
        self._running: dict[int, asyncio.Task[pb.SequenceResult]] = {}
        self._away: replies.Away | None = None
        self._told = False
        self._probing = asyncio.Lock()
        self._probed = 0.0
        self._closing = False
        self._http: httpx.AsyncClient
        self._emit: Emit

    async def start(self, emit: Emit) -> list[pb.ModelDescription]:
        """Find the models. While the upstream is away it is asked again; then Unavailable, in one line."""
        self._emit = emit
        self._http = connection.client(self._settings)
        until = time.monotonic() + self._settings.start_seconds
        while True:
            try:
                found = await connection.models(self._http, self._settings)
                break
            except Unavailable:
                if time.monotonic() >= until:
                    raise
                await asyncio.sleep(min(0.5, self._settings.start_seconds))
        return [self._described(model) for model in found]

    def submit(self, sequences: Sequence[pb.Sequence]) -> None:
        """Start a request for each."""
        for sequence in sequences:
            running = asyncio.create_task(self._run(sequence))
            self._running[sequence.sequence_id] = running
            running.add_done_callback(functools.partial(self._ended, sequence.sequence_id))

    def cancel(self, sequence_ids: Sequence[int]) -> None:
        """Break these requests off; the upstream sees its client leave."""
        for sequence_id in sequence_ids:
            if (running := self._running.get(sequence_id)) is not None:
                running.cancel()

    async def close(self) -> None:
        """Break everything off."""
        self._closing = True
        running = list(self._running.values())
        for request in running:
            request.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if hasattr(self, "_http"):
            await self._http.aclose()

    # -- inside ---------------------------------------------------------------------------------------------------------------

    def _described(self, model: connection.Model) -> pb.ModelDescription:
        return pb.ModelDescription(
            model=model.id,
            digest=f"upstream:{model.root or model.id}",
            context_length=model.context_length,
            endpoints=sorted(self._endpoints),
            fields=sorted(self._settings.fields),
            create_time=clock.timestamp(float(model.created or int(time.time()))),
            owned_by=model.owned_by or "upstream",
        )

    def _ended(self, sequence_id: int, running: asyncio.Task[pb.SequenceResult]) -> None:
        del self._running[sequence_id]
        if self._closing:
            return
        if running.cancelled():
            self._emit.result(answers.cancelled(sequence_id))
        elif (error := running.exception()) is not None:
            _log.error("upstream.request_failed", error=repr(error))
            self._emit.result(answers.engine_error(sequence_id, "internal error"))
        else:
            self._emit.result(running.result())

    async def _run(self, sequence: pb.Sequence) -> pb.SequenceResult:
        """Send it until there is an answer, or the upstream was away for too long, or went away too often under it."""
        number = sequence.sequence_id
        if _OURS in sequence.request:
            return answers.error_result(number, invalid.unsupported_parameter("max_context_length"))
        arrived, given_up, pause, tries = time.monotonic(), 0.0, _PAUSE_SECONDS, 0
        while True:
            result = await self._once(sequence, arrived)
            if isinstance(result, pb.SequenceResult):
                return result
            tries += result.suspect
            now = time.monotonic()
            hold = self._settings.hold_seconds
            given_up = given_up or now + (min(hold, _CALL_HOLD_SECONDS) if sequence.lane == pb.LANE_INTERACTIVE else hold)
            wait = pause * random.uniform(0.5, 1.0) if result.after is None else result.after * random.uniform(1.0, 1.1)  # noqa: S311
            pause = min(_PAUSE_SECONDS_MAX, 2 * pause)
            if tries >= _TRIES or (tries and now + wait >= given_up):
                return answers.engine_error(number, f"The upstream went away: {result.reason}", retryable=True)
            if now + wait >= given_up:
                return replies.unavailable(number, result.reason)
            await asyncio.sleep(wait)

    async def _once(self, sequence: pb.Sequence, arrived: float) -> pb.SequenceResult | replies.Away:
        """Send it when there is a place for it, unless the upstream is away still."""
        async with self._places.place(sequence.lane) as epoch:
            if self._away and (away := await self._probe()) is not None:
                return away
            began = time.monotonic()
            try:
                result = await self._exchange(sequence)
            except replies.Away as away:
                if away.busy:
                    self._places.busy(epoch)
                else:
                    self._gone(away)
                return away
        ended = time.monotonic()
        if self._told:  # it is back when it answers rows, not when it lists its models
            self._told = False
            _log.info("upstream.back")
        if 0 < self._settings.latency_seconds < ended - began:
            self._places.busy(epoch)
        else:
            self._places.answered()
        result.queue_ms, result.run_ms = int((began - arrived) * 1_000), int((ended - began) * 1_000)
        return result

    def _gone(self, away: replies.Away) -> None:
        if not self._told:
            self._told = True
            _log.warning("upstream.away", reason=away.reason[:300])
        self._away = replies.Away(away.reason)

    async def _probe(self) -> replies.Away | None:
        """Ask whether it is back, one of all who wait and not too often; None when it is."""
        async with self._probing:
            if self._away is None or time.monotonic() < self._probed + _PAUSE_SECONDS:
                return self._away
            try:
                await connection.models(self._http, self._settings)
            except (Unavailable, SettingsError) as error:
                self._away = replies.Away(error.message)
            else:
                self._away = None
            self._probed = time.monotonic()
            return self._away

    async def _exchange(self, sequence: pb.Sequence) -> pb.SequenceResult:
        """Do one request. Raises Away."""
        path = sequence.endpoint.removeprefix("/v1/")
        started = False
        try:
            if not sequence.stream:
                return replies.answer(sequence.sequence_id, await self._http.post(path, content=sequence.request, headers=_JSON))
            async with self._http.stream("POST", path, content=sequence.request, headers=_JSON) as response:
                if response.status_code != 200:
                    await response.aread()
                    return replies.failure(sequence.sequence_id, response)
                started = True
                return await self._relay(sequence.sequence_id, response)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise replies.Away(_reason(error)) from error
        except httpx.ReadTimeout:
            # It is there, but doesn't end: a try of this row, and no reason to stop the others.
            message = f"The upstream sent nothing for {self._settings.timeout_seconds:g} s (engine.upstream.timeout_seconds)."
            return answers.engine_error(sequence.sequence_id, message, retryable=not started)
        except httpx.TransportError as error:
            if started:
                return answers.engine_error(sequence.sequence_id, f"The upstream broke its stream off: {_reason(error)}")
            raise replies.Away(_reason(error), suspect=True) from error

    async def _relay(self, sequence_id: int, response: httpx.Response) -> pb.SequenceResult:
        """Pass a stream on, chunk by chunk."""
        usage, done = None, False
        try:
            async for event in httpx_sse.EventSource(response).aiter_sse():
                if event.data == "[DONE]":
                    done = True
                elif event.data:
                    chunk = event.data.encode()
                    usage = replies.usage_of(chunk) or usage
                    self._emit.delta(sequence_id, chunk)
        except (httpx_sse.SSEError, ValueError) as error:
            return answers.engine_error(sequence_id, f"The upstream's stream is not one of events with JSON: {error}")
        if not done:
            return answers.engine_error(sequence_id, "The upstream ended its stream without [DONE].")
        return pb.SequenceResult(sequence_id=sequence_id, status_code=200, body=b"{}", usage=usage)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__

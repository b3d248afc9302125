"""A backend that relays: each sequence is one HTTP request to the upstream, its bytes unchanged, its answer's bytes too.

submit ─▶ a place (concurrency.py) ─▶ POST {url}/chat/completions ─▶ reply (replies.py) ─▶ result
             ▲                             │ busy, or away
             └── pause: Retry-After, else ─┘ longer each time; after `hold_seconds` the sequence goes back, for elsewhere
                 0.25 s doubled, jittered

While rows run and nothing comes for `probe_seconds`, the models are asked for: an upstream that is frozen is away (engine/relay).
What it has stays there, since it may be slow and nothing else; no more is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

import httpx

from engine import answers, invalid
from engine.backend import Emit
from engine.relay.arrival import arrival
from engine.relay.holding import gone_back, hold
from engine.relay.presence import Presence
from engine.upstream import connection, endpoints, reading, replies
from engine.upstream.concurrency import Concurrency, TurnedAwayError
from haywain import clock, log
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import SettingsError, Unavailable
from haywain.openai import ENDPOINTS
from haywain.settings import EngineSettings, UpstreamSettings, masked

__all__ = ["UpstreamBackend", "create"]

_PAUSE_SECONDS: Final = 0.25
_PAUSE_SECONDS_MAX: Final = 10.0
_JSON: Final = {"content-type": "application/json"}
_OURS: Final = b'"max_context_length"'
_TRIES: Final = 2
"""how often a sequence may be what the upstream went away under, before it goes back"""
_ANSWER_BYTES: Final = range(1_024, 48 * 2**20 + 1)
"""more doesn't fit a message to the scheduler"""
_WORDS_BYTES: Final = 65_536
"""of an error's body"""
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
        if settings.answer_bytes not in _ANSWER_BYTES:
            limits = f"{_ANSWER_BYTES.start} to {_ANSWER_BYTES.stop - 1}"
            raise SettingsError(f"engine.upstream.answer_bytes is {settings.answer_bytes}, expected {limits}")
        unknown = [endpoint for endpoint in settings.endpoints if endpoint not in ENDPOINTS]
        if unknown:
            raise SettingsError(f"engine.upstream.endpoints: {unknown[0]!r} is none of {', '.join(ENDPOINTS)}")
        self.version = f"httpx-{version('httpx')}"
        self.slots = settings.slots
        self._settings = settings
        self._places = Concurrency(settings.slots)
        self._presence = Presence("upstream", goes=self._places.turn_away)
        self._running: dict[int, asyncio.Task[pb.SequenceResult]] = {}
        self._heard = 0.0
        """when anything came last, by the monotonic clock"""
        self._watching: asyncio.Task[None] | None = None
        self._closing = False
        self._http: httpx.AsyncClient
        self._emit: Emit

    async def start(self, emit: Emit) -> list[pb.ModelDescription]:
        """Find the models, and what they serve. While the upstream is away it is asked again; then Unavailable, in one line."""
        self._emit = emit
        settings = self._settings
        self._http = connection.client(settings)
        found = await arrival(
            functools.partial(connection.models, self._http, settings),
            name="upstream",
            url=masked(settings.url),
            seconds=settings.start_seconds,
        )
        served = sorted(await endpoints.served(self._http, settings))
        self._watching = asyncio.create_task(self._watch(), name="upstream-watch")
        _log.info("upstream.found", models=[model.id for model in found][:20], endpoints=served)
        return [self._described(model, served) for model in found]

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
        running: list[asyncio.Task[pb.SequenceResult] | asyncio.Task[None]] = list(self._running.values())
        running += [self._watching] if self._watching is not None else []
        for request in running:
            request.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if hasattr(self, "_http"):
            await self._http.aclose()

    # -- inside ---------------------------------------------------------------------------------------------------------------

    def _described(self, model: connection.Model, served: list[str]) -> pb.ModelDescription:
        return pb.ModelDescription(
            model=model.id,
            digest=f"upstream:{model.root or model.id}",
            context_length=model.context_length,
            endpoints=served,
            fields=sorted(self._settings.fields),
            create_time=clock.timestamp(float(model.created or int(time.time()))),
            owned_by=model.owned_by or "upstream",
            reuses_prefixes=True,  # most servers do
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
            given_up = given_up or now + hold(self._settings.hold_seconds, interactive=sequence.lane == pb.LANE_INTERACTIVE)
            wait = pause * random.uniform(0.5, 1.0) if result.after is None else result.after * random.uniform(1.0, 1.1)  # noqa: S311
            pause = min(_PAUSE_SECONDS_MAX, 2 * pause)
            if tries >= _TRIES or (tries and now + wait >= given_up):
                return answers.engine_error(number, f"The upstream went away: {result.reason}", retryable=True)
            if now + wait >= given_up:
                return gone_back(number, "The upstream", result.reason)
            await asyncio.sleep(wait)
            await self._presence.there(given_up - time.monotonic())

    async def _once(self, sequence: pb.Sequence, arrived: float) -> pb.SequenceResult | replies.Away:
        """Send it when there is a place for it, unless the upstream is away."""
        if self._presence.reason:
            return replies.Away(self._presence.reason)
        try:
            async with self._places.place(sequence.lane) as epoch:
                return await self._at(sequence, epoch, arrived)
        except TurnedAwayError:
            return replies.Away(self._presence.reason)

    async def _at(self, sequence: pb.Sequence, epoch: int, arrived: float) -> pb.SequenceResult | replies.Away:
        """Send it, at its place."""
        if self._presence.reason:  # it went when the place was given
            return replies.Away(self._presence.reason)
        began = time.monotonic()
        if self._places.out == 1:  # nothing was to be heard before
            self._heard = began
        try:
            result = await self._exchange(sequence)
        except replies.Away as away:
            if away.busy:
                self._places.busy(epoch)
            else:
                self._presence.gone(away.reason)
            return away
        ended = time.monotonic()
        self._presence.answered()
        if 0 < self._settings.latency_seconds < ended - began:
            self._places.busy(epoch)
        else:
            self._places.answered()
        result.queue_ms, result.run_ms = int((began - arrived) * 1_000), int((ended - began) * 1_000)
        return result

    async def _watch(self) -> None:
        """Look after the upstream; while it is there, only whether it says anything: it may work without listing its models."""
        seconds = self._settings.probe_seconds

        async def look() -> str:
            if not self._presence.reason:
                reason = await connection.silence(self._http, seconds)
                self._heard = max(self._heard, 0.0 if reason else time.monotonic())
                return reason if self._silent(seconds) else ""  # a row may have had its answer meanwhile
            try:
                await connection.models(self._http, self._settings)
            except (Unavailable, SettingsError) as error:
                return error.message
            self._heard = time.monotonic()
            return ""

        try:
            await self._presence.watch(look, lambda: seconds > 0 and self._silent(seconds))
        except Exception as error:  # noqa: BLE001 - without it nobody would notice that the upstream is back
            _log.exception("upstream.watch_failed")
            self._emit.died(f"looking after the upstream failed: {error!r}")

    def _silent(self, seconds: float) -> bool:
        return self._places.out > 0 and time.monotonic() - self._heard >= seconds

    async def _exchange(self, sequence: pb.Sequence) -> pb.SequenceResult:
        """Do one request. Raises Away."""
        number, path = sequence.sequence_id, sequence.endpoint.removeprefix("/v1/")
        started = False
        try:
            async with self._http.stream("POST", path, content=sequence.request, headers=_JSON) as response:
                self._heard = time.monotonic()
                if response.status_code != 200:
                    return replies.failure(number, response, await reading.beginning(response, _WORDS_BYTES))
                started = sequence.stream
                if sequence.stream:
                    return await self._relay(number, response)
                return replies.answer(number, response, await reading.whole(response, self._settings.answer_bytes))
        except reading.TooLargeError:
            return replies.too_large(number, self._settings.answer_bytes)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise replies.Away(_reason(error)) from error
        except httpx.ReadTimeout:
            # It is there, but doesn't end: a try of this row, and no reason to stop the others.
            message = f"The upstream sent nothing for {self._settings.timeout_seconds:g} s (engine.upstream.timeout_seconds)."
            return answers.engine_error(number, message, retryable=not started)
        except httpx.DecodingError as error:
            return answers.engine_error(number, f"The upstream's answer can't be unpacked: {error}")
        except httpx.TransportError as error:
            if started:
                return answers.engine_error(number, f"The upstream broke its stream off: {_reason(error)}")
            raise replies.Away(_reason(error), suspect=True) from error

    async def _relay(self, sequence_id: int, response: httpx.Response) -> pb.SequenceResult:
        """Pass a stream on, chunk by chunk. Raises TooLargeError."""
        usage, done = None, False
        try:
            async with contextlib.aclosing(reading.events(response, self._settings.answer_bytes)) as events:
                async for chunk in events:
                    self._heard = time.monotonic()
                    if chunk == reading.DONE:
                        done = True
                    elif chunk:
                        usage = replies.usage_of(chunk) or usage
                        self._emit.delta(sequence_id, chunk)
        except ValueError as error:
            return answers.engine_error(sequence_id, f"The upstream's stream is not one of events with JSON: {error}")
        if not done:
            return answers.engine_error(sequence_id, "The upstream ended its stream without [DONE].")
        return pb.SequenceResult(sequence_id=sequence_id, status_code=200, body=b"{}", usage=usage)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__

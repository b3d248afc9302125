"""Which runs are in Triton, and which wait for it.

    submit ─▶ waiting ─▶ in Triton (at most `width` at a time) ─▶ its owner
                 ▲              │ busy: width is halved; it grows again by one for each full width of answers
                 │◀─────────────┤ away: nothing is sent until the model is ready again
                 │              │ dead: then one at a time, until one is answered
                 │              │ stopped there, not by us: sent again, a bounded number of times
              suspects ◀────────┘ lost: sent again; lost twice: alone, with nothing beside it; lost then: it fails

Whoever waits longer than `hold_seconds` goes back as `engine_unavailable`, which isn't counted as a try of the row.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from engine.relay.holding import hold
from engine.relay.presence import Presence
from engine.relay.width import Width
from engine.triton.client import Client
from engine.triton.failures import Failure
from engine.triton.fitted import Fitted
from engine.triton.run import Reader, Run
from haywain import log

__all__ = ["Pump"]

_PAUSE_SECONDS: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0
_GIVE_BACK_SECONDS: Final = 0.25
_TRIES: Final = 5
_LOSSES: Final = 3
_log = log.get()


class Pump:
    """Sends runs."""

    def __init__(self, client: Client, fitted: Fitted, slots: int, *, request_seconds: float, hold_seconds: float) -> None:
        """At most `slots` at a time."""
        self._client = client
        self._fitted = fitted
        self._request_seconds = request_seconds
        self._hold_seconds = hold_seconds
        self._width = Width(slots, slots)
        self._presence = Presence("triton", returns=self._returned, model=fitted.interface.model)
        self._pause = 0.0
        self._not_before = 0.0
        self._waiting: tuple[deque[Run], deque[Run]] = (deque(), deque())
        self._suspects: deque[Run] = deque()
        self._alone = False
        self._proven = True
        """whether the model has answered since it was last found dead"""
        self._sent: dict[Run, asyncio.Task[None]] = {}
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def width(self) -> int:
        """How many may be in Triton at the same time now."""
        return self._width.limit if self._proven else 1

    def submit(self, runs: Iterable[Run]) -> None:
        """Take runs; their owners hear of each."""
        for run in runs:
            self._waiting[not run.interactive].append(run)
        self._send()

    def cancel(self, runs: Iterable[Run]) -> None:
        """Forget runs, and stop them in Triton; their owners hear nothing more."""
        for run in runs:
            if (sent := self._sent.get(run)) is not None and sent is not asyncio.current_task():
                sent.cancel()
            for queue in (*self._waiting, self._suspects):
                if run in queue:
                    queue.remove(run)

    async def close(self) -> None:
        """Stop everything."""
        if self._alarm is not None:
            self._alarm.cancel()
        for queue in (*self._waiting, self._suspects):
            queue.clear()
        sent = list(self._sent.values())
        for task in sent:
            task.cancel()
        await asyncio.gather(*sent, return_exceptions=True)

    async def watch(self, same: Callable[[], Awaitable[None]]) -> None:
        """Look after the model, until cancelled. `same` looks whether it is the one it was; what that raises is raised."""

        async def look() -> str:
            reason = await self._look()
            self._proven = self._proven or bool(reason)  # what comes back will be another process
            if not reason:
                await same()
            return reason

        # Side by side: a server that is frozen lets `look` wait.
        both = [asyncio.create_task(self._presence.watch(look)), asyncio.create_task(self._give_back_late())]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    def _returned(self) -> None:
        if self._proven:
            self._presence.answered()
        self._send()

    async def _look(self) -> str:
        """Tell why the model can't be used; empty when it can."""
        try:
            ready = await self._client.ready(self._fitted.interface.model)
        except Exception as error:  # noqa: BLE001 - whatever it is, the model can't be used
            if str(error).startswith("DEADLINE_EXCEEDED"):
                self._break(f"the server doesn't answer: {error}")  # nor will it answer what is in it
            return str(error)
        return "" if ready else "the model is not ready"

    # -- sending --------------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send what may be sent now."""
        if self._presence.reason or self._alone:
            return
        wait = self._not_before - time.monotonic()
        if wait > 0 and self._sent:
            return  # the next answer comes back here
        if wait > 0:
            if self._alarm is None:
                self._alarm = asyncio.get_running_loop().call_later(wait, self._ring)
            return
        while not self._alone and len(self._sent) < self.width and (run := self._next()) is not None:
            task = asyncio.create_task(self._run(run))
            self._sent[run] = task
            task.add_done_callback(lambda _, run=run: self._done(run))  # type: ignore[misc]

    def _ring(self) -> None:
        self._alarm = None
        self._send()

    def _next(self) -> Run | None:
        if self._suspects and (self._proven or not any(self._waiting)):
            if self._sent:
                return None
            self._alone = True
            return self._suspects.popleft()
        return next((queue.popleft() for queue in self._waiting if queue), None)

    def _done(self, run: Run) -> None:
        del self._sent[run]
        if not self._sent:
            self._alone = False
        self._send()

    async def _run(self, run: Run) -> None:
        run.began = time.monotonic()
        run.epoch = self._width.epoch
        try:
            await self._exchange(run)
        except Failure as failure:
            self._failed(run, failure)
        except Exception as error:  # noqa: BLE001 - a defect here must cost one row, and be told
            _log.exception("triton.request_failed")
            run.owner.failed(run, Failure("failed", f"internal error: {type(error).__name__}"))
        else:
            self._pause = 0.0
            self._proven = True
            self._presence.answered()
            self._width.answered(full=len(self._sent) >= self.width or any(self._waiting))

    async def _exchange(self, run: Run) -> None:
        reader = Reader(self._fitted, run)
        timeout = self._request_seconds
        if run.deadline:
            timeout = min(timeout, max(0.001, run.deadline - run.began))

        def each(response: Any) -> bool:
            if text := reader.read(response):
                run.said = True
                run.owner.piece(run, text)
            return reader.stopped

        await self._client.infer(run.ask, timeout, each)
        rest, end = reader.end()
        end.run_ms = int((time.monotonic() - run.began) * 1_000)
        if rest:
            run.owner.piece(run, rest)
        run.owner.ended(run, end)

    # -- failures -------------------------------------------------------------------------------------------------------------

    def _failed(self, run: Run, failure: Failure) -> None:
        if failure.kind == "slow" and 0 < run.deadline <= time.monotonic():
            failure = Failure("late", failure.reason)
        run.tries += failure.kind == "stopped"
        if failure.kind in {"refused", "failed", "late"} or run.said or run.tries >= _TRIES:
            run.owner.failed(run, failure)
        elif failure.kind in {"lost", "slow"} or (failure.kind == "dead" and self._proven):
            self._lost(run, failure.reason)
        elif failure.kind == "dead":
            self._waiting[not run.interactive].append(run)  # the last, so that each has its turn at trying
        else:
            if failure.kind == "busy":
                self._busy(run)
            elif failure.kind == "away":
                self._presence.gone(failure.reason)
            self._waiting[not run.interactive].appendleft(run)
        if failure.kind in {"lost", "dead"}:
            self._presence.gone(failure.reason)
            self._break(failure.reason)
            self._proven = failure.kind == "lost" and self._proven

    def _lost(self, run: Run, reason: str) -> None:
        run.losses += 1
        if run.losses >= _LOSSES and self._alone:
            told = f"it was lost {run.losses} times while it ran this request, the last time with nothing else: {reason}"
            run.owner.failed(run, Failure("failed", told))
        elif run.losses > 1:
            self._suspects.append(run)
        else:
            self._waiting[not run.interactive].append(run)  # not the first again: it may be what broke it

    def _busy(self, run: Run) -> None:
        """Send fewer at a time: once for all that were refused together."""
        now = time.monotonic()
        self._hold(run, now)
        if not self._width.busy(run.epoch, min(self._width.limit, len(self._sent)) / 2):
            return
        self._pause = min(_PAUSE_SECONDS_MAX, 2 * self._pause or _PAUSE_SECONDS)
        self._not_before = now + self._pause

    def _break(self, reason: str) -> None:
        """Stop what is in Triton, and send it again: of a model whose process died nobody else would tell.

        What has spoken is not sent again: its owner would have its words twice.
        """
        for run, sent in self._sent.items():
            if sent is asyncio.current_task() or sent.cancelling() or not sent.cancel():
                continue
            if run.said:
                run.owner.failed(run, Failure("lost", reason))
            else:
                self._lost(run, reason)

    def _hold(self, run: Run, now: float) -> None:
        run.given_up = run.given_up or now + hold(self._hold_seconds, interactive=run.interactive)

    async def _give_back_late(self) -> None:
        while True:
            await asyncio.sleep(_GIVE_BACK_SECONDS)
            self._give_back()

    def _give_back(self) -> None:
        """Give up what has waited too long."""
        now = time.monotonic()
        for queue in (*self._waiting, self._suspects):
            late = []
            for run in queue:
                if self._presence.reason:
                    self._hold(run, now)
                if run.given_up and run.given_up <= now:
                    late.append(run)
            for run in late:
                if run not in queue:
                    continue  # went with another run of its row
                queue.remove(run)
                run.owner.failed(run, Failure("away", self._presence.reason or "its queue is full"))

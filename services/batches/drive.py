"""The loop that takes every batch of this replica from where it is to its end.

    CreateBatch, CancelBatch ──┐
    WatchProgress (hints) ─────┼──▶ wake ──▶ queue ──▶ movers ──▶ Steps.advance
    poll: leases, GetProgress, │               │
    expiry, retries ───────────┘               └──▶ one mover ──▶ Steps.validate

A batch whose rows wait or run costs a place in a dictionary and, now and then, in the GetProgress of a poll (turns.py). Polling is
the truth: a hint that never comes costs a second, or more while hundreds wait. A peer that is away fails no batch; its steps are
tried again with backoff.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable

from haywain import errors, log
from haywain.clock import Clock
from haywain.scheduler.v1 import scheduler_pb2
from services.batches.held import Hearing
from services.batches.own_files import OwnFiles
from services.batches.peers import Scheduler
from services.batches.progress import ProgressBook
from services.batches.record import Record
from services.batches.steps import Next, Steps
from services.batches.store import LEASE_SECONDS, BatchStore
from services.batches.turns import Turns

__all__ = ["Driver"]

MOVERS = 128
"""What so many batches ask of the database and of the peers at the same time goes there together."""
MANY = 32
TOGETHER_SECONDS = 0.2
"""While many are open, those to which something happens start off together, so often."""
FIRST_BACKOFF_SECONDS = 0.1
LAST_BACKOFF_SECONDS = 5.0
INTENT_SECONDS = 60.0  # a creation that takes longer has died
_log = log.get()
_Act = Callable[[str], Awaitable[Next]]


class _Open:
    """A batch that isn't settled yet."""

    def __init__(self, expires_at: float) -> None:
        self.expires_at = expires_at
        self.busy = False
        """In a queue or in a mover's hands."""
        self.again = False
        """Something happened meanwhile."""
        self.waits_for_rows = False
        self.waits_for_models = False
        self.failures = 0
        self.not_before = 0.0
        """The loop's time before which nothing but the retry wakes it."""
        self.told: set[str] = set()
        """What was noticed by polling and needn't be noticed twice: expired, cancelling."""


class Driver:
    """Drives the batches that this replica has leased."""

    def __init__(
        self,
        store: BatchStore,
        steps: Steps,
        peers: tuple[OwnFiles, Scheduler],
        book: ProgressBook,
        poll_seconds: float,
        clock: Clock,
    ) -> None:
        """Nothing runs before `run`, but batches can be added."""
        self._store = store
        self._steps = steps
        self._own_files, self._scheduler = peers
        self.book = book
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._hearing = Hearing(poll_seconds, clock)
        self._open: dict[str, _Open] = {}
        # Nothing here holds a batch twice: the bound is the number of open batches.
        self._soon: list[str] = []
        self._turns = Turns()
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._to_validate: asyncio.Queue[str] = asyncio.Queue()
        self._keeping = asyncio.Lock()
        self._renewed_at = clock.now()
        self._swept_at = float("-inf")

    def add(self, batch_id: str, expires_at: float) -> None:
        """Drive a batch that this replica has leased, or, when it was just made here, is about to."""
        if batch_id not in self._open:
            self._open[batch_id] = _Open(expires_at)
            self.book.open(batch_id)
        self.wake(batch_id)

    def created(self, record: Record) -> None:
        """Drive a batch that was just made here."""
        self._steps.fresh[record.batch_id] = record
        self.add(record.batch_id, record.expires_at)

    def waits_for_models(self, batch_id: str) -> bool:
        """Tell whether nothing but an engine is missing for a batch to be validated."""
        batch = self._open.get(batch_id)
        return batch is not None and batch.waits_for_models

    def wake(self, batch_id: str) -> None:
        """See what is next for a batch, soon: something happened to it."""
        batch = self._open.get(batch_id)
        if batch is None:
            return
        if batch.busy:
            batch.again = True
        elif asyncio.get_running_loop().time() >= batch.not_before:
            batch.busy = True
            batch.waits_for_rows = batch.waits_for_models = False
            self._soon.append(batch_id)
            if len(self._soon) == 1:
                pause = TOGETHER_SECONDS if len(self._open) > MANY else 0.0
                asyncio.get_running_loop().call_later(pause, self._start_off)

    def _start_off(self) -> None:
        starting, self._soon = self._soon, []
        for batch_id in starting:
            self._ready.put_nowait(batch_id)

    async def run(self) -> None:
        """Drive until cancelled."""
        await self._take_over()
        async with asyncio.TaskGroup() as group:
            for _ in range(MOVERS):
                group.create_task(self._move(self._ready, self._steps.advance))
            group.create_task(self._move(self._to_validate, self._steps.validate))
            group.create_task(self._watch())
            group.create_task(self._poll())

    async def _take_over(self) -> None:
        while True:
            try:
                return await self._store.drop_leases()
            except errors.HaywainError as error:
                _log.warning("leases.failed", error=error.message)
                await asyncio.sleep(self._poll_seconds)

    # -- movers -----------------------------------------------------------------------------------------------------------------

    async def _move(self, queue: asyncio.Queue[str], act: _Act) -> None:
        while True:
            batch_id = await queue.get()
            batch = self._open.get(batch_id)
            if batch is None:
                continue
            batch.again = False
            try:
                following = await act(batch_id)
            except errors.HaywainError as error:
                _log.warning("batch.delayed", batch_id=batch_id, reason=error.reason(), error=error.message)
                self._later(batch_id, batch, _backoff(batch))
            except Exception:  # noqa: BLE001 - one batch's trouble must not end the loop that drives all the others
                _log.exception("batch.delayed", batch_id=batch_id)
                self._later(batch_id, batch, _backoff(batch))
            else:
                batch.failures = 0
                self._place(batch_id, batch, following)

    def _place(self, batch_id: str, batch: _Open, following: Next) -> None:
        match following:
            case Next.STEP:
                self._ready.put_nowait(batch_id)
            case Next.VALIDATION:
                self._to_validate.put_nowait(batch_id)
            case Next.MODELS:
                batch.busy = False
                batch.waits_for_models = True
                if batch.again:
                    self.wake(batch_id)
            case Next.NOTHING:
                del self._open[batch_id]
                self.book.close(batch_id)
            case Next.ROWS:
                batch.busy = False
                batch.waits_for_rows = True
                if batch.again or self.book.has_ended(batch_id):
                    self.wake(batch_id)

    def _later(self, batch_id: str, batch: _Open, delay: float) -> None:
        loop = asyncio.get_running_loop()
        batch.busy = False
        batch.not_before = loop.time() + delay
        loop.call_later(delay, self._retry, batch_id)

    def _retry(self, batch_id: str) -> None:
        batch = self._open.get(batch_id)
        if batch is not None:
            batch.not_before = 0.0
            self.wake(batch_id)

    # -- news -------------------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                async for progress in self._scheduler.watch():
                    if not progress:  # it begins; what ended before was told to nobody
                        self._turns.ask_all()
                    self.see(progress)
            except errors.HaywainError as error:
                _log.debug("watch.ended", error=error.message)
            await asyncio.sleep(self._poll_seconds)

    def see(self, progress: Iterable[scheduler_pb2.Progress]) -> None:
        """Keep progress that somebody got, and wake what has ended."""
        for batch_id in self.book.note(progress):
            if self._open[batch_id].waits_for_rows:
                self.wake(batch_id)

    async def _poll(self) -> None:
        while True:
            for look in (self._claim, self._ask, self._look_for_models, self.keep, self._sweep):
                try:
                    await look()
                except errors.HaywainError as error:
                    _log.warning("poll.failed", what=look.__name__.strip("_"), reason=error.reason(), error=error.message)
            self._wake_expired()
            await asyncio.sleep(self._poll_seconds)

    async def _claim(self) -> None:
        """Take what nobody drives; notice what another replica cancelled."""
        now = self._clock.now()
        held = await self._store.claim(unheard=self._hearing.look())
        if now > self._renewed_at + LEASE_SECONDS / 3:
            held |= await self._store.renew()
            self._renewed_at = now
        for batch_id in held.keys() - self._open.keys():
            self.add(batch_id, held[batch_id])
        for batch_id in await self._store.cancelling():
            self._tell(batch_id, "cancelling")

    async def _ask(self) -> None:
        """Ask for the progress of those that wait for rows, many in one call; of very many, in turns."""
        waiting = [batch_id for batch_id, batch in self._open.items() if batch.waits_for_rows]
        for asked in self._turns.of(waiting):
            try:
                progress = await self._scheduler.progress(asked, wait=True)
            except errors.HaywainError:
                self._turns.ask_all()
                raise
            self.see(progress)
            for batch_id in set(asked) - {news.batch_id for news in progress}:
                if batch_id in self._open and self._open[batch_id].waits_for_rows:
                    self.book.lose(batch_id)
                    self.wake(batch_id)

    async def _look_for_models(self) -> None:
        """Wake those that wait for an engine once there is one, with one call for all of them."""
        waiting = [batch_id for batch_id, batch in self._open.items() if batch.waits_for_models]
        if waiting and await self._steps.any_model():
            for batch_id in waiting:
                self.wake(batch_id)

    async def keep(self) -> None:
        """Keep in SQL what was seen until now: for readers while the scheduler is away, and in later lives of this service."""
        async with self._keeping:  # who finds nothing to keep must not be quicker than who keeps it
            changes = self.book.take_changes()
            try:
                if changes:
                    await self._store.set_progress(changes)
            except BaseException:
                self.book.give_back(changes)
                raise

    async def _sweep(self) -> None:
        """Clear what creations that died left, and answers that nobody may ask for any more."""
        now = self._clock.now()
        if now < self._swept_at + INTENT_SECONDS:
            return
        self._swept_at = now
        for batch_id in await self._store.stale_intents(now - INTENT_SECONDS):
            await self._own_files.clear(batch_id)
        await self._store.forget_answers()

    def _wake_expired(self) -> None:
        now = self._clock.now()
        for batch_id in [batch_id for batch_id, batch in self._open.items() if batch.expires_at <= now]:
            self._tell(batch_id, "expired")

    def _tell(self, batch_id: str, what: str) -> None:
        batch = self._open.get(batch_id)
        if batch is not None and what not in batch.told:
            batch.told.add(what)
            self.wake(batch_id)


def _backoff(batch: _Open) -> float:
    batch.failures += 1
    delay = min(LAST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(batch.failures, 10))
    return delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter is no secret

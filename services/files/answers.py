"""Idempotency keys: the answer of the first request for a day, nothing stored twice.

Two requests are the same when they *mean* the same: the bytes of a form differ between two calls of one client, by its boundary. So
a fingerprint is made of what was understood: names, numbers, and the SHA-256 of content. What is refused is not kept. The answer is
the one of that time, whatever became of the object since.

A file's answer is kept by the transaction that makes the file. For the rest that isn't needed: completing or cancelling an upload
again answers the same anyway, and of an upload or a part that is made twice, one goes with the hour. That a request with a key is
still running is known by this process only.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import msgspec
from google.protobuf import json_format
from google.protobuf.message import Message

from haywain import errors
from haywain.clock import Clock
from haywain.db import Database, Transaction

__all__ = ["Answers", "Name", "meant"]

ANSWER_SECONDS = 86_400.0
KEY_BYTES = 512
_M = TypeVar("_M", bound=Message)


class Name(msgspec.Struct, frozen=True):
    """What a client calls a request: unique by tenant and operation."""

    tenant: str
    operation: str
    key: str


def meant(*parts: Any) -> str:
    """Make a request's fingerprint of what it means."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


class Answers:
    """Keeps answers, and the names of requests that run."""

    def __init__(self, database: Database, clock: Clock) -> None:
        """Take the database of the files."""
        self._database = database
        self._clock = clock
        self._running: set[Name] = set()

    @contextlib.contextmanager
    def alone(self, name: Name) -> Iterator[None]:
        """Keep other requests of this name out; one without a key has none. Raises KeyInUse, InvalidRequest."""
        if not name.key:
            yield
            return
        if (size := len(name.key.encode())) > KEY_BYTES:
            message = f"An idempotency key has 1 to {KEY_BYTES} bytes, but this one has {size}."
            raise errors.InvalidRequest(message, param="Idempotency-Key")
        if name in self._running:
            raise errors.KeyInUse(param="Idempotency-Key", retry_after=1)
        self._running.add(name)
        try:
            yield
        finally:
            self._running.discard(name)

    async def find(self, name: Name, fingerprint: str, answer: _M) -> _M | None:
        """Fill `answer` with what the first request of this name got; None when there was none. Raises KeyReused."""
        if not name.key:
            return None
        since = self._clock.now() - ANSWER_SECONDS
        row = await self._database.read(lambda tx: tx.fetch_one("answer", **msgspec.structs.asdict(name), since=since))
        if row is None:
            return None
        if row["fingerprint"] != fingerprint:
            raise errors.KeyReused("This idempotency key was used for another request.", param="Idempotency-Key")
        json_format.Parse(row["answer"], answer)
        answer.replayed = True  # type: ignore[attr-defined]
        return answer

    def keep(self, tx: Transaction, name: Name, fingerprint: str, answer: Message) -> None:
        """Keep an answer, by the transaction of what it tells."""
        if name.key:
            names = msgspec.structs.asdict(name)
            tx.execute("forget_answer", **names)  # one that is too old to count
            text = json_format.MessageToJson(answer, indent=None)
            tx.execute("add_answer", **names, fingerprint=fingerprint, answer=text, created_at=self._clock.now())

    async def once(self, name: Name, fingerprint: str, work: Callable[[], Awaitable[_M]], empty: _M) -> _M:
        """Answer what the first request of this name got, else do the work and keep its answer. Raises KeyInUse, KeyReused."""
        with self.alone(name):
            earlier = await self.find(name, fingerprint, empty)
            if earlier is not None:
                return earlier
            answer = await work()
            await self.keep_now(name, fingerprint, answer)
            return answer

    async def keep_now(self, name: Name, fingerprint: str, answer: Message) -> None:
        """Keep an answer."""
        if name.key:
            await self._database.write(lambda tx: self.keep(tx, name, fingerprint, answer))

    async def forget(self) -> None:
        """Drop answers that are older than a day."""
        before = self._clock.now() - ANSWER_SECONDS
        await self._database.write(lambda tx: tx.execute("forget_answers", before=before))

"""A part that comes under an idempotency key: whether it came before is known with its last byte, before it is stored."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from haywain.files.v1 import uploads_pb2
from services.files.answers import Answers, Name, meant
from services.files.messages import tenant_of

__all__ = ["KeyedPart", "Replayed"]

_Message = uploads_pb2.AddUploadPartRequest
_Response = uploads_pb2.AddUploadPartResponse


class Replayed(Exception):
    """The same part came before, and was answered so."""

    def __init__(self, answer: _Response) -> None:
        super().__init__()
        self.answer = answer


class KeyedPart:
    """One call's messages on their way. A context manager, in which others with the same key are kept out."""

    def __init__(self, answers: Answers) -> None:
        """Nothing is known before the header."""
        self._answers = answers
        self._others = contextlib.ExitStack()
        self.name = Name("", "part", "")
        self.fingerprint = ""

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Let others with the key in."""
        self._others.close()

    async def passing(self, messages: AsyncIterator[_Message]) -> AsyncIterator[_Message]:
        """Hand messages on. Raises KeyInUse, KeyReused, and Replayed ahead of the end of a part that came before."""
        digest, upload_id = hashlib.sha256(), ""
        async for message in messages:
            match message.WhichOneof("part"):
                case "header":
                    upload_id = message.header.upload_id
                    self.name = Name(tenant_of(message.header), "part", message.header.idempotency_key)
                    self._others.enter_context(self._answers.alone(self.name))
                case "data" if self.name.key:
                    await asyncio.to_thread(digest.update, message.data)
                case "end":
                    self.fingerprint = meant(upload_id, digest.hexdigest())
                    kept = await self._answers.find(self.name, self.fingerprint, _Response())
                    if kept is not None:
                        raise Replayed(kept)
            yield message

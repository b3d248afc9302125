"""/v1/batches/{id}/results: the result lines there are so far, in an order that stays the same past the end of the batch.

    while it runs       the lines that validation rejected, then the rows that have ended, in the order in which they ended
    once it has ended   the same lines under the same numbers, then those of the rows that never ran, in input order
    a day later         (scheduler.incremental_retention_seconds) the lines that were rejected, those of the output file, and the
                        others of the error file

So a client that asks with `after_line` for what it hasn't seen gets every line once, and knows by the absence of `X-Incomplete`
that there is no more. `X-Results-Order` says which order an answer has: `completion` or `files`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Container, Sequence

from google.api import httpbody_pb2

from gateway import download
from gateway.answer import TENANT, Context
from gateway.peers import Peers
from gateway.query import integer, parameters
from haywain import errors, rpc
from haywain.batches.v1 import batches_pb2
from haywain.files.v1 import files_pb2
from haywain.scheduler.v1 import scheduler_pb2

__all__ = ["CONTENT_TYPE", "Results"]

CONTENT_TYPE = "application/jsonl"
_Status = batches_pb2.Batch
_LIVE = frozenset({_Status.STATUS_VALIDATING, _Status.STATUS_IN_PROGRESS, _Status.STATUS_FINALIZING, _Status.STATUS_CANCELLING})


_NO_RESPONSE = b',"response":null,"error":{'
"""these bytes can't be inside a string, whose quotes are escaped, and a body has no such members"""


class Results:
    """The route."""

    def __init__(self, peers: Peers) -> None:
        """Take the services that have parts of it."""
        self._peers = peers

    async def read(self, batch_id: str, context: Context) -> AsyncGenerator[httpbody_pb2.HttpBody, None]:
        """Stream the lines behind `after_line`. Raises BatchMissing, and FileGone when a file of the batch is gone."""
        query = parameters(context, ("after_line",))
        after = integer("after_line", query.get("after_line", "0"), 0, 2**63 - 1)
        batch = await self._batch(batch_id)
        ended = batch.status not in _LIVE
        file_ids = [file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id] if ended else []
        for file_id in file_ids:
            await self._check_alive(file_id)
        rejected = batch.rejected_count
        async with contextlib.aclosing(self._journal(batch_id, max(after - rejected, 0))) as journal:
            first = await _first(journal)
            order = "files" if first is None and file_ids else "completion"
            async with contextlib.aclosing(self._rejected(batch, after)) as pieces:
                data = await anext(pieces, b"")
                await context.send_initial_metadata((("x-results-order", order), *(() if ended else (("x-incomplete", "true"),))))
                yield httpbody_pb2.HttpBody(content_type=CONTENT_TYPE, data=data)
                async for data in pieces:
                    yield httpbody_pb2.HttpBody(data=data)
            if first and first.data:
                yield httpbody_pb2.HttpBody(data=first.data)
            count = first.line if first else 0
            unanswered = _unanswered(first.data if first else b"")
            async for piece in journal:
                count = piece.line
                unanswered |= _unanswered(piece.data)
                yield httpbody_pb2.HttpBody(data=piece.data)
        if first is None:
            count, groups = rejected, _select(self._lines(file_ids), lambda line: not _is_rejected(line))
        elif file_ids and batch.error_file_id and (count := count + rejected) < batch.counts.total:
            if after > rejected:
                unanswered |= await self._unanswered_until(batch_id, after - rejected)
            groups = _select(self._lines([batch.error_file_id]), lambda line: _is_unrun(line, unanswered))
        else:
            return
        async with contextlib.aclosing(groups):
            async for data in _behind(groups, after - count):
                yield httpbody_pb2.HttpBody(data=data)

    async def _batch(self, batch_id: str) -> batches_pb2.Batch:
        request = batches_pb2.GetBatchRequest(batch_id=batch_id, tenant=TENANT)
        answer: batches_pb2.GetBatchResponse = await self._peers.batches.ask(self._peers.batches.stub.GetBatch, request)
        return answer.batch

    async def _rejected(self, batch: batches_pb2.Batch, after: int) -> AsyncGenerator[bytes, None]:
        """Read the lines that validation rejected: from batches, and out of the error file once there is one."""
        if after >= batch.rejected_count:
            return
        if batch.status in _LIVE:
            request = batches_pb2.ReadRejectedRequest(batch_id=batch.batch_id, tenant=TENANT, after_line=after)
            reading = rpc.stream(self._peers.batches.stub.ReadRejected, request, tenant=TENANT)
            try:
                async with contextlib.aclosing(reading):
                    async for message in reading:
                        yield message.data
                    return
            except errors.FileGone:  # it has ended just now
                batch = await self._batch(batch.batch_id)
        async with contextlib.aclosing(_behind(_select(self._lines([batch.error_file_id]), _is_rejected), after)) as groups:
            async for data in groups:
                yield data

    async def _check_alive(self, file_id: str) -> None:
        request = files_pb2.GetFileRequest(file_id=file_id, tenant=TENANT)
        answer: files_pb2.GetFileResponse = await self._peers.files.ask(self._peers.files.stub.GetFile, request)
        download.check_alive(answer.file)

    def _journal(self, batch_id: str, after: int) -> AsyncGenerator[scheduler_pb2.ReadResultsResponse, None]:
        request = scheduler_pb2.ReadResultsRequest(batch_id=batch_id, after_line=after)
        return rpc.stream(self._peers.scheduler.stub.ReadResults, request, tenant=TENANT)

    async def _unanswered_until(self, batch_id: str, line: int) -> set[bytes]:
        """Find the rows without an answer among the first so many lines of the journal."""
        found: set[bytes] = set()
        async with contextlib.aclosing(self._journal(batch_id, 0)) as journal:
            async for piece in journal:
                found |= _unanswered(piece.data)
                if piece.line >= line:
                    break
        return found

    async def _lines(self, file_ids: Sequence[str]) -> AsyncGenerator[list[bytes], None]:
        """Read files one after another, whole lines at a time."""
        for file_id in file_ids:
            request = files_pb2.DownloadFileRequest(file_id=file_id, tenant=TENANT)
            tail = b""
            async with contextlib.aclosing(rpc.stream(self._peers.files.stub.DownloadFile, request, tenant=TENANT)) as messages:
                async for message in messages:
                    *lines, tail = (tail + message.data).split(b"\n")
                    yield [line + b"\n" for line in lines]


def _unanswered(data: bytes) -> set[bytes]:
    """Find the lines of rows that no engine answered, by their ids."""
    if _NO_RESPONSE not in data:
        return set()
    return {_id(line) for line in data.splitlines() if _NO_RESPONSE in line}


async def _select(groups: AsyncGenerator[list[bytes], None], wanted: Callable[[bytes], bool]) -> AsyncGenerator[list[bytes], None]:
    async with contextlib.aclosing(groups):
        async for lines in groups:
            yield [line for line in lines if wanted(line)]


def _is_unrun(line: bytes, journaled: Container[bytes]) -> bool:
    """Tell the lines of rows that never ran: without an answer, and not in the journal (a row that timed out is)."""
    return _NO_RESPONSE in line and not _is_rejected(line) and _id(line) not in journaled


def _is_rejected(line: bytes) -> bool:
    """Tell by the last eight digits of its id: no row has so high a number."""
    return _id(line)[-9:-8] in (b"8", b"9", b"a", b"b", b"c", b"d", b"e", b"f")


def _id(line: bytes) -> bytes:
    return line.partition(b",")[0]


async def _first(journal: AsyncIterator[scheduler_pb2.ReadResultsResponse]) -> scheduler_pb2.ReadResultsResponse | None:
    """Read the first piece, which comes even when there are no lines; None when there is no journal, not yet or not any more."""
    try:
        return await anext(journal)
    except errors.BatchMissing:
        return None


async def _behind(groups: AsyncIterator[list[bytes]], skipped: int) -> AsyncGenerator[bytes, None]:
    async for lines in groups:
        if data := b"".join(lines[max(skipped, 0) :]):
            yield data
        skipped -= len(lines)

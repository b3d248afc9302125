"""Reading a journal back: which rows are recorded, where it really ends, and what its lines say of tokens."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from haywain import log
from services.scheduler.batch import Tally
from services.scheduler.skim import skim

__all__ = ["GOOD", "Replay", "entries", "lines_after", "outcomes", "replay", "row_prefix", "tally_of"]

_CHUNK_BYTES = 1 << 20
_SEND_BYTES = 512 * 1024
GOOD = b"null}\n"
"""What the lines of completed rows end in."""
_BAD = b"}}\n"
_log = log.get()


def row_prefix(batch_id: str) -> bytes:
    """Tell what every result line of a batch begins with; eight hexadecimal digits of the row follow."""
    return b'{"id":"batch_req_%b_' % batch_id.removeprefix("batch_").encode()


class Replay(msgspec.Struct):
    """What a journal says."""

    recorded: bytearray
    """By row: 0 not in the journal, 1 completed, 2 failed."""
    end: int
    """Where the last whole line ends: whatever is behind it was never synced."""
    tail: dict[int, Tally]
    """What lines behind the checkpoint say, by shard."""


def replay(path: Path, prefix: bytes, row_count: int, checkpoint: int, firsts: Sequence[int]) -> Replay:
    """Read a journal back; `checkpoint` is the byte up to which its tokens are known, `firsts` each shard's first row. Blocking.

    The first line behind the checkpoint that is not one of ours ends the journal: a crash can leave a torn line there, or
    zeros. Of two lines of one row the first one counts.
    """
    recorded, tail = bytearray(row_count), dict[int, Tally]()
    with _opened(path) as file:
        begin = end = skim(file, prefix, recorded, checkpoint)
        for at, line, row in entries(file, prefix, row_count):
            offset, tally = begin + at, None
            if offset >= checkpoint:
                tally = tally_of(line, line.endswith(GOOD)) if row >= 0 else None
                if tally is None:
                    _log.warning("journal.torn", journal=path.name, at=offset)
                    break
            end = offset + len(line)
            if row < 0:
                _log.error("journal.damaged", journal=path.name, at=offset)
            elif not recorded[row]:
                recorded[row] = 1 if line.endswith(GOOD) else 2
                if tally is not None:
                    tail.setdefault(bisect.bisect_right(firsts, row) - 1, Tally()).add(tally)
    return Replay(recorded, end, tail)


def entries(lines: Iterable[bytes], prefix: bytes, row_count: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield (offset, line, row) of each whole line, row -1 where it isn't one of ours. Blocking, if `lines` is a file."""
    begin, behind = len(prefix), len(prefix) + 8
    offset = 0
    for line in lines:
        row = -1
        if line.startswith(prefix) and line.endswith((GOOD, _BAD)):
            try:
                row = int(line[begin:behind], 16)
            except ValueError:
                row = -1
            if row >= row_count:
                row = -1
        if row < 0 and not line.endswith(b"\n"):
            return  # the torn last line
        yield offset, line, row
        offset += len(line)


def outcomes(lines: Iterable[bytes], prefix: bytes, rows: range) -> bytearray:
    """Tell of `rows` which have a line: 0 none, 1 completed, 2 failed. Blocking, if `lines` is a file."""
    found = bytearray(len(rows))
    for _, line, row in entries(lines, prefix, rows.stop):
        if row >= rows.start and not found[row - rows.start]:
            found[row - rows.start] = 1 if line.endswith(GOOD) else 2
    return found


def lines_after(lines: Iterable[bytes], after_line: int) -> Iterator[tuple[bytes, int]]:
    """Yield (whole lines, lines so far) from behind `after_line` lines. Blocking, if `lines` is a file.

    When there are none, one empty piece tells how many lines there are.
    """
    count = size = 0
    held: list[bytes] = []
    for line in lines:
        if not line.endswith(b"\n"):
            continue  # torn: its row runs again
        count += 1
        if count <= after_line:
            continue
        if held and size + len(line) > _SEND_BYTES:
            yield b"".join(held), count - 1
            held, size = [], 0
        held.append(line)
        size += len(line)
    if held or count <= after_line:
        yield b"".join(held), count


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class _Response(msgspec.Struct):
    body: _Body


class _Line(msgspec.Struct):
    response: _Response


_with_usage = msgspec.json.Decoder(_Line)
_any = msgspec.json.Decoder(msgspec.Raw)


def tally_of(line: bytes, good: bool) -> Tally | None:
    """Read a result line's outcome and tokens; None when it isn't JSON."""
    try:
        if not good:
            _any.decode(line)
            return Tally(failed=1)
        usage = _with_usage.decode(line).response.body.usage or _Usage()
    except msgspec.ValidationError:
        return Tally(completed=1)  # a body of another shape has no tokens that we know of
    except (msgspec.DecodeError, RecursionError):
        return None
    prompt, completion = usage.prompt_tokens_details or _PromptDetails(), usage.completion_tokens_details or _CompletionDetails()
    return Tally(
        1, 0, usage.prompt_tokens or 0, prompt.cached_tokens or 0, usage.completion_tokens or 0, completion.reasoning_tokens or 0
    )


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb", buffering=_CHUNK_BYTES)
    except FileNotFoundError:
        return open(os.devnull, "rb")

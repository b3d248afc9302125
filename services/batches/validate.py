"""One pass over an input file: its bad lines, its rows by model, its index. REST.md §4.

Runs in the validation process, streaming: memory is flat but for the table of ids (seen.py). Lines are split at the byte LF only
and numbered physically from 1; one leading byte order mark, a CR before the LF and white-space lines are tolerated.

The index has an entry of 16 bytes a row, little-endian: u64 byte offset of the line, u32 length without its end, u32 line number;
sorted by (model, line). A row is the ordinal of its entry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from haywain.strict_json import NotJSON, decode
from services.batches.lines import LineRules, Remember, Served
from services.batches.record import Fault, Plan, Shard
from services.batches.seen import IdHashes, SeenIds

__all__ = ["INDEX_ENTRY", "Order", "Verdict", "validate"]

INDEX_ENTRY = struct.Struct("<QII")
_BOM = b"\xef\xbb\xbf"
_LF, _CR = b"\n\r"
_BUFFER_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to validate, by which rules, and where the index goes. `served` None: any model is accepted.

    `members` are what the batch adds to bodies: the name in a body to the name in the batch.
    """

    input_path: str
    index_path: str
    endpoint: str
    default_model: str
    served: dict[str, Served] | None
    members: dict[str, str]
    deterministic: bool
    mixed_models: bool
    max_lines: int
    max_line_bytes: int
    max_errors: int
    shard_rows: int


class Verdict(msgspec.Struct, frozen=True):
    """What was found: a plan, and an index at `Order.index_path`, or faults and neither."""

    model: str
    plan: Plan | None
    faults: list[Fault]


def validate(order: Order) -> Verdict:
    """Validate a file. Raises OSError; leaves no file behind then, or when there are faults."""
    hashes = IdHashes()
    verdict = _pass(order, hashes.add)
    if not hashes.repeated():
        return verdict
    Path(order.index_path).unlink(missing_ok=True)
    with open(order.input_path, "rb") as file:
        return _pass(order, SeenIds(lambda offset: _id_at(file, offset)).add)


def _pass(order: Order, remember: Remember) -> Verdict:
    with open(order.input_path, "rb", buffering=_BUFFER_BYTES) as file:
        rules = LineRules(order.endpoint, order.default_model, order.served, mixed_models=order.mixed_models, remember=remember)
        index = _Index(Path(order.index_path))
        faults = _Faults(order.max_errors)
        try:
            rows = _check(file, order, rules, index, faults)
            faults.whole += _whole(order, rows, index.models())
            plan = None if faults else Plan(rows, index.finish(order.shard_rows))
            return Verdict(rules.model, plan, faults.listed())
        finally:
            index.close()


def _check(file: BinaryIO, order: Order, rules: LineRules, index: _Index, faults: _Faults) -> int:
    """Check every line; answers the number of rows, good and bad."""
    rows = 0
    clean = True
    check, keep = rules.check, index.add
    for line, offset, raw, length in _lines(file, order.max_line_bytes):
        if rows >= order.max_lines:  # only their number is of interest
            rows += raw is None or not raw.isspace()
            continue
        if raw is None:
            faults.add(Fault("line_too_large", _too_large(order.max_line_bytes, length), "", line))
            rows += 1
            clean = False
            continue
        found = check(raw, line, offset)
        if isinstance(found, Fault):
            if raw.isspace():
                continue
            faults.add(found)
            clean = False
        elif clean:
            keep(found, offset, length, line)
        rows += 1
    return rows


def _lines(file: BinaryIO, limit: int) -> Iterator[tuple[int, int, bytes | None, int]]:
    """Yield line number, byte offset, bytes, and length without the line's end; None for the bytes of one that is too long."""
    offset = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
    file.seek(offset)
    line = 0
    room = limit + 2  # for the line's end
    readline = file.readline
    while raw := readline(room):
        line += 1
        size = len(raw)
        length = _length(raw, size)
        if length <= limit:
            yield line, offset, raw, length
        else:
            size, length = _skip(file, raw)
            yield line, offset, None, length
        offset += size


def _length(raw: bytes, size: int) -> int:
    """Measure without LF or CR LF; a CR that ends the file is content."""
    if raw[-1] != _LF:
        return size
    return size - 2 if size > 1 and raw[-2] == _CR else size - 1


def _skip(file: BinaryIO, raw: bytes) -> tuple[int, int]:
    """Read a long line to its end and forget it; its size with and without the end."""
    size, tail = len(raw), raw[-2:]
    while not tail.endswith(b"\n") and (chunk := file.readline(_CHUNK_BYTES)):
        size += len(chunk)
        tail = (tail + chunk)[-2:]
    return size, size - len(tail) + _length(tail, len(tail))


def _id_at(file: BinaryIO, offset: int) -> object:
    file.seek(offset)
    try:
        return decode(file.readline())["custom_id"]
    except (NotJSON, LookupError, TypeError):
        return None


def _too_large(limit: int, length: int) -> str:
    return f"The line is too large: at most {limit} bytes, but it has {length}."


def _whole(order: Order, rows: int, models: list[str]) -> list[Fault]:
    """Find what is wrong with the file or with the batch's own fields."""
    if rows == 0:
        message = "The batch input file is empty. Please ensure that the batch contains at least one request."
        return [Fault("empty_file", message)]
    faults = []
    if rows > order.max_lines:
        message = f"The batch input file has too many lines: at most {order.max_lines} requests, but it has {rows}."
        faults.append(Fault("too_many_tasks", message))
    known = {served.model: served for served in (order.served or {}).values()}
    for served in (known[model] for model in models if model in known):
        for name, batch_name in order.members.items():
            if served.fields is not None and name not in served.fields:
                message = f"No engine of the model '{served.model}' honours the parameter '{batch_name}'."
                faults.append(Fault("unsupported_parameter", message, batch_name))
        if order.deterministic and not served.deterministic:
            message = f"The engines of the model '{served.model}' can't promise 'deterministic'."
            faults.append(Fault("unsupported_parameter", message, "deterministic"))
    return faults


class _Faults:
    """Those of the whole file, and those of lines: all up to a limit, the rest counted."""

    def __init__(self, limit: int) -> None:
        self.whole: list[Fault] = []
        self._lines: list[Fault] = []
        self._limit = limit
        self._more = 0

    def __bool__(self) -> bool:
        return bool(self._lines or self.whole)

    def add(self, fault: Fault) -> None:
        if len(self._lines) < self._limit:
            self._lines.append(fault)
        else:
            self._more += 1

    def listed(self) -> list[Fault]:
        closing = [Fault("too_many_errors", f"{self._more} more lines are bad and not listed here.")] if self._more else []
        return [*self.whole, *self._lines, *closing]


class _Index:
    """Index entries, a file for each model while they come; joined in the order of models at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: dict[str, _Part] = {}

    def add(self, model: str, offset: int, length: int, line: int) -> None:
        try:
            part = self._parts[model]
        except KeyError:
            part = self._parts[model] = _Part(self._path.with_name(f"{self._path.name}.{len(self._parts)}"))
        part.buffer += INDEX_ENTRY.pack(offset, length, line)
        if len(part.buffer) >= _CHUNK_BYTES:
            part.flush()

    def models(self) -> list[str]:
        return sorted(self._parts)

    def finish(self, shard_rows: int) -> list[Shard]:
        """Join; answers the shards."""
        shards: list[Shard] = []
        first = 0
        try:
            with self._path.open("wb") as whole:
                for model in self.models():
                    rows = self._parts[model].copy_to(whole) // INDEX_ENTRY.size
                    starts = range(0, rows, shard_rows)
                    shards += [Shard(model, first + start, min(shard_rows, rows - start)) for start in starts]
                    first += rows
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise
        return shards

    def close(self) -> None:
        """Remove what was written on the way."""
        for part in self._parts.values():
            part.path.unlink(missing_ok=True)


class _Part:
    """One model's entries; on disk only when they are many."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer = bytearray()
        self._written = 0

    def flush(self) -> None:
        with self.path.open("ab") as file:
            self._written += file.write(self.buffer)
        self.buffer.clear()

    def copy_to(self, whole: BinaryIO) -> int:
        """Append all entries; answers their size."""
        if self._written:
            with self.path.open("rb") as file:
                while data := file.read(_BUFFER_BYTES):
                    whole.write(data)
        return self._written + whole.write(self.buffer)

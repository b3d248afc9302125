"""One pass over an input file: its bad lines, its rows by model, its index. REST.md §4.

Runs in the validation process, streaming: memory is flat but for the table of ids (seen.py). Lines are split at the byte LF only
and numbered physically from 1; one leading byte order mark, a CR before the LF and white-space lines are tolerated.

Nearly all lines of nearly all files are good, and alike. So a piece of many lines is decoded by one call, and each record is only
asked whether it is like one that passed the rules before (`_Pass.quickly`); any other is checked rule by rule (lines.py), and a
piece that isn't one plain object a line is taken line by line (`_Pass.slowly`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from haywain import crash
from haywain.strict_json import NotJSON, decode, keys_differ
from services.batches.faults import Faults, Rejects
from services.batches.index import INDEX_ENTRY, Index, Part
from services.batches.lines import CONTENT, CUSTOM_ID_LENGTH, LineRules, Served, custom_id_of, not_json
from services.batches.reading import pieces
from services.batches.record import Fault, Plan
from services.batches.seen import IdHashes, SeenIds

__all__ = ["INDEX_ENTRY", "Order", "Verdict", "validate"]

_decode_lines = msgspec.json.Decoder().decode_lines


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to validate, by which rules, and where the index goes. `served` None: any model is accepted.

    `members` are what the batch adds to bodies: the name in a body to the name in the batch. `rejects_path`: where error lines of
    bad lines go, with ids that begin with `row_prefix`; empty for nowhere. With `reject` the bad lines do no harm to the others.
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
    reject: bool = False
    rejects_path: str = ""
    row_prefix: str = ""
    few_rows: int = 0
    """So many rows have their index in the plan, and no file of it."""


class Verdict(msgspec.Struct, frozen=True):
    """What was found: a plan, its index in it or at `Order.index_path`, or faults and neither; `good` counts good lines."""

    model: str
    plan: Plan | None
    faults: list[Fault]
    good: int = 0
    rejects: Rejects = Rejects()


def validate(order: Order) -> Verdict:
    """Validate a file. Raises OSError; leaves no file behind then, nor one that the verdict has nothing for."""
    try:
        with open(order.input_path, "rb", buffering=0) as file:
            hashes = IdHashes()
            verdict = _pass(order, file, hashes)
            if hashes.repeated():
                verdict = _pass(order, file, SeenIds(lambda offset: _id_at(file, offset, order.max_line_bytes)))
    except BaseException:
        _remove(order.index_path, order.rejects_path)
        raise
    _remove("" if verdict.plan else order.index_path, "" if verdict.rejects.size_bytes else order.rejects_path)
    return verdict


def _pass(order: Order, file: BinaryIO, seen: IdHashes | SeenIds) -> Verdict:
    with open(order.rejects_path or os.devnull, "wb") as rejects:
        faults = Faults(order.max_errors, rejects if order.rejects_path else None, order.row_prefix)
        index = Index(Path(order.index_path))
        rules = LineRules(order.endpoint, order.default_model, order.served, mixed_models=order.mixed_models, remember=seen.add)
        try:
            passing = _Pass(order, rules, index, faults, seen.append if isinstance(seen, IdHashes) else None)
            passing.run(file.fileno())
            faults.whole += _whole(order, passing.rows, index.models())
            good = passing.rows - faults.count
            bad = faults.whole or (faults.count and not order.reject)
            plan = None if bad else _plan(order, good, index, faults.count)
            return Verdict(rules.model, plan, faults.listed(), good, faults.rejects())
        finally:
            index.close()


def _plan(order: Order, rows: int, index: Index, rejected: int) -> Plan:
    few = 0 < rows <= order.few_rows
    if not few:
        index.write()
    return Plan(rows, index.shards(order.shard_rows), rejected, index.whole() if few else b"")


class _Pass:
    """Where a pass is."""

    def __init__(self, order: Order, rules: LineRules, index: Index, faults: Faults, note: Any) -> None:
        """`note` takes the hash of a good line's id; None when each id must be looked up."""
        self.rows = 0
        """Lines that aren't only white space."""
        self._line = 0
        self._order = order
        self._rules = rules
        self._index = index
        self._faults = faults
        self._note = note
        self._alike: dict[str, tuple[frozenset[str], Part]] = {}
        """By a model's id or alias: the fields a body may have, and where rows of the model are indexed."""

    def run(self, file: int) -> None:
        """Go through a file."""
        for offset, data, too_long in pieces(file, self._order.max_line_bytes):
            if too_long:
                self._one(None, offset, too_long)
            elif not self._quickly(offset, data):
                self._slowly(offset, data)
            self._index.flush()
            crash.point("batches:piece-validated")

    def _quickly(self, offset: int, data: bytes) -> bool:
        """Take a piece whose lines are one object each, of good size, without more; False when it isn't like that."""
        count = data.count(b"\n")
        end = b"\r\n" if data.endswith(b"\r\n") else b"\n"
        # A line that begins with { and one before it that ends with }: no value can reach over the two.
        if data[:1] != b"{" or not data.endswith(b"}" + end) or data.count(b"}" + end + b"{") != count - 1:
            return False
        lengths = list(map(len, data.split(end)))
        if self.rows + count > self._order.max_lines or max(lengths) > self._order.max_line_bytes:
            return False
        try:
            records = _decode_lines(data)
            if len(records) != count or not keys_differ(data, records):
                return False
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False
        self._take(records, lengths, len(end), offset)
        return True

    def _take(self, records: list[Any], lengths: list[int], gap: int, offset: int) -> None:
        """Index the records that are like earlier ones, check all others."""
        name, kind = CONTENT[self._order.endpoint]
        endpoint, default_model = self._order.endpoint, self._order.default_model
        alike, pack = self._alike, INDEX_ENTRY.pack
        note: Any = self._note
        line = self._line
        for record, length in zip(records, lengths, strict=False):  # behind the last line's end there is nothing
            line += 1
            try:
                custom_id, body = record["custom_id"], record["body"]
                content = body[name]
                fields, part = alike[body.get("model", default_model)]
                good = (
                    record["url"] == endpoint
                    and record["method"] == "POST"
                    and type(custom_id) is str
                    and 0 < len(custom_id) <= CUSTOM_ID_LENGTH
                    and type(content) is kind
                    and content
                    and fields.issuperset(body)
                )
            except (LookupError, TypeError, AttributeError):
                good = False
            if good:
                note(hash(custom_id))
                part.buffer += pack(offset, length, line)
            else:
                self._line = line
                self._check(record, offset, length)
            offset += length + gap
        self._line = line
        self.rows += len(records)

    def _slowly(self, offset: int, data: bytes) -> None:
        """Take a piece line by line."""
        lines = data.split(b"\n")
        last = lines.pop()  # without an LF: nothing, or the end of the file, where a CR is content
        for raw in lines:
            self._one(raw, offset, len(raw) - raw.endswith(b"\r"))
            offset += len(raw) + 1
        if last:
            self._one(last, offset, len(last))

    def _one(self, raw: bytes | None, offset: int, length: int) -> None:
        """Take a line; None for the bytes of one that is too long to be read."""
        self._line += 1
        if raw is not None and (not raw or raw.isspace()):
            return
        self.rows += 1
        if self.rows > self._order.max_lines:  # only their number is of interest
            return
        if raw is None or length > self._order.max_line_bytes:
            self._faults.add(_too_large(self._order.max_line_bytes, length, self._line), None)
            return
        try:
            record = decode(raw)
        except NotJSON as error:
            self._faults.add(not_json(error, self._line), None)
            return
        self._check(record, offset, length)

    def _check(self, record: Any, offset: int, length: int) -> None:
        """Check a decoded line by the rules."""
        found = self._rules.check(record, self._line, offset)
        if isinstance(found, Fault):
            self._faults.add(found, custom_id_of(record))
            return
        part = self._index.part(found)
        part.buffer += INDEX_ENTRY.pack(offset, length, self._line)
        common = self._rules.common(record["body"]) if self._note is not None else None
        if common is not None:
            name, fields = common
            self._alike[name] = fields, part


def _id_at(file: BinaryIO, offset: int, limit: int) -> object:
    data = os.pread(file.fileno(), limit + 2, offset)
    try:
        return decode(data.split(b"\n", 1)[0])["custom_id"]
    except (NotJSON, LookupError, TypeError):
        return None


def _too_large(limit: int, length: int, line: int) -> Fault:
    return Fault("line_too_large", f"The line is too large: at most {limit} bytes, but it has {length}.", "", line)


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


def _remove(*paths: str) -> None:
    for path in paths:
        if path:
            Path(path).unlink(missing_ok=True)

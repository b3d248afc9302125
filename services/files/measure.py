"""What is learnt of bytes while they pass by, in constant memory: size, SHA-256, lines, and whether they can be a batch file."""

from __future__ import annotations

import hashlib

from haywain import errors, strict_json

__all__ = ["Measure", "not_jsonl"]

PIECE_BYTES = 512 * 1024
BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
_SPACE = b" \t\r\n\x0b\x0c"


def not_jsonl(found: str, param: str = "file") -> errors.InvalidRequest:
    """Make the refusal of a batch file, saying what was found instead."""
    return errors.InvalidRequest(f"Invalid file format for Batch API. Must be .jsonl, but {found}.", param=param)


class Measure:
    """Size, SHA-256 and the number of lines that aren't blank; `refusal` is why the bytes can't be a batch file, if they can't."""

    def __init__(self, max_line_bytes: int) -> None:
        """Start at nothing. A first line over `max_line_bytes` is left to the validation of the batch, which counts lines."""
        self.size_bytes = 0
        self.line_count = 0
        self._sha256 = hashlib.sha256()
        self._first_line = _FirstLine(max_line_bytes)
        self._head: bytes | None = b""
        self._in_line = False

    @property
    def sha256(self) -> str:
        """Tell the digest in lower-case hexadecimal."""
        return self._sha256.hexdigest()

    @property
    def refusal(self) -> errors.InvalidRequest | None:
        """Tell why this can't be a batch file; None as long as it can."""
        return self._first_line.refusal

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._first_line.feed(data)
        self._sha256.update(data)
        for start in range(0, len(data), PIECE_BYTES):
            self._count(data[start : start + PIECE_BYTES])
        self.size_bytes += len(data)

    def finish(self) -> None:
        """Take the end."""
        self._first_line.finish()
        self.line_count += self._in_line or _is_line(self._head or b"")
        self._in_line = False

    def _count(self, piece: bytes) -> None:
        if self._head is not None:  # the first bytes, until it is clear whether they are a BOM
            self._head += piece
            if len(self._head) < len(BOM):
                return
            piece, self._head = self._head.removeprefix(BOM), None
        first, *more = piece.split(b"\n")
        self._in_line = self._in_line or _is_line(first)
        if more:
            *whole, last = more
            self.line_count += self._in_line + len(whole) - whole.count(b"") - sum(map(bytes.isspace, whole))
            self._in_line = _is_line(last)


def _is_line(text: bytes) -> bool:
    return bool(text) and not text.isspace()


class _FirstLine:
    """Looks at the first line that isn't blank: a batch file's must be a JSON object."""

    def __init__(self, max_line_bytes: int) -> None:
        self.refusal: errors.InvalidRequest | None = None
        self._max_line_bytes = max_line_bytes
        self._held = bytearray()
        self._searched = 0
        self._begun = False
        self._decided = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if not self._decided:
            self._held += data
            if len(self._held) >= len(BOM) or self._begun:
                self._look(last=False)

    def finish(self) -> None:
        """Take the end."""
        if not self._decided:
            self._look(last=True)

    def _look(self, *, last: bool) -> None:
        held = self._held
        if not self._begun:
            self._begun = True
            if held.startswith(GZIP):
                return self._decide("the file is compressed with gzip; upload it uncompressed")
            if held.startswith(BOM):
                del held[: len(BOM)]
        if not self._searched:
            del held[: len(held) - len(held.lstrip(_SPACE))]
        if not held:
            return self._decide("the file is empty") if last else None
        if held[0] != ord("{"):
            return self._decide("its first line is not a JSON object")
        end = held.find(b"\n", self._searched)
        self._searched = len(held)
        if end >= 0 or last:
            return self._decide(self._judge(bytes(held if end < 0 else held[:end])))
        return self._decide("") if len(held) > self._max_line_bytes else None

    def _judge(self, line: bytes) -> str:
        if len(line) > self._max_line_bytes:
            return ""
        try:
            strict_json.decode(line)
        except strict_json.NotJSON as error:
            return f"its first line is not a JSON object: {str(error)[:200]}"
        return ""

    def _decide(self, found: str) -> None:
        self._decided = True
        self._held.clear()
        self.refusal = not_jsonl(found) if found else None

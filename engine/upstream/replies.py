"""What an upstream's reply means for the row.

2xx                                   the answer, its bytes as they are
400, 404, 413, 422, other 4xx         the row's fault: an error with the upstream's own words
408, 425, 429, 502, 503, 504, 529     busy or away: not the row's fault, it is sent again
401, 402, 403                         our key's fault: as if it were away
other 5xx                             the upstream failed on this row: a try of the row that failed
"""

from __future__ import annotations

import email.utils
import re
import time
from typing import Any, Final

import httpx
import msgspec

from engine import answers
from haywain import openai
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["Away", "Usage", "answer", "failure", "too_large", "usage_of"]

_BUSY: Final = frozenset({408, 425, 429, 503, 529})
_GATEWAY: Final = frozenset({502, 504})
_KEY: Final = frozenset({401, 402, 403})
_MESSAGE_CHARACTERS: Final = 2_000
_RETRY_AFTER_MAX: Final = 300.0
_CONTEXT = re.compile(r"context[ _](?:length|size|window)|maximum context|max_model_len|too many tokens", re.IGNORECASE)


class Away(Exception):
    """The upstream can't take the request now; try it again after `after` seconds (None: it didn't say)."""

    def __init__(self, reason: str, after: float | None = None, *, busy: bool = False, suspect: bool = False) -> None:
        """`busy`: it is there and has too much to do. `suspect`: it had the request, which may be what it died of."""
        super().__init__(reason)
        self.reason = reason
        self.after = after
        self.busy = busy
        self.suspect = suspect


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    """`usage` as servers send it: any part may be missing or null."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: Usage | None = None


_decoder = msgspec.json.Decoder(_Answer)


def usage_of(body: bytes) -> pb.Usage | None:
    """Read the usage of an answer or a chunk, None when it has none. Raises ValueError when it isn't a JSON object."""
    try:
        used = _decoder.decode(body).usage
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    if used is None:
        return None
    inputs, outputs = used.prompt_tokens_details, used.completion_tokens_details
    return pb.Usage(
        input_tokens=_count(used.prompt_tokens),
        output_tokens=_count(used.completion_tokens),
        cached_tokens=_count(inputs.cached_tokens if inputs else 0),
        reasoning_tokens=_count(outputs.reasoning_tokens if outputs else 0),
    )


def answer(sequence_id: int, response: httpx.Response, content: bytes) -> pb.SequenceResult:
    """Make the result of a whole reply of status 200."""
    try:
        used = usage_of(content)
    except ValueError:
        kind = response.headers.get("content-type", "no content type")
        message = f"The upstream answered 200 with {kind} ({len(content)} bytes), expected a JSON object."
        return answers.engine_error(sequence_id, message)
    return pb.SequenceResult(sequence_id=sequence_id, status_code=200, body=content, usage=used)


def too_large(sequence_id: int, most: int) -> pb.SequenceResult:
    """Make the result of a reply that has more than `most` bytes. It isn't tried again: it would be as large, and cost as much."""
    return answers.engine_error(sequence_id, f"The upstream's answer is larger than {most} bytes (engine.upstream.answer_bytes).")


def failure(sequence_id: int, response: httpx.Response, content: bytes) -> pb.SequenceResult:
    """Make the result of a reply that isn't 200; `content` is its beginning. Raises Away."""
    status = response.status_code
    message, code, param = _words(response, content)
    if status in _BUSY | _GATEWAY | _KEY:
        raise Away(f"{status}: {message}", _retry_after(response), busy=status in _BUSY, suspect=status in _GATEWAY)
    if status < 400 or status >= 500:
        return answers.engine_error(sequence_id, f"The upstream answered {status}: {message}", retryable=status >= 500)
    code = code or ("model_not_found" if status == 404 else "invalid_request")
    return pb.SequenceResult(
        sequence_id=sequence_id,
        status_code=status,
        body=openai.error_body(message, code=code, param=param, kind="invalid_request_error"),
        error=pb.SequenceError(code=code, message=message, param=param),
    )


def _words(response: httpx.Response, content: bytes) -> tuple[str, str, str]:
    """Find message, code and param, in OpenAI's envelope or one of its relatives."""
    try:
        body: Any = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        body = None
    found = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(found, str):
        return _short(found), "", ""
    if isinstance(found, dict):
        message = found.get("message") or found.get("detail") or found.get("error_type")
        if message:
            text = _short(message if isinstance(message, str) else msgspec.json.encode(message).decode())
            code, kind, param = (value if isinstance(value, str) else "" for value in map(found.get, ("code", "type", "param")))
            exceeded = _CONTEXT.search(f"{code} {kind} {text}")
            return text, "context_length_exceeded" if exceeded else code, param
    kind = response.headers.get("content-type", "no content type")
    there = f", it is at {location!r}" if (location := response.headers.get("location")) else ""
    return f"{response.reason_phrase or 'no reason'} ({kind}, {len(content)} bytes{there})", "", ""


def _short(text: str) -> str:
    return text if len(text) <= _MESSAGE_CHARACTERS else text[: _MESSAGE_CHARACTERS - 1] + "…"


def _retry_after(response: httpx.Response) -> float | None:
    """Read Retry-After: seconds, or a date."""
    text = response.headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(seconds, 0.0), _RETRY_AFTER_MAX) if seconds == seconds else None  # noqa: PLR0124 - not a number


def _count(given: int | None) -> int:
    return min(max(given or 0, 0), 2**31 - 1)

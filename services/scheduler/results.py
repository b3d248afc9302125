"""Result lines: one JSON line a row, built from bytes. Good ones end in `"error":null}`, all others in `}}`."""

from __future__ import annotations

import os

import msgspec

from haywain.engine.v1 import engine_pb2
from haywain.openai import ascii_json, encode, error_body
from services.scheduler.batch import Attempt
from services.scheduler.speed import Tokens

__all__ = ["ResultLines", "clean_body", "unrun_line"]

_raw = msgspec.json.Decoder(msgspec.Raw)
_NONCE = os.urandom(6).hex().encode()
"""Makes request ids differ between two lives of the scheduler."""

_LF, _CR = b"\n\r"
_UNRUN = b'%b%08x","custom_id":%b,"response":null,"error":{"code":%b,"message":%b,"line":%d}}\n'
_GOOD_TAIL = b',"error":null}\n'
_BAD_TAIL = b',"error":{"code":%b,"message":%b,"line":%d}}\n'


def unrun_line(prefix: bytes, row: int, custom_id: bytes, line: int, error: tuple[str, str]) -> bytes:
    """Build the line of a row that no engine answered; `error` is code and message, `prefix` is `replay.row_prefix`."""
    code, message = error
    return _UNRUN % (prefix, row, ascii_json(custom_id), encode(code), encode(message), line)


def clean_body(body: bytes) -> bytes | None:
    """Give an engine's JSON object as one line of ASCII; None when it isn't that."""
    try:
        _raw.decode(body)
        if _LF in body or _CR in body or body[:1] != b"{":
            body = msgspec.json.format(body, indent=-1)
        body = ascii_json(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    return body if body[:1] == b"{" else None


class ResultLines:
    """Builds the lines of one engine's results for one model."""

    def __init__(self, engine: engine_pb2.Engine, digest: str, tokens: Tokens | None = None) -> None:
        """`digest` names the version of the model; `tokens` are the totals of the engine."""
        self.tokens = tokens or Tokens()
        known = b'"engine":%b,"backend":%b,"model_digest":%b' % (
            encode(engine.engine_id), encode(engine.backend), encode(digest or None),
        )  # fmt: skip
        self._response = (
            b'%b%08x","custom_id":%b,"response":{"status_code":%d,"request_id":"req_'
            + _NONCE
            + b'%012x","body":%b,"x_provenance":{'
            + known.replace(b"%", b"%%")
            + b',"seed":%b,"prompt_cached_tokens":%d,"queue_ms":%d,"run_ms":%d,"attempt":%d%b}}'
        )
        self._good = self._response + _GOOD_TAIL

    def build(self, prefix: bytes, attempt: Attempt, result: engine_pb2.SequenceResult, cached_tokens: int) -> tuple[bytes, bool]:
        """Build a row's line; the bool tells whether it completed."""
        if result.status_code == 200 and (body := clean_body(result.body)) is not None:
            return self._good % (
                prefix,
                attempt.row,
                attempt.custom_id,
                200,
                result.sequence_id,
                body,
                b"%d" % result.seed if result.HasField("seed") else b"null",
                cached_tokens,
                result.queue_ms,
                result.run_ms,
                attempt.attempt,
                _derived(result),
            ), True
        return self._bad(prefix, attempt, result, cached_tokens), False

    def _bad(self, prefix: bytes, attempt: Attempt, result: engine_pb2.SequenceResult, cached_tokens: int) -> bytes:
        status, code, message = result.status_code, result.error.code, result.error.message
        if status == 200:
            status, code, message = 502, "engine_error", "the engine's answer is not a JSON object"
        status = status if 400 <= status <= 599 else 500
        code, message = code or "engine_error", message or "the engine gave no reason"
        body = clean_body(result.body) if result.status_code != 200 else None
        if body is None:
            kind = "invalid_request_error" if status < 500 else "server_error"
            body = error_body(message, code=code, param=result.error.param, kind=kind)
        return self._response % (
            prefix,
            attempt.row,
            attempt.custom_id,
            status,
            result.sequence_id,
            body,
            b"%d" % result.seed if result.HasField("seed") else b"null",
            cached_tokens,
            result.queue_ms,
            result.run_ms,
            attempt.attempt,
            _derived(result),
        ) + _BAD_TAIL % (encode(code), encode(message), attempt.line)


def _derived(result: engine_pb2.SequenceResult) -> bytes:
    """Write what the engine made up for the model, if anything."""
    return b',"derived":%b' % encode(list(result.derived)) if result.derived else b""

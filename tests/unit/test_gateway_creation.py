"""Creations: what comes besides the file's id, and the headers that say how to answer."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from gateway.created_batch import NoValidRecords
from gateway.creation import creation, wait_seconds
from gateway.idempotency import idempotency
from haywain import errors, openai
from haywain.batches.v1 import batches_pb2

Request = batches_pb2.CreateBatchRequest


class Asking:
    """A call with headers."""

    def __init__(self, *headers: tuple[str, str | bytes]) -> None:
        self._headers = headers

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._headers


@pytest.mark.parametrize(
    ("preference", "seconds"),
    [
        ("wait=10", 10), ("WAIT=10", 10), ("wait = 7", 7), ('wait="5"', 5), ("respond-async, wait=3", 3),
        ("handling=lenient; wait=4", 4),
        ("wait=30", 30), ("wait=31", 30), ("wait=999999999", 30), ("wait=0", 0), ("wait", 0), ("wait=", 0), ("wait=-1", 0),
        ("wait=1.5", 0), ("wait=soon", 0), ("await=5", 0), ("", 0), ("wait=9999999999999999999999", 30),
        ("wait=" + "9" * 5_000, 30), ("wait=0000000000005", 5),
    ],
)  # fmt: skip
def test_preferences(preference: str, seconds: int) -> None:
    """Seconds to wait, at most 30; what can't be understood is no preference."""
    assert wait_seconds(Asking(("prefer", preference))) == seconds
    assert wait_seconds(Asking()) == 0


def test_a_key_has_the_fingerprint_of_the_body() -> None:
    """The bytes of the body, as they came, are what a key belongs to."""
    found = idempotency(Asking(("idempotency-key", "k")), b'{"a": 1}')
    assert found == batches_pb2.Idempotency(key="k", fingerprint=hashlib.sha256(b'{"a": 1}').hexdigest())
    assert idempotency(Asking(("x-request-id", "k")), b"") is None


@pytest.mark.parametrize("headers", [[("idempotency-key", "")], [("idempotency-key", "x" * 513)], [("idempotency-key", "a")] * 2])
def test_bad_keys(headers: list[tuple[str, str]]) -> None:
    """No bytes, too many, or two keys are refused."""
    with pytest.raises(errors.InvalidRequest, match="1 to 512 bytes"):
        idempotency(Asking(*headers), b"{}")


def test_inline_records_keep_their_text() -> None:
    """One line each, as they came but for white space; whatever they are."""
    data = b'{"requests": [{"a": 1.10,\n "b": "x\\u2028 }"}, 7, [ ], "\xc3\xa9"], "model": "m"}'
    request = creation({"requests": [{}, 7, [], "é"], "model": "m"}, data)
    assert request.inline_input == b'{"a":1.10,"b":"x\\u2028 }"}\n7\n[]\n"\xc3\xa9"\n'
    assert (request.input_file_id, request.model) == ("", "m")


@pytest.mark.parametrize(
    ("word", "value"),
    [(None, Request.INVALID_ROWS_UNSPECIFIED), ("fail", Request.INVALID_ROWS_FAIL), ("reject", Request.INVALID_ROWS_REJECT)],
)
def test_invalid_rows(word: Any, value: int) -> None:
    """Its words, or nothing for the service's setting."""
    assert creation({"input_file_id": "a", "invalid_rows": word}).invalid_rows == value


@pytest.mark.parametrize(("count", "told"), [(0, "there are none"), (1, "1 is not valid"), (2, "2 are not valid")])
def test_no_valid_records(count: int, told: str) -> None:
    """The refusal says how many there were, and has the same fields whatever it was."""
    refusal = NoValidRecords.of(batches_pb2.CreateBatchResponse(rejections=batches_pb2.Rejections(count=count)))
    assert told in refusal.error.message
    assert openai.encode(refusal).endswith(b'"rejected_records":[],"rejected_records_file_id":null}}')

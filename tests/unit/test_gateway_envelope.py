"""The table from errors to HTTP."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import envelope
from haywain import errors

STATUSES = {
    errors.InvalidRequest: 400,
    errors.NoSuchCursor: 400,
    errors.Unauthenticated: 401,
    errors.PermissionDenied: 403,
    errors.FileMissing: 404,
    errors.FileGone: 404,
    errors.BatchMissing: 404,
    errors.ModelMissing: 404,
    errors.Conflict: 409,
    errors.TooLarge: 413,
    envelope.RangeNotSatisfiable: 416,
    errors.CapacityExceeded: 429,
    errors.HaywainError: 500,
    errors.Unavailable: 503,
    errors.StorageFull: 503,
    errors.DeadlineExceeded: 504,
}


@pytest.mark.parametrize(("kind", "status"), STATUSES.items())
def test_status_of_each_class(kind: type[errors.HaywainError], status: int) -> None:
    """Each class has its status, and what goes with it in headers."""
    pairs = dict(envelope.metadata(kind()))
    assert pairs["x-http-status"] == str(status)
    assert ("retry-after" in pairs) == (status in {429, 503})
    assert pairs.get("x-should-retry") == ("false" if status == 409 else None)
    assert ("content-range" in pairs) == (status == 416)


@pytest.mark.parametrize("undone", [True, False, None])
def test_nothing_was_done(undone: bool | None) -> None:
    """Envoy is told when a failure is certain to have done nothing, and then only."""
    error = errors.Unavailable()
    error.undone = undone
    assert ("x-haywain-undone" in dict(envelope.metadata(error))) == (undone is True)


def test_envelope() -> None:
    """The envelope has all four members, null where empty."""
    error = errors.InvalidRequest("No.", code="a_code", param="a.param")
    body = {"message": "No.", "type": "invalid_request_error", "param": "a.param", "code": "a_code"}
    assert json.loads(envelope.envelope(error)) == {"error": body}
    assert json.loads(envelope.envelope(errors.NotFound("x")))["error"]["code"] is None


def test_inner_errors_tell_nothing() -> None:
    """What went wrong inside of us is not told."""
    assert b"secret" not in envelope.envelope(errors.HaywainError("secret"))


def test_retry_after_is_whole_seconds() -> None:
    """Retry-After is rounded up to whole seconds, at least one."""
    assert dict(envelope.metadata(errors.CapacityExceeded(retry_after=6.2)))["retry-after"] == "7"
    assert dict(envelope.metadata(errors.Unavailable(retry_after=0.01)))["retry-after"] == "1"


@given(st.text(max_size=50), st.integers(1, 400))
def test_any_message_fits_a_header(text: str, times: int) -> None:
    """Whatever the message, the metadata is ASCII of a size that fits headers."""
    error = errors.InvalidRequest(text * times, param=text * times)
    for _, value in envelope.metadata(error):
        assert isinstance(value, str)
        assert value.isascii()
        assert value.isprintable()
        assert len(value) < 5_000

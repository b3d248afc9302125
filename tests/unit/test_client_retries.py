"""The client's retries and errors."""

from __future__ import annotations

import json
from pathlib import Path

import h11
import httpx
import pytest
from client_answers import BROKEN, REFUSED, Answer, batch, make, refusal

from haywain.client import BatchClient, ClientError, ConnectionLost, ObjectMissing, RequestRefused, TryLater
from haywain.errors import HaywainError


def test_a_full_intake_is_waited_for_as_long_as_it_says() -> None:
    """429 with Retry-After: the next try comes then, at most a tenth later, with the same key and the same bytes."""
    client, mesh, timer = make(refusal(429, {"retry-after": "7"}), refusal(503, {"retry-after": "20"}), batch("validating"))
    assert client.create_batch("file-1")["status"] == "validating"
    assert [7 <= timer.slept[0] <= 7.7, 20 <= timer.slept[1] <= 22, len(timer.slept)] == [True, True, 2]
    assert len({request.headers["idempotency-key"] for request in mesh.asked}) == 1
    assert len({request.content for request in mesh.asked}) == 1


def test_each_create_has_its_own_key() -> None:
    """Two creates are two batches, whatever their bytes."""
    client, mesh, _ = make(batch("validating"))
    client.create_batch("file-1")
    client.create_batch("file-1")
    assert len({request.headers["idempotency-key"] for request in mesh.asked}) == 2


def test_a_retry_after_beyond_reason_is_the_callers_to_decide() -> None:
    """Told to stay away for an hour, the client raises at once and says so."""
    client, mesh, timer = make(refusal(429, {"retry-after": "3600"}, code="capacity_exceeded"))
    with pytest.raises(TryLater) as raised:
        client.create_batch("file-1")
    assert raised.value.retry_after == 3600
    assert (len(mesh.asked), timer.slept) == (1, [])


def test_a_retry_after_may_be_a_date() -> None:
    """A date in the past is now."""
    client, mesh, _ = make(refusal(503, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}), batch("validating"))
    client.create_batch("file-1")
    assert len(mesh.asked) == 2


@pytest.mark.parametrize("answer", [refusal(500), refusal(502), refusal(504), httpx.Response(503, text="upstream"), BROKEN])
def test_retries_end(answer: Answer) -> None:
    """A fault that stays is tried again as often as was allowed, with longer and longer pauses, then raised."""
    client, mesh, timer = make(httpx.Response(200, json={"id": "file-1"}), answer, retries=4)
    client.upload_file(b"{}")
    with pytest.raises((TryLater, ConnectionLost)):
        client.create_batch("file-1")
    assert len(mesh.asked) == 1 + 1 + 4
    assert len(timer.slept) == 4
    assert all(0.25 * 2**n <= pause <= 0.5 * 2**n for n, pause in enumerate(timer.slept))


def test_a_wrong_address_is_told_soon() -> None:
    """Nobody has ever answered there: three tries within two seconds, not the patience that a known mesh gets."""
    client, mesh, timer = make(REFUSED, retries=20)
    with pytest.raises(ConnectionLost, match="Connection refused") as raised:
        client.upload_file(b"{}")
    assert isinstance(raised.value, ConnectionError)
    assert len(mesh.asked) == 3
    assert sum(timer.slept) < 2


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        (400, {}, RequestRefused),
        (401, {}, RequestRefused),
        (404, {}, ObjectMissing),
        (409, {"x-should-retry": "false"}, RequestRefused),
        (413, {}, RequestRefused),
        (422, {}, RequestRefused),
    ],
)
def test_what_a_retry_cannot_cure_is_raised_at_once(status: int, headers: dict[str, str], kind: type[RequestRefused]) -> None:
    """A refusal is one request, and the error has everything that the envelope told."""
    client, mesh, timer = make(refusal(status, headers, message="Not that.", code="invalid_value", param="endpoint"))
    with pytest.raises(kind) as raised:
        client.create_batch("file-1")
    error = raised.value
    assert (error.status_code, error.code, error.param, error.message) == (status, "invalid_value", "endpoint", "Not that.")
    assert error.request_id == "req_1"
    assert str(error) == f"Not that. ({status} invalid_value, request req_1)"
    assert isinstance(error, HaywainError)
    assert (len(mesh.asked), timer.slept) == (1, [])


def test_a_twin_that_still_runs_is_waited_for() -> None:
    """409 without x-should-retry: false is the same create, still running; its answer comes with the next try."""
    client, mesh, _ = make(refusal(409), batch("validating"))
    assert client.create_batch("file-1")["id"] == "batch_1"
    assert len(mesh.asked) == 2


@pytest.mark.parametrize("body", ["<html>Bad gateway</html>", "", "[]", '{"error": 1}', '{"error": {}}'])
def test_an_error_without_envelope(body: str) -> None:
    """Whatever stands between the client and the mesh may answer in its own words."""
    client, _, _ = make(httpx.Response(403, text=body))
    with pytest.raises(RequestRefused) as raised:
        client.create_batch("file-1")
    assert raised.value.status_code == 403
    assert raised.value.message


def test_a_success_that_is_no_json() -> None:
    """A login page with status 200 is an error of the client's tree."""
    client, _, _ = make(httpx.Response(200, text="<html>"))
    with pytest.raises(ClientError, match="no JSON"):
        client.create_batch("file-1")


def test_create_sends_what_was_said_and_no_more() -> None:
    """None is the mesh's default: the field isn't sent."""
    client, mesh, _ = make(batch("validating"), api_key="secret")
    client.create_batch("file-1", model=None, temperature=0.0, top_k=5, metadata={"team": "search"}, priority="expedited")
    assert json.loads(mesh.asked[0].content) == {
        "input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h",
        "temperature": 0.0, "top_k": 5, "metadata": {"team": "search"}, "priority": "expedited",
    }  # fmt: skip
    assert str(mesh.asked[0].url) == "http://mesh/v1/batches"
    assert mesh.asked[0].headers["authorization"] == "Bearer secret"


def test_upload_is_sent_whole_again(tmp_path: Path) -> None:
    """A retried upload starts at the file's first byte."""
    (tmp_path / "in.jsonl").write_bytes(b'{"a": 1}\n' * 1000)
    client, mesh, _ = make(refusal(503), BROKEN, httpx.Response(200, json={"id": "file-1"}))
    assert client.upload_file(tmp_path / "in.jsonl")["id"] == "file-1"
    assert [request.content.count(b'{"a": 1}\n') for request in mesh.asked] == [1000, 1000, 1000]
    assert b'filename="in.jsonl"' in mesh.asked[2].content


def test_health() -> None:
    """Healthy is 200; anything else, and nobody there, is not; it is asked once."""
    assert make(httpx.Response(200, json={"status": "healthy"}))[0].health_check() is True
    for answer in (refusal(503), REFUSED, refusal(404)):
        client, mesh, timer = make(answer)
        assert client.health_check() is False
        assert (len(mesh.asked), timer.slept) == (1, [])


@pytest.mark.parametrize("url", ["", "localhost:10900", "ftp://mesh"])
def test_base_url_must_be_http(url: str) -> None:
    """A scheme that is forgotten is told at once."""
    with pytest.raises(ClientError, match="http://"):
        BatchClient(url)


@pytest.mark.parametrize("size", ["Too little", "Too much"])
def test_a_file_that_changes_while_it_is_sent(size: str) -> None:
    """One that has become longer, or shorter, than was announced is told of at once, in words that fit both."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise h11.LocalProtocolError(f"{size} data for declared Content-Length")

    with pytest.raises(ClientError, match=r"^the file changed while it was sent$"):
        BatchClient("http://mesh", transport=httpx.MockTransport(refuse)).upload_file(b"{}\n")

"""`Idempotency-Key` on POST /v1/batches: per tenant, by the bytes of the body, for a day."""

from __future__ import annotations

import concurrent.futures
import json
import uuid
from typing import Any

import httpx
import pytest
from mesh import chat_row, until
from rest_seam import RestMesh

BODY = json.dumps({"input_file_id": "file-nope", "metadata": {"b": "1", "a": "2", "é": "3"}}).encode()


@pytest.fixture
def key() -> str:
    """Give a key that nobody used."""
    return uuid.uuid4().hex


def post(mesh: RestMesh, key: str | bytes, body: bytes = BODY, **headers: str) -> httpx.Response:
    """Create a batch under a key."""
    encoded = key.encode("latin-1") if isinstance(key, str) else key
    sent = [(b"idempotency-key", encoded), (b"content-type", b"application/json")]
    return mesh.client.post("/v1/batches", content=body, headers=[*sent, *((n.encode(), v.encode()) for n, v in headers.items())])


def count(mesh: RestMesh) -> int:
    """Count the batches."""
    found, after = 0, ""
    while True:
        page = mesh.client.get(f"/v1/batches?limit=100{after}").json()
        found += len(page["data"])
        if not page["has_more"]:
            return found
        after = f"&after={page['last_id']}"


def test_the_same_bytes_again(rest_mesh: RestMesh, key: str) -> None:
    """The second answer has the bytes of the first and says so in a header; nothing is created, whatever happened since."""
    first = post(rest_mesh, key)
    assert (first.status_code, first.headers.get("idempotent-replayed")) == (200, None)
    batch_id = first.json()["id"]
    until("it failed", lambda: rest_mesh.client.get(f"/v1/batches/{batch_id}").json()["status"] == "failed")
    rest_mesh.client.post(f"/v1/batches/{batch_id}", json={"metadata": {"changed": "yes"}})
    before = count(rest_mesh)
    for _ in range(3):
        again = post(rest_mesh, key)
        assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
        assert again.content == first.content
    assert again.json()["status"] == "validating"
    assert count(rest_mesh) == before


def test_an_answer_that_waited(rest_mesh: RestMesh, key: str) -> None:
    """What was told of rejected records is told again, byte for byte."""
    body = json.dumps({"requests": [chat_row("a"), 7, chat_row("a")], "invalid_rows": "reject", "temperature": 0.1}).encode()
    first, again = post(rest_mesh, key, body), post(rest_mesh, key, body)
    assert first.json()["rejected_count"] == 2
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"


def test_another_body(rest_mesh: RestMesh, key: str) -> None:
    """One byte more is another request: 422, and the first answer stays."""
    first = post(rest_mesh, key)
    other = post(rest_mesh, key, BODY + b" ")
    error = other.json()["error"]
    assert (other.status_code, error["code"], error["type"]) == (422, "idempotency_key_reused", "invalid_request_error")
    assert post(rest_mesh, key).content == first.content


def test_what_is_no_success_is_not_kept(rest_mesh: RestMesh, key: str) -> None:
    """After a 400 of whatever kind the key is free, also for another body."""
    assert post(rest_mesh, key, b'{"input_file_id": 3}').status_code == 400
    refused = post(rest_mesh, key, json.dumps({"requests": [7]}).encode())
    assert refused.json()["error"]["code"] == "no_valid_records"
    created = post(rest_mesh, key)
    assert (created.status_code, created.headers.get("idempotent-replayed")) == (200, None)


def test_a_request_that_still_runs(rest_mesh: RestMesh, key: str) -> None:
    """409 that a retry cures: no `x-should-retry: false`, and a time to come back."""
    body = json.dumps({"requests": [chat_row("a")]}).encode()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with rest_mesh.without_engines():
            calls = rest_mesh.scheduler.calls.models
            running = pool.submit(post, rest_mesh, key, body)
            until("it waits for an engine", lambda: rest_mesh.scheduler.calls.models > calls)
            busy = post(rest_mesh, key, body)
            assert (busy.status_code, busy.json()["error"]["code"]) == (409, "idempotency_key_in_use")
            assert "x-should-retry" not in busy.headers
            assert int(busy.headers["retry-after"]) >= 1
            assert post(rest_mesh, key, body + b" ").status_code == 422
        first = running.result(30)
    assert first.status_code == 200
    assert post(rest_mesh, key, body).content == first.content


def test_many_at_once_make_one(rest_mesh: RestMesh, key: str) -> None:
    """Of twenty requests under one key one creates; the others get its answer or are told to wait."""
    before = count(rest_mesh)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: post(rest_mesh, key), range(20)))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert len({answer.content for answer in answers if answer.status_code == 200}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers if answer.status_code == 200) == 1
    assert count(rest_mesh) == before + 1


@pytest.mark.parametrize("length", [1, 512])
def test_lengths(rest_mesh: RestMesh, length: int) -> None:
    """A key has 1 to 512 bytes."""
    name = uuid.uuid4().hex.ljust(length, "x")[:length]
    assert post(rest_mesh, name).status_code in (200, 422)  # one of a single letter may have been used


@pytest.mark.parametrize("bad", ["", "x" * 513])
def test_bad_lengths(rest_mesh: RestMesh, bad: str) -> None:
    """None, or one more than 512, is refused with the numbers."""
    answer = post(rest_mesh, bad)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", "Idempotency-Key")
    assert f"1 to 512 bytes, but this one has {len(bad)}" in error["message"]


def test_two_keys(rest_mesh: RestMesh) -> None:
    """Two headers are no key."""
    headers: list[tuple[str, Any]] = [("idempotency-key", "a"), ("idempotency-key", "b")]
    answer = rest_mesh.client.post("/v1/batches", content=BODY, headers=headers)
    assert answer.status_code == 400


@pytest.mark.parametrize("odd", ["ключ".encode(), b"caf\xe9", b"a b\tc", b'"quoted"', b"%00"])
def test_odd_keys(rest_mesh: RestMesh, odd: bytes) -> None:
    """Bytes that a header may have make a key like any others, or are refused; never more than that."""
    key = uuid.uuid4().hex.encode() + odd
    first, again = post(rest_mesh, key), post(rest_mesh, key)
    assert first.status_code == again.status_code
    assert first.status_code in (200, 400)
    if first.status_code == 200:
        assert again.content == first.content


def test_restarted_in_between(rest_mesh: RestMesh, key: str) -> None:
    """The key outlives the services that know it."""
    first = post(rest_mesh, key)
    for name in ("batches", "gateway"):
        rest_mesh.stop(name)
        rest_mesh.start(name)
    again = until("it answers", lambda: answer if (answer := post(rest_mesh, key)).status_code == 200 else None)
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"

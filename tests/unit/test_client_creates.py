"""What the client sends to create: inline requests, waiting, files in parts; each call that creates under a key of its own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import httpx
import pytest
from client_answers import batch, make, refusal

from haywain import uploading
from haywain.client import ClientError, NoValidRecords, RequestRefused
from haywain.uploading import PART_BYTES, WHOLE_BYTES

REJECTED = {"line": 1, "custom_id": "a", "code": "invalid_url", "message": "No.", "param": "url"}


def test_inline_requests() -> None:
    """They get method and url where they have none, and the answer says what was rejected."""
    client, mesh, _ = make(batch("validating", rejected_count=1, rejected_records=[REJECTED], rejected_records_file_id="file-2"))
    made = client.create_batch(requests=[{"custom_id": "a", "body": {}}, {"custom_id": "b", "url": "/x", "body": {}}], model="echo")
    assert (made["rejected_count"], made["rejected_records"]) == (1, [REJECTED])
    sent = json.loads(mesh.asked[0].content)
    assert sent["requests"] == [
        {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}},
        {"custom_id": "b", "method": "POST", "url": "/x", "body": {}},
    ]
    assert "input_file_id" not in sent
    assert "prefer" not in mesh.asked[0].headers


def test_waiting_for_validation() -> None:
    """It is a preference, told in a header."""
    client, mesh, _ = make(batch("validating"))
    client.create_batch("file-1", wait_seconds=20)
    assert mesh.asked[0].headers["prefer"] == "wait=20"


def test_one_source() -> None:
    """Neither and both are refused before anything is sent, and so is what is no JSON."""
    client, mesh, _ = make(batch())
    for terms in ({}, {"input_file_id": "file-1", "requests": []}):
        with pytest.raises(ClientError, match="one of the two"):
            client.create_batch(**terms)  # type: ignore[arg-type]
    with pytest.raises(ClientError, match="JSON"):
        client.create_batch(requests=[{"custom_id": "a", "body": {"temperature": float("nan")}}])
    assert not mesh.asked


def test_no_valid_records() -> None:
    """The refusal has the records that were rejected."""
    client, _, _ = make(refusal(400, code="no_valid_records", rejected_count=1, rejected_records=[REJECTED]))
    with pytest.raises(NoValidRecords) as raised:
        client.create_batch(requests=[{"custom_id": "a"}])
    assert (raised.value.rejected_count, raised.value.rejected_records) == (1, [REJECTED])


def test_an_upload_is_one_upload() -> None:
    """However often it is sent, its key is the same; the next one has another."""
    client, mesh, _ = make(refusal(503), httpx.Response(200, json={"id": "file-1"}))
    client.upload_file(b"{}")
    client.upload_file(b"{}")
    first, again, second = (request.headers["idempotency-key"] for request in mesh.asked)
    assert first == again != second


def answers(name: str) -> httpx.Response:
    """Answer with an object of this id."""
    return httpx.Response(200, json={"id": name, "file": {"id": "file-9"}})


def test_a_large_file_goes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is tried again by itself, in order, and the whole is checked by its MD5."""
    assert (WHOLE_BYTES, PART_BYTES) == (200_000_000, 33_554_432)
    monkeypatch.setattr(uploading, "WHOLE_BYTES", 10)
    monkeypatch.setattr(uploading, "PART_BYTES", 8)
    (tmp_path / "big.jsonl").write_bytes(b"0123456789abcdefghij")
    parts = [answers("part_1"), refusal(503), answers("part_2"), answers("part_3")]
    client, mesh, _ = make(answers("upload_1"), *parts, answers("upload_1"))
    assert client.upload_file(tmp_path / "big.jsonl")["id"] == "file-9"
    paths = [request.url.path for request in mesh.asked]
    assert paths == ["/v1/uploads", *["/v1/uploads/upload_1/parts"] * 4, "/v1/uploads/upload_1/complete"]
    announced = json.loads(mesh.asked[0].content)
    assert announced == {"filename": "big.jsonl", "purpose": "batch", "bytes": 20, "mime_type": "application/jsonl"}
    pieces = (b"01234567", b"89abcdef", b"89abcdef", b"ghij")
    assert all(piece in request.content for piece, request in zip(pieces, mesh.asked[1:-1], strict=True))
    md5 = hashlib.md5(b"0123456789abcdefghij", usedforsecurity=False).hexdigest()
    assert json.loads(mesh.asked[-1].content) == {"part_ids": ["part_1", "part_2", "part_3"], "md5": md5}
    keys = [request.headers["idempotency-key"] for request in mesh.asked]
    assert keys[2] == keys[3]
    assert len(set(keys)) == 5


def test_an_upload_that_fails_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of which nothing becomes don't lie about."""
    monkeypatch.setattr(uploading, "WHOLE_BYTES", 1)
    client, mesh, _ = make(answers("upload_1"), answers("part_1"), refusal(400), answers("upload_1"))
    with pytest.raises(RequestRefused):
        client.upload_file(b"not a batch")
    assert mesh.asked[-1].url.path == "/v1/uploads/upload_1/cancel"

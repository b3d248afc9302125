"""Uploads that end badly: refused half way, cut off, too large. Nothing of them is kept, and the client is told why."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from mesh import until
from rest_seam import MAX_FILE_BYTES, MAX_UPLOAD_BYTES, RestMesh
from rest_steps import assert_envelope, multipart

FORM = {"content-type": "multipart/form-data; boundary=----haywain"}
PURPOSE = {"name": "purpose", "value": "user_data"}


def _stored(mesh: RestMesh) -> set[Path]:
    return {path for path in (mesh.data / "blobs").rglob("*") if path.is_file()}


def _body(size: int, purpose: str = "user_data", name: str = "a.bin") -> bytes:
    return multipart([{"name": "purpose", "value": purpose}, {"name": "file", "filename": name, "text": "x" * size}])


def test_large_upload_comes_back_whole(rest_mesh: RestMesh) -> None:
    """A file as large as allowed, in one write, comes back byte for byte."""
    text = "".join(f"{number:09d}\n" for number in range(MAX_FILE_BYTES // 10))
    form = multipart([{"name": "file", "filename": "a.bin", "text": text}, PURPOSE])
    file = rest_mesh.client.post("/v1/files", content=form, headers=FORM).json()
    assert file["bytes"] == MAX_FILE_BYTES
    assert rest_mesh.client.get(f"/v1/files/{file['id']}/content").text == text


def test_refused_half_way(rest_mesh: RestMesh) -> None:
    """A batch file whose first line is bad is refused with the reason while the client still sends, every time."""
    form = _body(2_000_000, "batch", "a.jsonl")
    before = _stored(rest_mesh)
    for _ in range(20):
        answer = rest_mesh.client.post("/v1/files", content=form, headers=FORM)
        assert answer.status_code == 400
        assert "first line is not a JSON object" in assert_envelope(answer)["message"]
    assert _stored(rest_mesh) == before


def test_file_over_its_limit(rest_mesh: RestMesh) -> None:
    """A file over the limit is 413 with limit and size, and leaves nothing."""
    before = _stored(rest_mesh)
    answer = rest_mesh.client.post("/v1/files", content=_body(MAX_FILE_BYTES + 1), headers=FORM)
    assert answer.status_code == 413
    error = assert_envelope(answer)
    assert error["code"] == "request_too_large"
    assert str(MAX_FILE_BYTES) in error["message"]
    assert _stored(rest_mesh) == before


def test_chunked_body_over_the_limit(rest_mesh: RestMesh) -> None:
    """A body without a length is cut off at the limit with 413, and leaves nothing."""

    def chunks() -> Iterator[bytes]:
        yield multipart([PURPOSE, {"name": "file", "filename": "a.bin"}], end=False).removesuffix(b"\r\n")
        for _ in range(MAX_UPLOAD_BYTES // 50_000 + 1):
            yield b"x" * 50_000

    before = _stored(rest_mesh)
    answer = rest_mesh.client.post("/v1/files", content=chunks(), headers=FORM)
    assert answer.status_code == 413
    assert_envelope(answer)
    until("scratch is gone", lambda: _stored(rest_mesh) == before, timeout=10)


@pytest.mark.parametrize("order", ["purpose first", "file first"])
def test_client_hangs_up(rest_mesh: RestMesh, order: str) -> None:
    """A client that disconnects half way leaves neither a file nor a byte."""
    before = _stored(rest_mesh)
    listed = rest_mesh.client.get("/v1/files").json()["data"]
    parts = [PURPOSE] if order == "purpose first" else []
    form = multipart([*parts, {"name": "file", "filename": "a.bin", "text": "x" * 1_500_000}], end=False)
    with socket.create_connection(("127.0.0.1", rest_mesh.settings.envoy.port)) as client:
        head = (
            f"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-type: {FORM['content-type']}\r\ncontent-length: 2000000\r\n\r\n"
        )
        client.sendall(head.encode() + form)
        until("bytes arrived", lambda: _stored(rest_mesh) != before, timeout=10)
    until("bytes are gone", lambda: _stored(rest_mesh) == before, timeout=10)
    assert rest_mesh.client.get("/v1/files").json()["data"] == listed


def test_body_that_ends_early(rest_mesh: RestMesh) -> None:
    """A body that ends well by HTTP but not by multipart is 400 and stores nothing."""
    before = _stored(rest_mesh)
    form = multipart([PURPOSE, {"name": "file", "filename": "a.bin", "text": "x" * 100_000}], end=False)
    answer = rest_mesh.client.post("/v1/files", content=form, headers=FORM)
    assert answer.status_code == 400
    assert "multipart" in assert_envelope(answer)["message"]
    until("scratch is gone", lambda: _stored(rest_mesh) == before, timeout=10)


def test_small_uploads_outlive_a_restart(rest_mesh: RestMesh) -> None:
    """Uploads of up to a megabyte that meet a restart of the Files service are stored, once each."""
    purpose = "vision"
    restarting = threading.Thread(target=lambda: (rest_mesh.stop("files"), rest_mesh.start("files")))
    form = multipart([{"name": "purpose", "value": purpose}, {"name": "file", "filename": "a", "text": "x" * 100_000}])
    stored = []
    restarting.start()
    while restarting.is_alive() or len(stored) < 20:
        answer = rest_mesh.client.post("/v1/files", content=form, headers=FORM)
        assert answer.status_code == 200, answer.text
        stored.append(answer.json()["id"])
    restarting.join()
    listed = rest_mesh.client.get("/v1/files", params={"purpose": purpose, "order": "asc"}).json()["data"]
    assert [file["id"] for file in listed] == stored

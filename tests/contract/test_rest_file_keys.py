"""`Idempotency-Key` on what stores bytes: the same file, upload or part again is the same answer, by what it means."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from mesh import until
from rest_seam import RestMesh

LINE = b'{"custom_id":"a"}\n'


@pytest.fixture
def key() -> str:
    """Give a key that nobody used."""
    return uuid.uuid4().hex


def send(mesh: RestMesh, key: str, content: bytes = LINE, name: str = "a.jsonl", **fields: str) -> httpx.Response:
    """Upload a file under a key; the boundary is another each time."""
    form = {"purpose": "batch"} | fields
    return mesh.client.post("/v1/files", data=form, files={"file": (name, content)}, headers={"idempotency-key": key})


def post(mesh: RestMesh, path: str, key: str, **terms: Any) -> httpx.Response:
    """Post under a key."""
    return mesh.client.post(path, headers={"idempotency-key": key}, **terms)


def assert_replayed(first: httpx.Response, again: httpx.Response) -> None:
    """The second answer is the first one's, and says so."""
    assert (first.status_code, first.headers.get("idempotent-replayed")) == (200, None), first.text
    assert (again.status_code, again.headers.get("idempotent-replayed")) == (200, "true"), again.text
    assert again.content == first.content


def assert_reused(answer: httpx.Response) -> None:
    """The key is another request's."""
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "idempotency_key_reused")


def files(mesh: RestMesh) -> list[str]:
    """List all files."""
    return [file["id"] for file in mesh.client.get("/v1/files").json()["data"]]


def test_the_same_file_again(rest_mesh: RestMesh, key: str) -> None:
    """However its form is written, whatever became of it since, after a restart too; the next key is another file."""
    first = send(rest_mesh, key)
    before = files(rest_mesh)
    assert_replayed(first, send(rest_mesh, key))
    rest_mesh.client.delete(f"/v1/files/{first.json()['id']}").raise_for_status()
    rest_mesh.stop("files")
    rest_mesh.start("files")
    assert_replayed(first, send(rest_mesh, key))
    assert set(files(rest_mesh)) == set(before) - {first.json()["id"]}
    other = send(rest_mesh, key + "2")
    assert other.json()["id"] != first.json()["id"]


@pytest.mark.parametrize(
    "changed", [{"content": LINE * 2}, {"name": "b.jsonl"}, {"purpose": "user_data"}, {"expires_after[seconds]": "3600"}], ids=str
)
def test_another_file_under_the_key(rest_mesh: RestMesh, key: str, changed: dict[str, Any]) -> None:
    """Content, name, purpose and life are what a file means."""
    first = send(rest_mesh, key)
    before = files(rest_mesh)
    assert_reused(send(rest_mesh, key, **changed))
    assert files(rest_mesh) == before
    assert_replayed(first, send(rest_mesh, key))


def test_a_refusal_is_not_kept(rest_mesh: RestMesh, key: str) -> None:
    """A file that was refused leaves its key free."""
    assert send(rest_mesh, key, b"[]").status_code == 400
    assert send(rest_mesh, key).headers.get("idempotent-replayed") is None
    assert send(rest_mesh, "k" * 513).status_code == 400


def test_while_it_runs(rest_mesh: RestMesh, key: str) -> None:
    """A second request while the first is still sending is 409, which a retry cures."""
    begun, over = threading.Event(), threading.Event()
    answers: list[httpx.Response] = []
    head = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    head += b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    content = LINE * 100_000

    def body() -> Iterator[bytes]:
        yield head + content
        begun.set()
        over.wait(30)
        yield b"\r\n--x--\r\n"

    def slowly() -> None:
        headers = {"idempotency-key": key, "content-type": "multipart/form-data; boundary=x"}
        answers.append(
            httpx.post(f"http://{rest_mesh.address}/v1/files", content=body(), headers=headers, timeout=60, trust_env=False)
        )

    sending = threading.Thread(target=slowly)
    sending.start()
    begun.wait(30)
    busy = until("the first has arrived", lambda: (answer := send(rest_mesh, key, b"[]")).status_code == 409 and answer)
    assert busy.json()["error"]["code"] == "idempotency_key_in_use"
    assert int(busy.headers["retry-after"]) >= 1
    over.set()
    sending.join()
    assert_replayed(answers[0], send(rest_mesh, key, content))


def test_uploads(rest_mesh: RestMesh, key: str) -> None:
    """Announcing, a part, completing and cancelling: the same again is answered the same, another is refused."""
    terms = {"filename": "a.jsonl", "purpose": "batch", "bytes": len(LINE), "mime_type": "application/jsonl"}
    upload = post(rest_mesh, "/v1/uploads", key, json=terms)
    assert_replayed(upload, post(rest_mesh, "/v1/uploads", key, json=dict(reversed(terms.items()))))
    assert_reused(post(rest_mesh, "/v1/uploads", key, json=terms | {"bytes": 1}))
    path = f"/v1/uploads/{upload.json()['id']}"
    part = post(rest_mesh, f"{path}/parts", key, files={"data": ("p", LINE)})
    assert_replayed(part, post(rest_mesh, f"{path}/parts", key, files={"data": ("other", LINE)}))
    assert_reused(post(rest_mesh, f"{path}/parts", key, files={"data": ("p", LINE * 2)}))
    other = post(rest_mesh, f"{path}/parts", key + "2", files={"data": ("p", LINE)})
    whole = {"part_ids": [part.json()["id"]]}
    done = post(rest_mesh, f"{path}/complete", key, json=whole)
    assert_replayed(done, post(rest_mesh, f"{path}/complete", key, json=whole))
    assert_reused(post(rest_mesh, f"{path}/complete", key, json={"part_ids": [other.json()["id"]]}))
    left = post(rest_mesh, "/v1/uploads", key + "2", json=terms).json()["id"]
    cancelled = post(rest_mesh, f"/v1/uploads/{left}/cancel", key)
    assert_replayed(cancelled, post(rest_mesh, f"/v1/uploads/{left}/cancel", key))
    assert_reused(post(rest_mesh, f"{path}/cancel", key))

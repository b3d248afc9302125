"""How long files live, as a client sees it: results that expire, inputs that a batch still needs, results that are deleted."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from mesh import until
from rest_seam import RestMesh

from haywain.clock import FakeClock
from services.files import service as files

LINE = (
    b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions",'
    b'"body":{"model":"MODEL","messages":[{"role":"user","content":"x"}]}}\n'
)


@pytest.fixture(scope="module")
def clock() -> FakeClock:
    """The clock of the Files service; begins now."""
    return FakeClock(time.time())


@pytest.fixture(scope="module")
def mesh(clock: FakeClock) -> Iterator[RestMesh]:
    """A mesh whose files age as a test says."""
    made = RestMesh()
    made._serves["files"] = partial(files.serve, clock=clock)
    with made:
        yield made


def upload(mesh: RestMesh, model: str = "echo", **form: str) -> str:
    """Upload a batch file; its id."""
    data = {"purpose": "batch"} | form
    content = LINE.replace(b"MODEL", model.encode())
    answer = mesh.client.post("/v1/files", data=data, files={"file": ("in.jsonl", content)})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def create(mesh: RestMesh, file_id: str, **fields: Any) -> str:
    """Create a batch; its id."""
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"} | fields
    answer = mesh.client.post("/v1/batches", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def reach(mesh: RestMesh, batch_id: str, status: str) -> dict[str, Any]:
    """Wait for a status; the batch object."""

    def look() -> dict[str, Any] | None:
        batch: dict[str, Any] = mesh.client.get(f"/v1/batches/{batch_id}").json()
        assert batch["status"] in (status, "validating", "in_progress", "finalizing", "cancelling"), str(batch)
        return batch if batch["status"] == status else None

    return dict(until(f"{batch_id} is {status}", look, timeout=20))


def pass_time(mesh: RestMesh, clock: FakeClock, seconds: float) -> None:
    """Let time pass for the files, and the sweep come by: it does at the service's start."""
    clock.advance(seconds)
    mesh.stop("files")
    start(mesh)


def start(mesh: RestMesh) -> None:
    """Start the files service and let its first sweep end: by this clock, what is just being written may be old already."""
    left = mesh.data / "blobs" / "scratch" / "0-left"  # goes at the end of the sweep
    left.touch()
    os.utime(left, (0, 0))
    mesh.start("files")
    until("the sweep was there", lambda: not left.exists(), timeout=10)


def blob_is_there(mesh: RestMesh, key: str) -> bool:
    """Tell whether bytes are on the disk."""
    return any((mesh.data / "blobs").glob(f"*/{key}"))


def gone(mesh: RestMesh, file_id: str) -> str:
    """Ask for the content of a file; the code that it is refused with."""
    answer = mesh.client.get(f"/v1/files/{file_id}/content")
    assert answer.status_code == 404
    assert mesh.client.head(f"/v1/files/{file_id}/content").status_code == 404
    return str(answer.json()["error"]["code"])


def test_results_expire(mesh: RestMesh, clock: FakeClock) -> None:
    """After output_expires_after the results are gone from the disk, 404 file_expired, and the batch still names their file."""
    batch = reach(mesh, create(mesh, upload(mesh), output_expires_after={"anchor": "created_at", "seconds": 3_600}), "completed")
    file = mesh.client.get(f"/v1/files/{batch['output_file_id']}").json()
    assert file["expires_at"] == file["created_at"] + 3_600
    pass_time(mesh, clock, 3_590)
    assert mesh.client.get(f"/v1/files/{file['id']}/content").status_code == 200
    clock.advance(20)
    assert gone(mesh, file["id"]) == "file_expired"  # before any sweep
    assert blob_is_there(mesh, f"output-{batch['id']}")
    pass_time(mesh, clock, 1)
    assert not blob_is_there(mesh, f"output-{batch['id']}")
    assert gone(mesh, file["id"]) == "file_expired"
    assert mesh.client.get(f"/v1/files/{file['id']}").json() == file | {"status": "expired"}
    assert mesh.client.get(f"/v1/batches/{batch['id']}").json() == batch


def test_results_stay_without_it(mesh: RestMesh, clock: FakeClock) -> None:
    """Results of a batch that says nothing of their life never expire."""
    batch = reach(mesh, create(mesh, upload(mesh)), "completed")
    pass_time(mesh, clock, 40 * 86_400)
    assert mesh.client.get(f"/v1/files/{batch['output_file_id']}").json()["expires_at"] is None
    assert mesh.client.get(f"/v1/files/{batch['output_file_id']}/content").status_code == 200


def test_an_input_in_use_is_never_swept(mesh: RestMesh, clock: FakeClock) -> None:
    """An input that expires while a batch needs it is 404 for everybody, stays on the disk until the batch has ended, then goes."""
    form = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file_id = upload(mesh, "Qwen/Qwen3-0.6B", **form)
    batch_id = create(mesh, file_id)
    reach(mesh, batch_id, "in_progress")
    pass_time(mesh, clock, 3_601)
    assert gone(mesh, file_id) == "file_expired"
    assert blob_is_there(mesh, f"input-{file_id}")
    refused = mesh.client.post("/v1/batches", json={"input_file_id": file_id, "completion_window": "24h"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "input_file_id"
    mesh.client.post(f"/v1/batches/{batch_id}/cancel")
    reach(mesh, batch_id, "cancelled")
    until("the bytes went", lambda: not blob_is_there(mesh, f"input-{file_id}"), timeout=10)


def test_one_input_of_two_batches(mesh: RestMesh, clock: FakeClock) -> None:
    """When the input is deleted and one of two batches on it ends, the bytes stay for the other."""
    file_id = upload(mesh, "Qwen/Qwen3-0.6B")
    first, second = create(mesh, file_id), create(mesh, file_id)
    for batch_id in (first, second):
        reach(mesh, batch_id, "in_progress")
    assert mesh.client.delete(f"/v1/files/{file_id}").json()["deleted"]
    mesh.client.post(f"/v1/batches/{first}/cancel")
    reach(mesh, first, "cancelled")
    pass_time(mesh, clock, 10)
    assert blob_is_there(mesh, f"input-{file_id}")
    mesh.client.post(f"/v1/batches/{second}/cancel")
    reach(mesh, second, "cancelled")
    until("the bytes went", lambda: not blob_is_there(mesh, f"input-{file_id}"), timeout=10)


def test_results_can_be_deleted(mesh: RestMesh) -> None:
    """Deleted results are gone at once; the batch still names their file, and the other files of the batch stay."""
    file_id = upload(mesh)
    batch = reach(mesh, create(mesh, file_id), "completed")
    assert mesh.client.delete(f"/v1/files/{batch['output_file_id']}").status_code == 200
    assert gone(mesh, batch["output_file_id"]) == "file_deleted"
    assert not blob_is_there(mesh, f"output-{batch['id']}")
    assert mesh.client.get(f"/v1/batches/{batch['id']}").json() == batch
    assert mesh.client.get(f"/v1/files/{file_id}/content").status_code == 200


def test_status_after_upload(mesh: RestMesh, clock: FakeClock) -> None:
    """A stored file is `processed`, or `uploaded` where the operator says so; what is stored already keeps its word."""
    before = upload(mesh)
    assert mesh.client.get(f"/v1/files/{before}").json()["status"] == "processed"
    settings = mesh.settings
    chosen = msgspec.structs.replace(settings.files, uploaded_status="uploaded")
    mesh.stop("files")
    mesh.settings = msgspec.structs.replace(settings, files=chosen)
    start(mesh)
    try:
        after = upload(mesh)
        assert mesh.client.get(f"/v1/files/{after}").json()["status"] == "uploaded"
        assert mesh.client.get(f"/v1/files/{before}").json()["status"] == "processed"
        batch = reach(mesh, create(mesh, after), "completed")
        assert mesh.client.get(f"/v1/files/{batch['output_file_id']}").json()["status"] == "processed"
        announced = {"filename": "a", "purpose": "user_data", "bytes": 0, "mime_type": "text/plain"}
        made = mesh.client.post("/v1/uploads", json=announced).json()
        completed = mesh.client.post(f"/v1/uploads/{made['id']}/complete", json={"part_ids": []}).json()
        assert completed["file"]["status"] == "uploaded"
    finally:
        mesh.stop("files")
        mesh.settings = settings
        start(mesh)


def test_an_upload_expires(mesh: RestMesh, clock: FakeClock) -> None:
    """An hour after it was announced an upload takes nothing more, and its parts go."""
    body = {"filename": "a", "purpose": "user_data", "bytes": 1, "mime_type": "text/plain"}
    made = mesh.client.post("/v1/uploads", json=body).json()
    assert made["expires_at"] == made["created_at"] + 3_600
    part = mesh.client.post(f"/v1/uploads/{made['id']}/parts", files={"data": b"x"}).json()
    assert blob_is_there(mesh, part["id"])
    clock.advance(3_601)
    for answer in (
        mesh.client.post(f"/v1/uploads/{made['id']}/parts", files={"data": b"x"}),
        mesh.client.post(f"/v1/uploads/{made['id']}/complete", json={"part_ids": [part["id"]]}),
        mesh.client.post(f"/v1/uploads/{made['id']}/cancel"),
    ):
        assert answer.status_code == 409
        assert "expired" in answer.json()["error"]["message"]
    pass_time(mesh, clock, 600)
    assert not blob_is_there(mesh, part["id"])

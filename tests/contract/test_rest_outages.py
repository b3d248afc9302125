"""Services that are away: what waits, what is told at once, and what a client sees of a stream that breaks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from mesh import until
from rest_seam import RestMesh
from rest_steps import assert_envelope, multipart

FORM = {"content-type": "multipart/form-data; boundary=----haywain"}


@pytest.fixture
def stopped(rest_mesh: RestMesh) -> Iterator[list[str]]:
    """Services that are stopped for the test; started again, and waited for, at its end."""
    names: list[str] = []
    yield names
    for name in names:
        rest_mesh.start(name)
    until("healthy again", lambda: rest_mesh.client.get("/health").status_code == 200)


def _stop(mesh: RestMesh, stopped: list[str], name: str) -> None:
    mesh.stop(name)
    stopped.append(name)


def _chat(script: str, **more: object) -> dict[str, object]:
    return {"model": "echo", "messages": [{"role": "user", "content": script}], **more}


def _upload(mesh: RestMesh, text: str) -> str:
    parts = [{"name": "purpose", "value": "user_data"}, {"name": "file", "filename": "a", "text": text}]
    return str(mesh.client.post("/v1/files", content=multipart(parts), headers=FORM).json()["id"])


def test_gateway_away(rest_mesh: RestMesh, stopped: list[str]) -> None:
    """Without a gateway Envoy answers 503 with Retry-After and the envelope, on reads, writes and uploads."""
    _stop(rest_mesh, stopped, "gateway")
    client = rest_mesh.client
    form = multipart([{"name": "purpose", "value": "batch"}, {"name": "file", "filename": "a.jsonl", "text": "{}"}])
    for answer in (
        client.get("/v1/files"),
        client.post("/v1/files", content=form, headers=FORM),
        client.post("/v1/chat/completions", json=_chat("say")),
    ):
        assert answer.status_code == 503
        assert assert_envelope(answer)["code"] == "service_unavailable"
        assert answer.headers["x-request-id"]
    assert client.get("/v1/nope").status_code == 404


def test_gateway_restarts(rest_mesh: RestMesh) -> None:
    """A request that meets a restarting gateway waits for it and succeeds, a write as well."""
    rest_mesh.stop("gateway")
    starting = threading.Timer(0.3, rest_mesh.start, ["gateway"])
    starting.start()
    try:
        answer = rest_mesh.client.post("/v1/chat/completions", json=_chat("say"))
    finally:
        starting.join()
    assert answer.status_code == 200


def test_service_away(rest_mesh: RestMesh, stopped: list[str]) -> None:
    """A service that stays away is 503 with Retry-After."""
    _stop(rest_mesh, stopped, "batches")
    answer = rest_mesh.client.get("/v1/batches")
    assert answer.status_code == 503
    assert assert_envelope(answer)["code"] == "service_unavailable"


@pytest.mark.parametrize("service", ["files", "batches", "scheduler"])
def test_health_names_what_is_away(rest_mesh: RestMesh, stopped: list[str], service: str) -> None:
    """A service that is away makes the mesh unhealthy, and the reason names it."""
    _stop(rest_mesh, stopped, service)
    health = rest_mesh.client.get("/health")
    assert health.status_code == 503
    assert health.json()["status"] == "unhealthy"
    assert health.json()["reason"] == f"{service} is not reachable"
    assert health.json()["error"]["message"]
    detailed = rest_mesh.client.get("/health/detailed")
    assert detailed.status_code == 503
    body = detailed.json()
    assert (body["status"], body["reason"]) == ("unhealthy", health.json()["reason"])
    away = {"status": "unhealthy", "latency_ms": None, "reason": "it is not reachable"}
    assert {name for name, one in body["components"].items() if one == away} == {service}
    assert body["batch_backlog_rows"] == (None if service == "scheduler" else 5_000_000_000)
    assert body["error"]["code"] == "unhealthy"


@pytest.mark.parametrize("service", ["files", "batches", "scheduler"])
def test_service_restarts(rest_mesh: RestMesh, service: str) -> None:
    """A request that meets a restarting service waits for it and succeeds."""
    rest_mesh.stop(service)
    starting = threading.Timer(0.3, rest_mesh.start, [service])
    starting.start()
    try:
        paths = {"files": "/v1/files?limit=1", "batches": "/v1/batches?limit=1", "scheduler": "/v1/models"}
        answer = rest_mesh.client.get(paths[service])
    finally:
        starting.join()
    assert answer.status_code == 200


def test_upload_without_files(rest_mesh: RestMesh, stopped: list[str]) -> None:
    """An upload without the files service is 503, not a hanging client."""
    _stop(rest_mesh, stopped, "files")
    form = multipart([{"name": "purpose", "value": "user_data"}, {"name": "file", "filename": "a", "text": "x" * 2_000_000}])
    answer = rest_mesh.client.post("/v1/files", content=form, headers=FORM)
    assert answer.status_code == 503
    assert_envelope(answer)


def test_no_engine_is_ready(rest_mesh: RestMesh) -> None:
    """Without a ready engine the mesh is unhealthy: a batch could not run."""
    rest_mesh.scheduler.ready = False
    try:
        answer = rest_mesh.client.get("/health")
    finally:
        rest_mesh.scheduler.ready = True
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["reason"] == "no engine is ready"


def test_download_that_breaks(rest_mesh: RestMesh) -> None:
    """A download whose bytes end too early is cut off, so that no client takes it for whole."""
    file_id = _upload(rest_mesh, "x" * 2_000_000)
    blob = next(path for path in (rest_mesh.data / "blobs").rglob(f"input-{file_id}"))
    _truncate(blob, 1_500_000)
    with pytest.raises(httpx.RemoteProtocolError):
        rest_mesh.client.get(f"/v1/files/{file_id}/content")


def test_client_leaves_a_completion(rest_mesh: RestMesh) -> None:
    """A client that hangs up stops its completion in the engine, streamed or not."""
    for stream in (False, True):
        scheduler = rest_mesh.scheduler
        rest_mesh.on_loop(_reset(rest_mesh))
        with pytest.raises(httpx.ReadTimeout):
            rest_mesh.client.post("/v1/chat/completions", json=_chat("wait", stream=stream), timeout=0.5)
        assert scheduler.waiting.is_set()
        until("it is cancelled", scheduler.cancelled.is_set, timeout=10)


async def _reset(mesh: RestMesh) -> None:
    mesh.scheduler.waiting.clear()
    mesh.scheduler.cancelled.clear()


def _truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)

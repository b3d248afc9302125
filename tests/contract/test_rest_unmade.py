"""Envoy and a creation whose answer died with the gateway: what batches says of it, and when batches can say nothing."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from mesh import free_port, until
from msgspec.structs import replace

from gateway import envoy
from haywain.batches.v1 import batches_pb2, batches_pb2_grpc
from haywain.settings import BatchesSettings, EnvoySettings, Settings


@pytest.fixture
def dying_gateway(settings: Settings) -> Iterator[None]:
    """A gateway that hangs up on whoever asks."""
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(settings.address("gateway").removeprefix("unix:"))
        listener.listen()

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as caller:
                        caller.recv(65_536)

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.mark.usefixtures("dying_gateway")
def test_others_are_answered_meanwhile(data_dir: Path) -> None:
    """A creation that may have been made waits for batches, in vain; refused each time at once, it leaves Envoy to all others."""
    unknown = BatchesSettings(address="nobody.invalid:1")
    with running(Settings(data_dir=str(data_dir), envoy=EnvoySettings(port=free_port()), batches=unknown)) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/batches", json={"input_file_id": "file-x"}, timeout=1)
        assert _status(client) == 404


@pytest.mark.usefixtures("dying_gateway")
@pytest.mark.parametrize(("headers", "again"), [({}, "false"), ({"idempotency-key": "k"}, "true")], ids=["", "with a key"])
def test_what_nobody_can_say(data_dir: Path, headers: dict[str, str], again: str) -> None:
    """Nobody waits for ever: the client is told that it isn't known, and how to find out; only with a key it may just repeat it."""
    envoy_settings = EnvoySettings(port=free_port(), creation_patience_seconds=0.5)
    unknown = BatchesSettings(address="nobody.invalid:1")
    with running(Settings(data_dir=str(data_dir), envoy=envoy_settings, batches=unknown)) as client:
        answer = client.post("/v1/batches", json={"input_file_id": "file-x"}, headers=headers, timeout=30)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (503, "outcome_unknown", "server_error")
    assert ("Repeat the request" in error["message"], "GET /v1/batches" in error["message"]) == (again == "true", again == "false")
    assert answer.headers["x-should-retry"] == again


class Told(batches_pb2_grpc.BatchesServiceServicer):
    """A batches service that notes of which creations it is told that they failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def AnswerCreation(self, request: batches_pb2.AnswerCreationRequest, context: Any) -> batches_pb2.AnswerCreationResponse:
        """Note it."""
        self.failed += [request.request_id] * request.failed
        return batches_pb2.AnswerCreationResponse(outcome=batches_pb2.AnswerCreationResponse.OUTCOME_NOTHING)


@pytest.mark.usefixtures("dying_gateway")
def test_it_is_told_when_it_is_back(settings: Settings) -> None:
    """Batches hears of a creation that its client was told nothing certain of as soon as it is there: nobody waits for that."""
    settings = replace(settings, envoy=EnvoySettings(port=free_port(), creation_patience_seconds=0.5))
    told = Told()
    with running(settings) as client:
        answer = client.post("/v1/batches", json={"input_file_id": "file-x"}, timeout=30)
        assert answer.json()["error"]["code"] == "outcome_unknown"
        batches = grpc.server(ThreadPoolExecutor(2))
        batches_pb2_grpc.add_BatchesServiceServicer_to_server(told, batches)
        batches.add_insecure_port(settings.address("batches"))
        batches.start()
        until("it is told", lambda: told.failed)
        batches.stop(0)
    assert len({*told.failed}) == 1


class Begun(batches_pb2_grpc.BatchesServiceServicer):
    """A batches service in which the batch of every creation has begun."""

    def AnswerCreation(self, request: batches_pb2.AnswerCreationRequest, context: Any) -> batches_pb2.AnswerCreationResponse:
        """Say so."""
        assert request.failed
        assert request.request_id.startswith("create_")
        return batches_pb2.AnswerCreationResponse(outcome=batches_pb2.AnswerCreationResponse.OUTCOME_BATCH, batch_id="batch_x")


@pytest.mark.usefixtures("dying_gateway")
@pytest.mark.parametrize(("headers", "again"), [({}, "false"), ({"idempotency-key": "k"}, "true")], ids=["", "with a key"])
def test_a_batch_that_began(settings: Settings, headers: dict[str, str], again: str) -> None:
    """The client is told of the batch, and not to create it again; one with a key gets the answer by asking again."""
    batches = grpc.server(ThreadPoolExecutor(2))
    batches_pb2_grpc.add_BatchesServiceServicer_to_server(Begun(), batches)
    batches.add_insecure_port(settings.address("batches"))
    batches.start()
    settings = replace(settings, envoy=EnvoySettings(port=free_port()))
    with running(settings) as client:
        answer = client.post("/v1/batches", json={"input_file_id": "file-x"}, headers=headers)
    batches.stop(0)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "answer_lost")
    assert "batch_x" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == again
    assert "retry-after" not in answer.headers


@contextlib.contextmanager
def running(settings: Settings) -> Iterator[httpx.Client]:
    """Run an Envoy; a client of it."""
    url = f"http://127.0.0.1:{settings.envoy.port}"
    with (
        subprocess.Popen(envoy.command(settings), stderr=subprocess.DEVNULL) as process,
        httpx.Client(base_url=url, trust_env=False, timeout=5) as client,
    ):
        try:
            until("Envoy answers", lambda: _status(client) == 404)
            yield client
        finally:
            process.kill()


def _status(client: httpx.Client) -> int | None:
    with contextlib.suppress(httpx.TransportError):
        return client.get("/nowhere").status_code
    return None

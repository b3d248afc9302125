"""Envoy alone with a creation whose fate nobody can tell it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from mesh import free_port, until

from gateway import envoy
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
    port = free_port()
    unknown = BatchesSettings(address="nobody.invalid:1")
    settings = Settings(data_dir=str(data_dir), envoy=EnvoySettings(port=port), batches=unknown)
    with (
        subprocess.Popen(envoy.command(settings), stderr=subprocess.DEVNULL) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=5) as client,
    ):
        try:
            until("Envoy answers", lambda: _status(client) == 404)
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/batches", json={"input_file_id": "file-x"}, timeout=1)
            assert _status(client) == 404
        finally:
            process.kill()


def _status(client: httpx.Client) -> int | None:
    with contextlib.suppress(httpx.TransportError):
        return client.get("/nowhere").status_code
    return None

"""A stop of `haywain up` while somebody is being answered: what has begun ends well, within a bound."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mesh import Mesh, until

SLOW = ("--engine", "echo", "--set", "engine.echo.ms_per_token=50")


@pytest.fixture
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh that takes 50 ms a word."""
    with Mesh(haywain) as running:
        yield running.start(*SLOW)


def _chat(words: int) -> dict[str, Any]:
    return {"model": "echo", "messages": [{"role": "user", "content": "word " * words}], "stream": True}


def _interrupted(mesh: Mesh, number: int = signal.SIGINT) -> threading.Thread:
    """Stop the mesh from another thread."""
    stopping = threading.Thread(target=mesh.stop, args=(number,))
    stopping.start()
    return stopping


def test_a_stream_ends_well(mesh: Mesh) -> None:
    """Events that flow when the mesh is interrupted flow on to [DONE]; meanwhile nobody new gets in."""
    with mesh.client.stream("POST", "/v1/chat/completions", json=_chat(30)) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        stopping = _interrupted(mesh)
        until("the door is closed", lambda: not _gets_in(mesh), timeout=5)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert len(rest) > 25
    stopping.join(30)
    assert mesh.process is not None
    assert mesh.process.returncode == 0


def test_a_download_ends_well(mesh: Mesh) -> None:
    """A download that runs when the mesh is stopped comes whole."""
    size = 60_000_000
    file = mesh.upload(b"x" * size, purpose="user_data")
    with mesh.client.stream("GET", f"/v1/files/{file['id']}/content") as response:
        chunks = response.iter_raw(1_000_000)
        got = len(next(chunks))
        stopping = _interrupted(mesh, signal.SIGTERM)
        until("the door is closed", lambda: not _gets_in(mesh), timeout=5)
        got += sum(map(len, chunks))
    assert got == size
    stopping.join(30)


def test_the_wait_is_bounded(haywain: Path) -> None:
    """An answer that takes longer than `envoy.drain_seconds` is cut off, and said to be."""
    with Mesh(haywain).start(*SLOW, "--set", "envoy.drain_seconds=0.5") as mesh:
        with mesh.client.stream("POST", "/v1/chat/completions", json=_chat(2_000)) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: {")
            stopping = _interrupted(mesh)
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)
        stopping.join(30)
        assert "requests still ran after 0.5 s" in (mesh.data / "up.log").read_text()


def _gets_in(mesh: Mesh) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{mesh.port}/health", timeout=2.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False

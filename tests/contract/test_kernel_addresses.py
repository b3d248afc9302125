"""An address is served by one process at a time."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from haywain import errors, rpc


async def test_a_taken_address_is_told() -> None:
    """A port that is taken is a SettingsError that names it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(errors.SettingsError, match=address):
            async with rpc.serving(address, []):
                pass


async def test_a_served_socket_is_not_taken(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second server at a Unix socket is refused in one line, and the first goes on; once that has ended, the next may serve."""
    monkeypatch.setattr("haywain.lockfile._PATIENCE_SECONDS", 0.0)
    address = f"unix:{data_dir}/peer.sock"
    for _ in range(2):
        async with rpc.serving(address, [], grace_seconds=0), rpc.channel(address) as channel:
            with pytest.raises(errors.SettingsError, match=f"^another process serves {address} already$"):
                async with rpc.serving(address, []):
                    pass
            check = health_pb2_grpc.HealthStub(channel).Check
            answer = await rpc.call(check, health_pb2.HealthCheckRequest(), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING

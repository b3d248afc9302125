"""Fixtures for every kind of test: a data folder, settings for it, and pytest-grpc's fixtures on a real asyncio server.

pytest-grpc's names stay: a test module gives `grpc_servicer`, `grpc_add_to_server` and `grpc_stub_cls`, and asks for `grpc_stub`
(or `grpc_channel`). All are of function scope here: each test has a server of its own, on a Unix socket, with our interceptor.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from haywain import rpc
from haywain.settings import DatabaseSettings, Settings


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """Give a data folder whose path is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="hw", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def settings(data_dir: Path, database_url: str) -> Settings:
    """Give the defaults, in a data folder and a database of the test's own."""
    return Settings(data_dir=str(data_dir), db=DatabaseSettings(url=database_url))


@pytest.fixture
def grpc_addr(data_dir: Path) -> str:
    """Tell where the server under test listens."""
    return f"unix:{data_dir}/run/test.sock"


@pytest.fixture
def grpc_interceptor() -> rpc.Interceptor:
    """Give the server's interceptor."""
    return rpc.Interceptor()


@pytest.fixture
async def grpc_server(
    grpc_addr: str, grpc_servicer: Any, grpc_add_to_server: Callable[[Any, Any], None], grpc_interceptor: rpc.Interceptor
) -> AsyncIterator[rpc.Server]:
    """Run the servicer under test."""
    service = (grpc_servicer, grpc_add_to_server, "test.Service")
    async with rpc.serving(grpc_addr, [service], interceptor=grpc_interceptor, grace_seconds=0.2) as server:
        yield server


@pytest.fixture
def grpc_create_channel(grpc_addr: str, grpc_server: rpc.Server) -> Callable[[], grpc.aio.Channel]:
    """Open a channel to the running server; the caller closes it."""
    return lambda: rpc.channel(grpc_addr)


@pytest.fixture
async def grpc_channel(grpc_create_channel: Callable[[], grpc.aio.Channel]) -> AsyncIterator[grpc.aio.Channel]:
    """Give a channel to the running server."""
    async with grpc_create_channel() as channel:
        yield channel


@pytest.fixture
def grpc_stub(grpc_stub_cls: Callable[[grpc.aio.Channel], Any], grpc_channel: grpc.aio.Channel) -> Any:
    """Give a typed stub of the running server."""
    return grpc_stub_cls(grpc_channel)

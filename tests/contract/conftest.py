"""Fixtures of the REST contract: one Envoy and one gateway for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc
import pytest

if TYPE_CHECKING:
    from rest_seam import RestMesh


@pytest.fixture(scope="session")
def rest_mesh() -> Iterator[RestMesh]:
    """Give Envoy, gateway, files and batches with a scripted scheduler; at the end Envoy's Lua must not have complained."""
    from rest_seam import RestMesh  # noqa: PLC0415 - the whole product, which the other suites of this folder don't need

    with RestMesh() as mesh:
        yield mesh
        complaints = [line for line in (mesh.data / "envoy.log").read_text().splitlines() if '"logger":"lua"' in line]
    assert not complaints


@pytest.fixture(scope="session")
def rest_channel(rest_mesh: RestMesh) -> Iterator[grpc.Channel]:
    """Give a native gRPC channel through Envoy."""
    with grpc.insecure_channel(rest_mesh.address) as channel:
        yield channel

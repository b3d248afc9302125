"""Where `haywain up` listens, as its URL and its refusals have it."""

from __future__ import annotations

import httpx
import pytest

from haywain.settings import EnvoySettings, Settings
from haywain.up import _place


@pytest.mark.parametrize(
    ("host", "place"),
    [("127.0.0.1", "127.0.0.1:18"), ("::1", "[::1]:18"), ("::", "[::]:18")],
)
def test_a_host_is_written_as_urls_have_it(host: str, place: str) -> None:
    """An IPv6 address stands in brackets: else its last group would be a port, and `up` could never say that it is ready."""
    assert _place(Settings(envoy=EnvoySettings(host=host, port=18))) == place
    assert httpx.URL(f"http://{place}").port == 18

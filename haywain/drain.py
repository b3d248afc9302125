"""Letting Envoy finish: SIGTERM alone would cut every running answer off.

Its admin interface is asked first:

    /healthcheck/fail    answers from now on tell their clients to close the connection
    /drain_listeners     nobody new gets in; what runs goes on
    /stats               how many requests are left, until it is none or the time is up

A SIGTERM to `haywain envoy` itself still cuts: whoever stops it alone asks for the same first.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

__all__ = ["ADMIN_SOCKET", "drain"]

ADMIN_SOCKET = "envoy-admin.sock"
"""in the run folder"""
_ACTIVE = "http.ingress.downstream_rq_active"
_TICK_SECONDS = 0.02


async def drain(socket: Path, seconds: float) -> bool:
    """Close Envoy's door and wait until no request is left; False when some were left after so many seconds.

    An Envoy that can't be asked isn't waited for.
    """
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://envoy", timeout=5.0) as client:
        try:
            async with asyncio.timeout(seconds):
                for path in ("/healthcheck/fail", "/drain_listeners"):
                    (await client.post(path)).raise_for_status()
                while await _active(client):  # noqa: ASYNC110 - another process's figure
                    await asyncio.sleep(_TICK_SECONDS)
        except TimeoutError:
            return False
        except httpx.HTTPError:
            pass
    return True


async def _active(client: httpx.AsyncClient) -> int:
    answer = await client.get("/stats", params={"filter": f"^{_ACTIVE}$"})
    return int(answer.raise_for_status().text.rpartition(":")[2] or 0)

"""Which endpoints an upstream has, asked at the start by a request that nobody can run, and so nobody bills: half a JSON object.

404, 405, 501                it isn't there (llama-server answers 501 for what its model can't do)
401, 403                     our key may not use it
any other status, or none    it is taken to be there: rows will tell
"""

from __future__ import annotations

import asyncio
from typing import Final

import httpx

from haywain.errors import SettingsError
from haywain.openai import ENDPOINTS
from haywain.settings import UpstreamSettings, masked

__all__ = ["served"]

_ABSENT: Final = frozenset({404, 405, 501})
_KEY: Final = frozenset({401, 403})
_SECONDS: Final = 10.0


async def served(http: httpx.AsyncClient, settings: UpstreamSettings) -> tuple[str, ...]:
    """Ask for each, all at the same time, where the settings don't say. Raises SettingsError when there is none."""
    if settings.endpoints:
        return settings.endpoints
    statuses = await asyncio.gather(*(_status(http, endpoint) for endpoint in ENDPOINTS))
    there = tuple(endpoint for endpoint, status in zip(ENDPOINTS, statuses, strict=True) if status not in _ABSENT | _KEY)
    if there:
        return there
    where = f"engine.upstream.url {masked(settings.url)}"
    told = ", ".join(f"{endpoint} {status}" for endpoint, status in zip(ENDPOINTS, statuses, strict=True))
    if _KEY.isdisjoint(statuses):
        raise SettingsError(f"{where} has no endpoint that is known here: it answers {told}")
    key = f"the key in {settings.key_file}" if settings.key_file else "no key was sent (engine.upstream.key_file)"
    raise SettingsError(f"{where} refuses every endpoint ({told}): {key}")


async def _status(http: httpx.AsyncClient, endpoint: str) -> int:
    path, headers = endpoint.removeprefix("/v1/"), {"content-type": "application/json"}
    try:
        async with http.stream("POST", path, content=b"{", headers=headers, timeout=_SECONDS) as response:
            return response.status_code
    except httpx.TransportError:
        return 0

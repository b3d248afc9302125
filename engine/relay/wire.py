"""What speaks at an address, asked without a client that would hide it."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

__all__ = ["speaks_tls"]

_SECONDS: Final = 3.0


async def speaks_tls(host: str, port: int) -> bool:
    """Try a handshake, whoever the server is."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (ssl.SSLError, OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True

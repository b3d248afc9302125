"""What speaks at an address, before gRPC hides it behind "failed to connect": a few bytes there, a few back."""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import Final

from engine.relay.wire import speaks_tls
from haywain.errors import SettingsError, Unavailable
from haywain.settings import TritonSettings

__all__ = ["check", "split"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""how an HTTP/2 client begins: the preface and empty settings"""
_SETTINGS_FRAME: Final = 4
_SECONDS: Final = 3.0
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^\[\]:/\s]+):(?P<port>\d{1,5})")


def split(url: str) -> tuple[str, int]:
    """Take host:port apart. Raises SettingsError."""
    found = _ADDRESS.fullmatch(url)
    if found is None or not 1 <= int(found["port"]) <= 65_535:
        raise SettingsError(f"engine.triton.url is {url!r}, expected host:port of Triton's gRPC, such as 127.0.0.1:8001")
    return found["host"].strip("[]"), int(found["port"])


async def check(settings: TritonSettings) -> None:
    """Look. Raises SettingsError for what waiting can't cure, Unavailable when nothing is there (yet)."""
    host, port = split(settings.url)
    where = f"engine.triton.url {settings.url}"
    try:
        first = await _answer(host, port, _PREFACE, _context(settings) if settings.tls else None)
        if not first and await _speaks_http(host, port, settings):
            raise SettingsError(f"{where} speaks HTTP, not gRPC: Triton's gRPC is at another port, 8001 by default")
        if first is None:
            raise Unavailable(f"{where} doesn't answer")
        if not settings.tls and (first[:1] == b"\x15" or (not first and await speaks_tls(host, port))):
            raise SettingsError(f"{where} speaks TLS; set engine.triton.tls=true")
    except ssl.SSLCertVerificationError as error:
        raise SettingsError(f"{where}: the server's certificate isn't trusted: {error.verify_message}") from None
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise SettingsError(f"{where} doesn't speak TLS ({reason}); set engine.triton.tls=false") from None
    except OSError as error:
        raise Unavailable(f"{where}: {error.strerror or error}") from None
    if first.startswith(b"HTTP/1"):
        raise SettingsError(f"{where} speaks HTTP, not gRPC: Triton's gRPC is at another port, 8001 by default")
    if first and first[3:4] != bytes([_SETTINGS_FRAME]):
        raise SettingsError(f"{where} doesn't speak gRPC: it answers {first[:20]!r}")


async def _answer(host: str, port: int, said: bytes, context: ssl.SSLContext | None) -> bytes | None:
    """Say something; how the answer begins. Empty when the connection is closed instead, None when nothing comes."""
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
    except TimeoutError:
        return None
    try:
        async with asyncio.timeout(_SECONDS):
            writer.write(said)
            return await reader.read(64)
    except TimeoutError:
        return None
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def _speaks_http(host: str, port: int, settings: TritonSettings) -> bool:
    """Ask in HTTP/1: some of its servers say nothing to HTTP/2."""
    answer = await _answer(host, port, b"GET /v2 HTTP/1.1\r\nHost: triton\r\n\r\n", _context(settings) if settings.tls else None)
    return (answer or b"").startswith(b"HTTP/1")


def _context(settings: TritonSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca_file or None)
        if settings.tls_cert_file:
            context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"engine.triton.tls_ca_file, tls_cert_file, tls_key_file: {error.strerror or error}") from None
    context.set_alpn_protocols(["h2"])
    return context

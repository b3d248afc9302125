"""The way to the upstream: its address, our key, and which models it has. What is wrong with them is told in one line, at start."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any, Final

import h2  # noqa: F401 - httpx misses it only when it connects
import httpx
import msgspec

from engine.relay.wire import speaks_tls
from engine.upstream import reading
from haywain.errors import HaywainError, SettingsError, Unavailable
from haywain.settings import UpstreamSettings, masked

__all__ = ["Model", "client", "models", "silence"]

_CONNECT_SECONDS: Final = 10.0
_LIST_BYTES: Final = 16 * 2**20
_LIST_SECONDS: Final = 30.0


class _Meta(msgspec.Struct):
    n_ctx: int | None = None


class Model(msgspec.Struct):
    """A model as `GET /models` lists it; servers add what they like."""

    id: str
    created: int | None = None
    owned_by: str | None = None
    root: str | None = None
    max_model_len: int | None = None  # vLLM
    meta: _Meta | None = None  # llama-server

    @property
    def context_length(self) -> int:
        """Tokens of a sequence, 0 when the server doesn't say."""
        return max(self.max_model_len or (self.meta.n_ctx if self.meta else None) or 0, 0)


class _Models(msgspec.Struct):
    data: list[Model]


def client(settings: UpstreamSettings) -> httpx.AsyncClient:
    """Make the client: HTTP/2 where the upstream offers it, a connection for each slot at most, proxies by the environment.

    Raises SettingsError when address, key or certificate can't be used.
    """
    try:
        address = httpx.URL(settings.url)
    except httpx.InvalidURL as error:
        raise SettingsError(f"engine.upstream.url: {error}") from error
    if address.scheme not in {"http", "https"} or not address.host:
        raise SettingsError(
            f"engine.upstream.url is {masked(settings.url)!r}, expected http:// or https:// and a host, e.g. http://127.0.0.1:8000/v1"
        )
    return httpx.AsyncClient(
        base_url=address,
        headers=_authorization(settings.key_file),
        http2=address.scheme == "https",
        verify=_trusted(settings.ca_file),
        timeout=httpx.Timeout(settings.timeout_seconds, connect=_CONNECT_SECONDS, pool=None),
        # One more than rows use: a look must not wait for them.
        limits=httpx.Limits(max_connections=settings.slots + 1, max_keepalive_connections=settings.slots + 1),
    )


def _authorization(file: str) -> dict[str, str]:
    if not file:
        return {}
    try:
        key = Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"engine.upstream.key_file: {error}") from error
    if not key or not key.isascii() or not key.isprintable():
        raise SettingsError(f"engine.upstream.key_file {file}: expected one line of printable ASCII")
    return {"authorization": f"Bearer {key}"}


def _trusted(file: str) -> ssl.SSLContext | bool:
    if not file:
        return True
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"engine.upstream.ca_file {file}: {error}") from error


async def models(http: httpx.AsyncClient, settings: UpstreamSettings) -> list[Model]:
    """Ask for the models to be served.

    Raises SettingsError for what only the operator can mend, Unavailable when the upstream is away or not ready yet.
    """
    where = f"engine.upstream.url {masked(settings.url)}"  # rows are told, too
    try:
        async with asyncio.timeout(_LIST_SECONDS), http.stream("GET", "models", timeout=_CONNECT_SECONDS) as response:
            _check_status(response, where, settings)
            content = await reading.whole(response, _LIST_BYTES)
    except TimeoutError:
        raise Unavailable(f"{where} lists no models within {_LIST_SECONDS:g} s") from None
    except reading.TooLargeError:
        raise SettingsError(f"{where}: {response.url.path} answered more than {_LIST_BYTES >> 20} MiB") from None
    except httpx.TransportError as error:
        raise await _no_answer(error, http.base_url, where) from error
    except httpx.DecodingError as error:
        raise SettingsError(f"{where}: {response.url.path} can't be read: {error}") from error
    try:
        listed = msgspec.json.decode(content, type=_Models).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        kind = response.headers.get("content-type", "no content type")
        came = f"{kind} ({len(content)} bytes)"
        raise SettingsError(f"{where}: {response.url.path} answered {came}, expected a list of models as JSON ({error})") from error
    return _wanted(listed, settings, where)


async def _no_answer(error: httpx.TransportError, address: httpx.URL, where: str) -> HaywainError:
    """Say why there was none: what waiting can't cure is a SettingsError."""
    cause = _cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return SettingsError(
            f"{where}: TLS failed, its certificate isn't trusted: {error}; engine.upstream.ca_file names whom to trust"
        )
    if isinstance(cause, ssl.SSLError):
        return SettingsError(f"{where}: TLS failed: {error}; write http:// if it speaks none")
    broken = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
    if broken and address.scheme == "http" and await speaks_tls(address.host, address.port or 80):
        return SettingsError(f"{where} speaks TLS; write https://")
    if isinstance(error, httpx.TimeoutException):
        return Unavailable(f"{where} doesn't answer within {_CONNECT_SECONDS:g} s")
    return Unavailable(f"{where}: {str(error) or type(error).__name__}")


async def silence(http: httpx.AsyncClient, seconds: float) -> str:
    """Tell why nothing comes; an empty text when anything does, whatever it is."""
    try:
        async with http.stream("GET", "models", timeout=seconds):
            return ""
    except httpx.TimeoutException:
        return f"it has said nothing for {seconds:g} s, nor when it was asked for its models"
    except httpx.TransportError as error:
        return str(error) or type(error).__name__


def _check_status(response: httpx.Response, where: str, settings: UpstreamSettings) -> None:
    status = response.status_code
    if status in {401, 403}:
        key = f"the key in {settings.key_file}" if settings.key_file else "no key was sent (engine.upstream.key_file)"
        raise SettingsError(f"{where} answered {status}: {key}")
    if status == 429 or status >= 500:
        raise Unavailable(f"{where} answered {status} to {response.url.path}")
    if 300 <= status < 400:
        raise SettingsError(
            f"{where} answered {status} to {response.url.path}: it is at {response.headers.get('location', 'another address')!r}"
        )
    if status != 200:
        raise SettingsError(f"{where} answered {status} to {response.url.path}, expected 200; does the address end in /v1?")


def _wanted(listed: list[Model], settings: UpstreamSettings, where: str) -> list[Model]:
    if not settings.models:
        if not listed:
            raise Unavailable(f"{where} has no models")
        return listed
    known = {model.id: model for model in listed}
    missing = [name for name in settings.models if name not in known]
    if missing:
        there = ", ".join(sorted(known)[:20]) or "none"
        raise SettingsError(f"{where} has no model {', '.join(missing)} (engine.upstream.models); it has: {there}")
    return [known[name] for name in settings.models]


def _cause(error: BaseException) -> BaseException:
    """Go to the bottom of what httpx wraps."""
    below: Any = error
    while (deeper := below.__cause__ or below.__context__) is not None:
        below = deeper
    return below  # type: ignore[no-any-return]

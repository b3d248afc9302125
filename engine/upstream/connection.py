"""The way to the upstream: its address, our key, and which models it has. What is wrong with them is told in one line, at start."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from haywain.errors import SettingsError, Unavailable
from haywain.settings import UpstreamSettings, masked

__all__ = ["Model", "client", "models"]

_CONNECT_SECONDS: Final = 10.0


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
    """Make the client: HTTP/2 where the upstream offers it, `slots` connections at most, proxies by the environment.

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
        limits=httpx.Limits(max_connections=settings.slots, max_keepalive_connections=settings.slots),
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
        response = await http.get("models", timeout=_CONNECT_SECONDS)
    except httpx.ConnectError as error:
        if isinstance(_cause(error), ssl.SSLError):
            raise SettingsError(f"{where}: TLS failed: {error}") from error
        raise Unavailable(f"{where}: {error or type(error).__name__}") from error
    except httpx.RemoteProtocolError as error:
        raise Unavailable(f"{where}: {error} (is it https?)") from error
    except httpx.TransportError as error:
        raise Unavailable(f"{where}: {str(error) or type(error).__name__}") from error
    _check_status(response, where, settings)
    try:
        listed = msgspec.json.decode(response.content, type=_Models).data
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        kind = response.headers.get("content-type", "no content type")
        path = response.url.path
        raise SettingsError(f"{where}: {path} answered {kind}, expected a list of models as JSON ({error})") from error
    return _wanted(listed, settings, where)


def _check_status(response: httpx.Response, where: str, settings: UpstreamSettings) -> None:
    status = response.status_code
    if status in {401, 403}:
        key = f"the key in {settings.key_file}" if settings.key_file else "no key was sent (engine.upstream.key_file)"
        raise SettingsError(f"{where} answered {status}: {key}")
    if status == 429 or status >= 500:
        raise Unavailable(f"{where} answered {status} to {response.url.path}")
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

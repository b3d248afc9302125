"""Settings: one frozen tree, read once at start and passed down by constructor.

Sources, later ones win: the defaults below < a TOML file < environment (`HAYWAIN_SCHEDULER__LEASE_SECONDS=30`) < flags
(`--set scheduler.lease_seconds=30`). Units are in the names. Unknown keys are errors. `haywain config` prints what is in force;
docs/settings.md lists everything.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from haywain import aliases
from haywain.engine_settings import (
    EchoSettings,
    EngineSettings,
    LlamaCppSettings,
    Section,
    TritonContractSettings,
    TritonSettings,
    UpstreamSettings,
)
from haywain.errors import SettingsError

__all__ = [
    "BatchesSettings", "DatabaseSettings", "EchoSettings", "EngineSettings", "EnvoySettings", "FilesSettings", "GatewaySettings",
    "LlamaCppSettings", "LogSettings", "SchedulerSettings", "Settings", "TritonContractSettings", "TritonSettings",
    "UpstreamSettings", "dump", "load", "masked",
]  # fmt: skip


_BARE = re.compile(r"[A-Za-z0-9_-]+")


class LogSettings(Section, frozen=True):
    """`[log]`"""

    level: str = "info"
    format: str = "auto"
    """auto (text on a terminal, else json), json, text"""
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 67_108_864
    """of `haywain up`: a log that is as large is renamed, and a new one begun; 0 for never"""
    keep: Annotated[int, msgspec.Meta(ge=0)] = 4
    """how many older parts of each log stay"""


class DatabaseSettings(Section, frozen=True):
    """`[db]`"""

    url: str = ""
    """empty: one SQLite file a service in the data folder; postgresql://…: a schema a service in that database"""


class EnvoySettings(Section, frozen=True):
    """`[envoy]`"""

    host: str = "127.0.0.1"
    port: int = 10900
    max_upload_bytes: int = 210_763_776
    """a multipart body: the file limit and 1 MiB of form around it"""
    max_part_bytes: int = 68_157_440
    """the multipart body of an upload's part: the part limit and 1 MiB of form around it"""
    max_body_bytes: int = 4_194_304
    """any other body"""
    allowed_hosts: tuple[str, ...] = ()
    """names by which clients may call, without port, besides those of this machine for itself; `*` for any. Empty: any, unless
    `host` is a loopback address"""
    allowed_origins: tuple[str, ...] = ()
    """whose pages may send what changes something, besides the mesh's own: `https://app.example.com`; `*` for any"""
    creation_patience_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 60.0
    """how long a creation is kept waiting of which nobody can say whether it happened"""
    drain_seconds: float = 10.0
    """at a stop, how long requests may go on"""


class GatewaySettings(Section, frozen=True):
    """`[gateway]`"""

    address: str = ""
    completion_timeout_seconds: float = 600.0
    """a synchronous request's whole time"""
    event_keepalive_seconds: float = 10.0
    """a stream of events that has nothing to say for so long sends a comment"""


class FilesSettings(Section, frozen=True):
    """`[files]`"""

    address: str = ""
    max_file_bytes: int = 209_715_200
    """a file sent whole, and any file of purpose `batch`"""
    max_upload_bytes: int = 8_589_934_592
    """a file that comes in parts"""
    max_part_bytes: int = 67_108_864
    upload_seconds: float = 3_600.0
    """how long an upload takes parts and can be completed"""
    batch_expires_after_seconds: int = 2_592_000
    """files of purpose `batch`, unless the upload says otherwise"""
    uploaded_status: str = "processed"
    """processed, or uploaded: a file's status once stored"""


class BatchesSettings(Section, frozen=True):
    """`[batches]`"""

    address: str = ""
    max_lines: int = 50_000
    max_line_bytes: int = 1_048_576
    max_errors: int = 1_000
    shard_rows: int = 5_000
    completion_windows: str = "24h"
    """24h, or any: s, m, h up to 168h"""
    mixed_models: bool = False
    cancel_conflict: int = 409
    """status of cancelling a terminal batch: 409, or 400"""
    check_file_at_create: bool = False
    one_active_per_file: bool = False
    invalid_rows: str = "fail"
    """fail, or reject: what a bad line does where the creation doesn't say it"""
    poll_seconds: float = 1.0
    """how often the scheduler is asked when no hint comes"""


LeaseSeconds = Annotated[int, msgspec.Meta(ge=1, le=31_536_000)]


class SchedulerSettings(Section, frozen=True):
    """`[scheduler]`"""

    address: str = ""
    replicas: int = 1
    """how many schedulers share the data folder and the database; more than one needs PostgreSQL"""
    replica: str = "scheduler"
    """stable name of this one: `scheduler`, `scheduler-2`, …; its own leases are taken over at start"""
    lease_seconds: float = 30.0
    intake_rows: int = 1_000_000
    slots: int = 10_240
    """sequences out at engines at the same time"""
    message_rows: int = 512
    message_bytes: int = 1_048_576
    checkpoint_seconds: float = 1.0
    """how often recorded rows are committed as segments"""
    heartbeat_ms: int = 1_000
    row_timeout_seconds: float = 0.0
    """a row's time at an engine; 0 for no limit"""
    max_losses: int = 2
    """a row that was in this many lost engines is failed"""
    max_attempts: int = 5
    """a row that engines refused as retryable this many times is failed"""
    straggler_factor: float = 4.0
    """when nothing waits, a row at an engine for so many times what long rows take at an idle one is sent there, too; 0: never"""
    straggler_seconds: float = 10.0
    """but not sooner"""
    incremental_retention_seconds: float = 86_400.0
    pin_batch_to_digest: bool = False
    """a batch's rows of a model run on engines of one digest only: that of the engine which was sent the first row"""
    aliases: dict[str, str] = msgspec.field(default_factory=dict)
    """other names for models: alias to model id"""
    model_lease_seconds: LeaseSeconds = 600
    """how long a lease of a model lasts without renewal, when nobody says how long"""
    model_lease_seconds_max: LeaseSeconds = 7_200

    def __post_init__(self) -> None:
        """Refuse aliases that lead nowhere."""
        aliases.check(self.aliases)


class Settings(Section, frozen=True):
    """The whole tree."""

    data_dir: str = "haywain-data"
    log: LogSettings = LogSettings()
    db: DatabaseSettings = DatabaseSettings()
    envoy: EnvoySettings = EnvoySettings()
    gateway: GatewaySettings = GatewaySettings()
    files: FilesSettings = FilesSettings()
    batches: BatchesSettings = BatchesSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    engine: EngineSettings = EngineSettings()

    @property
    def data(self) -> Path:
        """The data folder, absolute."""
        return Path(self.data_dir).absolute()

    @property
    def run_dir(self) -> Path:
        """Where sockets live: `{data}/run`, or a folder below the temporary one when that path is too long for a socket."""
        inside = self.data / "run"
        if len(str(inside)) <= 80:
            return inside
        return Path(tempfile.gettempdir()) / f"haywain-{hashlib.sha256(str(self.data).encode()).hexdigest()[:12]}"

    def replicas(self, process: str) -> list[str]:
        """List the processes of a kind: gateway, files, batches, scheduler or engine; several schedulers are `scheduler-2`, …"""
        count = self.scheduler.replicas if process == "scheduler" else 1
        return [process if number == 1 else f"{process}-{number}" for number in range(1, count + 1)]

    def addresses(self, process: str) -> list[str]:
        """List their gRPC targets, in the same order: as set, with commas between them, else Unix sockets of this instance.

        Raises SettingsError when another number of them is set.
        """
        names = self.replicas(process)
        given = [address.strip() for address in str(getattr(self, process).address).split(",") if address.strip()]
        if given and len(given) != len(names):
            raise SettingsError(f"{process}.address names {len(given)} where there are {len(names)}")
        return given or [f"unix:{self.run_dir / name}.sock" for name in names]

    def address(self, process: str) -> str:
        """Tell the gRPC target of a process; of several, this one's."""
        names = self.replicas(process)
        own = self.scheduler.replica
        return self.addresses(process)[names.index(own) if own in names else 0]


def load(*, file: Path | None = None, env: Mapping[str, str] | None = None, sets: Iterable[str] = ()) -> Settings:
    """Merge all sources into `Settings`.

    `sets` are `section.key=value` texts. Raises SettingsError that names the source, the key and what was expected.
    """
    tree: dict[str, Any] = {}
    if file is not None:
        try:
            tree = tomllib.loads(file.read_text("utf-8"))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"settings file {file}: {error}") from error
        _convert(tree, f"settings file {file}")
    for name, value in (env or {}).items():
        if name.startswith("HAYWAIN_") and ("__" in name or name == "HAYWAIN_DATA_DIR"):
            _put(tree, name.removeprefix("HAYWAIN_").lower().split("__"), value, name)
            _convert(tree, name)
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--set {text}: expected section.key=value")
        _put(tree, key.strip().split("."), value, f"--set {key}")
        _convert(tree, f"--set {key}")
    return _convert(tree, "settings")


def _convert(tree: dict[str, Any], source: str) -> Settings:
    """Convert what was merged so far: what is wrong with it now is the fault of the `source` that came last."""
    try:
        return msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source}: {error}") from error


def _put(tree: dict[str, Any], path: list[str], value: str, source: str) -> None:
    for part in path[:-1]:
        child = tree.setdefault(part, {})
        if not isinstance(child, dict):
            raise SettingsError(f"{source}: {part} is a value, not a section")
        tree = child
    tree[path[-1]] = _json(value, source) if value.startswith(("[", "{")) else value


def _json(value: str, source: str) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        what = 'a list in JSON, like ["a","b"]' if value.startswith("[") else 'a table in JSON, like {"a":"b"}'
        raise SettingsError(f"{source}: {value} is not {what}: {error}") from error


def masked(url: str) -> str:
    """Hide the passwords of a URL."""
    return re.sub(r"(password=)[^&]*", r"\1***", re.sub(r"(://[^:@/]*):.*@", r"\1:***@", url))


def dump(settings: Settings, *, secrets: bool = True) -> str:
    """Write the whole tree as TOML, a dotted key a line; `load(file=…)` reads it back, unless its `secrets` are hidden."""
    if not secrets:
        replace, engine = msgspec.structs.replace, settings.engine
        engine = replace(engine, upstream=replace(engine.upstream, url=masked(engine.upstream.url)))
        settings = replace(settings, db=DatabaseSettings(url=masked(settings.db.url)), engine=engine)
    lines: list[str] = []

    def walk(tree: dict[str, Any], prefix: str) -> None:
        for key, value in tree.items():
            if not _BARE.fullmatch(key):  # a name that an operator chose
                key = msgspec.json.encode(key).decode()  # noqa: PLW2901
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")
            else:
                lines.append(f"{prefix}{key} = {msgspec.json.encode(value).decode()}\n")

    walk(msgspec.to_builtins(settings), "")
    return "".join(lines)

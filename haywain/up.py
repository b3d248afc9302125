"""`haywain up`: every process of the mesh on one machine, each in its own, watched and restarted.

    start    all at once; they find each other over Unix sockets in the data folder
    ready    when GET /health answers 200 through Envoy: a batch could run
    watch    what dies is started again, after a pause that doubles while it keeps dying
    stop     in the order of `STOP_ORDER`: first the door, once the requests inside have ended; last what the others still need

Children are killed by the kernel when this process dies (haywain/orphans.py), so there are no orphans. One `up` a data folder: held
by a lock on `{data}/up.lock`. Logs: `{data}/logs/<process>.log`, of a bounded size (haywain/logfiles.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import msgspec

from haywain import crash, demo_model, durable, lockfile, logfiles, orphans, replicas, settings
from haywain.drain import ADMIN_SOCKET, drain
from haywain.errors import SettingsError
from haywain.settings import Settings

__all__ = ["command"]

START_ORDER = ("files", "batches", "scheduler", "engine", "gateway", "envoy")
"""Kinds of processes; of some there are several."""
STOP_ORDER = ("envoy", "gateway", "batches", "scheduler", "engine", "files")
STOP_SECONDS = 10.0
DATA_FORMAT = 1
"""Version of the data folder's layout; a folder of a newer one is refused."""
_SETTINGS_EXIT = 78
_STEADY_SECONDS = 10.0
_STARTS_BEFORE_READY = 5
_WAITING_SECONDS = 5.0
_LAST_BYTES = 8_192
_LOGS_SECONDS = 1.0


def command(chosen: Settings) -> int:
    """Run the mesh until SIGINT or SIGTERM. Raises SettingsError, before anything is started, when it can't run."""
    replicas.check(chosen)
    with _data_folder(chosen.data):
        chosen = _with_model(chosen)
        _check_port(chosen)
        chosen.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        (chosen.data / "logs").mkdir(exist_ok=True)
        resolved = chosen.run_dir / "settings.toml"
        resolved.touch(0o600)  # it may hold a password
        resolved.chmod(0o600)
        resolved.write_text(settings.dump(chosen), "utf-8")
        try:
            return asyncio.run(_Mesh(chosen, resolved).run())
        finally:
            if not chosen.run_dir.is_relative_to(chosen.data):
                shutil.rmtree(chosen.run_dir, ignore_errors=True)


@contextlib.contextmanager
def _data_folder(data: Path) -> Iterator[None]:
    in_use = f"data folder {data} is in use by another haywain up; choose another with --data"
    try:
        durable.make_folder(data, 0o700)  # prompts and answers are in it
        with contextlib.ExitStack() as stack:
            stack.enter_context(lockfile.held(data / "up.lock", in_use))
            locked = stack.pop_all()
    except OSError as error:
        raise SettingsError(f"data folder {data} can't be written: {error.strerror}") from error
    with locked:
        _check_format(data / "format")
        yield


def _check_format(file: Path) -> None:
    if not file.exists():
        durable.replace(file, f"{DATA_FORMAT}\n".encode())
        return
    text = file.read_text("utf-8", "replace").strip()
    if not text.isdecimal() or int(text) > DATA_FORMAT:
        raise SettingsError(
            f"data folder {file.parent} was written by a newer Haywain: its format is {text[:20]!r}, "
            f"this program knows {DATA_FORMAT}; nothing was changed"
        )


def _with_model(chosen: Settings) -> Settings:
    """Choose the demo model where none is set; check that a GGUF is there."""
    if chosen.engine.backend != "llamacpp":
        return chosen
    llamacpp = chosen.engine.llamacpp
    path = Path(llamacpp.model_path) if llamacpp.model_path else demo_model.fetch()
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise SettingsError(f"model file {path} can't be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise SettingsError(f"model file {path} is not a GGUF: it begins with {magic!r}")
    replace = msgspec.structs.replace
    return replace(chosen, engine=replace(chosen.engine, llamacpp=replace(llamacpp, model_path=str(path.absolute()))))


def _check_port(chosen: Settings) -> None:
    if not 1 <= chosen.envoy.port <= 65_535:
        raise SettingsError(f"envoy.port is {chosen.envoy.port}, expected 1 to 65535")
    # Without SO_REUSEPORT, so that a second Envoy, which sets it, is seen as well.
    with socket.socket(socket.AF_INET6 if ":" in chosen.envoy.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((chosen.envoy.host, chosen.envoy.port))
        except OSError as error:
            raise SettingsError(f"can't listen on {_place(chosen)}: {error.strerror}; choose another with --port") from error


def _place(chosen: Settings) -> str:
    """Give host and port as a URL has them."""
    host = chosen.envoy.host
    return f"[{host}]:{chosen.envoy.port}" if ":" in host else f"{host}:{chosen.envoy.port}"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk, say: no reason to end
        print(f"haywain up: {text}", file=sys.stderr, flush=True)


class _GiveUp(Exception):
    """Why the mesh can't run."""


class _Mesh:
    def __init__(self, chosen: Settings, resolved: Path) -> None:
        self._settings = chosen
        self._resolved = resolved
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._ready = False

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        status = 0
        watching = [asyncio.create_task(self._watch(name)) for name in self._names(START_ORDER)]
        watching += [asyncio.create_task(self._announce()), asyncio.create_task(self._bound_logs())]
        stop = asyncio.create_task(self._stopping.wait())
        pending: set[asyncio.Task[object]] = {*watching, stop}
        while not self._stopping.is_set():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            failure = next((task.exception() for task in done if task.exception()), None)
            if failure is not None:
                _say(str(failure))
                status = 1
                break
        for task in (*watching, stop):
            task.cancel()
        await asyncio.gather(*watching, stop, return_exceptions=True)
        await self._stop()
        return status

    async def _watch(self, name: str) -> None:
        pause, starts = 0.1, 0
        while True:
            started = asyncio.get_running_loop().time()
            starts += 1
            code = await self._run_once(name)
            if code == _SETTINGS_EXIT:
                raise _GiveUp(self._last_line(name).removeprefix("haywain "))
            if not self._ready and starts >= _STARTS_BEFORE_READY:
                raise _GiveUp(f"{name} died {starts} times before it was ready; its last words: {self._last_line(name)}")
            steady = crash.armed() or asyncio.get_running_loop().time() - started > _STEADY_SECONDS
            pause = 0.1 if steady else min(pause * 2, 5.0)
            _say(f"{name} ended ({_how(code)}); starting it again")
            await asyncio.sleep(pause)

    async def _run_once(self, name: str) -> int:
        # Nothing here forks without exec, and gRPC's own care for forks writes lines into the logs.
        environment = os.environ | {orphans.PARENT_VARIABLE: str(os.getpid()), "GRPC_ENABLE_FORK_SUPPORT": "0"}
        environment[logfiles.VARIABLE] = str(self._log(name))
        with self._log(name).open("ab") as logfile:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "haywain", *_words(name), "--resolved", str(self._resolved)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=logfile,
                stderr=logfile,
                env=environment,
                start_new_session=True,
            )
        self._processes[name] = process
        return await process.wait()

    def _log(self, name: str) -> Path:
        return self._settings.data / "logs" / f"{name}.log"

    async def _bound_logs(self) -> None:
        terms = self._settings.log
        while True:
            await asyncio.sleep(_LOGS_SECONDS)
            for name in self._names(START_ORDER) if terms.max_bytes > 0 else ():
                with contextlib.suppress(OSError):
                    if logfiles.is_full(self._log(name), terms.max_bytes) and self._can_be_told(name):
                        logfiles.rotate(self._log(name), terms.keep)
                        self._tell(name)

    def _can_be_told(self, name: str) -> bool:
        """Others than Envoy notice by themselves; an Envoy that has just started, however slowly, would die of the signal."""
        return name != "envoy" or (name in self._processes and logfiles.listens(self._processes[name].pid))

    def _tell(self, name: str) -> None:
        if name == "envoy":
            with contextlib.suppress(ProcessLookupError):
                self._processes[name].send_signal(signal.SIGUSR1)

    def _names(self, kinds: Iterable[str]) -> list[str]:
        return [name for kind in kinds for name in (self._settings.replicas(kind) if kind != "envoy" else [kind])]

    async def _announce(self) -> None:
        url = f"http://{_place(self._settings)}"
        clock = asyncio.get_running_loop().time
        say_at = clock() + _WAITING_SECONDS
        async with httpx.AsyncClient(base_url=url, timeout=2.0, trust_env=False) as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get("/health")).status_code == 200:
                        break
                if clock() >= say_at:
                    say_at = clock() + _WAITING_SECONDS
                    if ".waiting" in (line := self._last_line("engine")):
                        say_at = clock() + 6 * _WAITING_SECONDS
                        _say(f"the engine waits for what it wraps: {line}")
                await asyncio.sleep(0.05)
        self._ready = True
        print(f"ready {url}", flush=True)

    async def _stop(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._kill_all)
        seconds = self._settings.envoy.drain_seconds
        if not await drain(self._settings.run_dir / ADMIN_SOCKET, seconds):
            _say(f"requests still ran after {seconds:g} s; cutting them off")
        for name in self._names(STOP_ORDER):
            process = self._processes.get(name)
            if process is not None and process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), STOP_SECONDS)
                except TimeoutError:
                    _say(f"{name} did not stop within {STOP_SECONDS:g} s; killing it")
                    process.kill()
                    await process.wait()

    def _kill_all(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()

    def _last_line(self, name: str) -> str:
        return _last_line(self._log(name)) or f"{name} said nothing"


def _last_line(file: Path) -> str:
    try:
        with file.open("rb") as opened:  # of a log that is months old, only the end
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = opened.read(_LAST_BYTES).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return ""
    return next((line for line in reversed(lines) if line.strip()), "")


def _words(name: str) -> list[str]:
    kind, _, number = name.partition("-")
    return [kind, "--replica", number] if number else [kind]


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

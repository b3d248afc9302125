"""The fixture `triton`: NVIDIA's own Triton server, one for the whole session, with the models of tests/triton_models.

The server comes out of the PyPI wheel nvidia-pytriton, unpacked without its dependencies into the cache folder of the demo model.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mesh import free_port
from triton_models import repository

from haywain import demo_model

__all__ = ["TEMPLATE", "TritonServer", "own_triton", "triton"]

TEMPLATE = "{% for message in messages %}<{{ message.role }}> {{ message.content }} {% endfor %}<assistant>"
"""a chat template whose control texts are words for the mocks"""

_PACKAGE = "nvidia-pytriton==0.7.0"
_NUMPY = "numpy==1.26.4"
"""for the Python inside the server: its stub was built for NumPy 1 and reads arrays of NumPy 2 wrong"""
_SHM = Path("/dev/shm")  # noqa: S108 - where the Python backend keeps its regions
_START_SECONDS = 60.0


def _impossible() -> str:
    """Tell why the server can't run on this machine; empty when it can."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    glibc = tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2] if part.isdecimal())
    if platform.machine() != "x86_64" or glibc < (2, 35):
        return f"{_PACKAGE} is for x86-64 with glibc 2.35 or newer"
    if sys.version_info >= (3, 13):
        return f"{_NUMPY}, which {_PACKAGE} needs, has no wheel for Python {version}"
    library = f"libpython{version}.so.1.0"
    try:
        ctypes.CDLL(library)
    except OSError:
        if not (Path(str(sysconfig.get_config_var("LIBDIR"))) / library).exists():
            return f"Triton's Python backend needs {library}: apt-get install libpython{version}"
    return ""


def _unpacked() -> Path:
    """Fetch the wheel unless it was, and unpack the server with the stub for this Python; its folder."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = demo_model.cached().parent / f"tritonserver-pytriton-0.7.0-py{version}"
    if home.exists():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as text:
        folder = Path(text)
        whole = folder / "whole"
        _pip("download", "--dest", text, _PACKAGE)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(whole)
        _pip("install", "--target", str(whole / "numpy"), _NUMPY)
        server = whole / "pytriton" / "tritonserver"
        stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
        assert stub.exists(), f"{_PACKAGE} has no Python backend for Python {version}"
        shutil.copy(stub, server / "backends" / "python")
        shutil.rmtree(server / "python_backend_stubs")
        for program in (server / "bin" / "tritonserver", server / "backends" / "python" / stub.name):
            program.chmod(0o755)
        try:
            whole.rename(home)
        except OSError:
            assert home.exists()  # another session was faster
    return home


def _pip(command: str, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", command, "--quiet", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"pip {command} {arguments[-1]}: {done.stderr[-2000:]}"


def _environment(folder: Path, home: Path) -> Path:
    """Make an environment for the Python inside the server: NumPy 1, then what runs the tests; its folder of programs.

    The server ignores PYTHONPATH, but takes its packages from beside the `python` that comes first on the search path.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "more.pth").write_text(f"{home / 'numpy'}\n{sysconfig.get_path('purelib')}\n")
    return folder / "bin"


class TritonServer:
    """A running tritonserver; `kill` and `start` are for tests of outages."""

    def __init__(self, folder: Path, *more: str, parameters: dict[str, str] | None = None) -> None:
        """Write the repository; `more` are arguments of the server."""
        self.folder = folder
        self.log = folder / "requests.jsonl"
        self.log.touch()
        self.port, self.http_port = free_port(), free_port()
        self.url = f"127.0.0.1:{self.port}"
        assert not (reason := _impossible()), reason
        self._home = _unpacked()
        self._programs = _environment(folder / "env", self._home)
        self.more = more
        self._regions: set[Path] = set()
        self.process: subprocess.Popen[bytes] | None = None
        repository.write(folder / "models", self.log, demo_model.fetch(quiet=True), parameters)

    def start(self, *models: str) -> None:
        """Start with these models loaded, and wait until it is ready."""
        self._regions = set(_SHM.glob("triton_python_backend_shm_region_*"))
        home = self._home
        server = home / "pytriton" / "tritonserver"
        libraries = [str(home / "nvidia_pytriton.libs"), str(sysconfig.get_config_var("LIBDIR"))]
        command = [
            *(str(server / "bin" / "tritonserver"), f"--model-repository={self.folder / 'models'}"),
            *(f"--backend-directory={server / 'backends'}", "--model-control-mode=explicit"),
            *(f"--load-model={model}" for model in models),
            *("--grpc-address=127.0.0.1", f"--grpc-port={self.port}", "--http-address=127.0.0.1", f"--http-port={self.http_port}"),
            *("--allow-metrics=false", "--exit-timeout-secs=2", *self.more),
        ]
        environment = os.environ | {
            "PATH": f"{self._programs}:{os.environ.get('PATH', '')}",
            "LD_LIBRARY_PATH": ":".join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with (self.folder / "server.log").open("ab") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
        give_up = time.monotonic() + _START_SECONDS
        while not self._ready():
            assert self.process.poll() is None, f"tritonserver ended: {self.words()}"
            assert time.monotonic() < give_up, f"tritonserver isn't ready after {_START_SECONDS:g} s: {self.words()}"
            time.sleep(0.02)

    def _ready(self) -> bool:
        try:
            return self._http("GET", "health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def _http(self, method: str, path: str, body: Any = None) -> httpx.Response:
        url = f"http://127.0.0.1:{self.http_port}/v2/{path}"
        return httpx.request(method, url, json=body, timeout=60.0, trust_env=False)

    def load(self, model: str) -> None:
        """Load a model."""
        response = self._http("POST", f"repository/models/{model}/load", {})
        assert response.status_code == 200, (response.text, self.words())

    def unload(self, model: str) -> None:
        """Unload a model."""
        response = self._http("POST", f"repository/models/{model}/unload", {})
        assert response.status_code == 200, response.text

    def kill(self) -> None:
        """kill -9 the server and its models, and remove what they left."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._sweep()

    def stop(self) -> None:
        """Stop it: first in order, then what is left of it."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._sweep()

    def _sweep(self) -> None:
        for region in set(_SHM.glob("triton_python_backend_shm_region_*")) - self._regions:
            if not _in_use(region):
                region.unlink(missing_ok=True)

    def words(self) -> str:
        """The end of the server's log, for a failing assertion."""
        return (self.folder / "server.log").read_text("utf-8", "replace")[-3000:]

    def requests(self, containing: str) -> list[dict[str, Any]]:
        """What mocks were asked whose prompt holds a text, and how each request ended."""
        lines = [json.loads(line) for line in self.log.read_text("utf-8").splitlines() if line.endswith("}")]
        return [line for line in lines if containing in line["prompt"]]


def _in_use(region: Path) -> bool:
    """Tell whether any process has a shared memory region mapped: another server's of this machine."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(region) in maps.read_text("utf-8", "replace"):
                return True
        except OSError:
            continue
    return False


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """Give the running server with every mock loaded."""
    server = TritonServer(tmp_path_factory.mktemp("triton"))
    try:
        server.start(*repository.MODELS)
        yield server
    finally:
        server.stop()


@pytest.fixture
def own_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """Give a server of the test's own, not started yet: for outages."""
    server = TritonServer(tmp_path_factory.mktemp("triton"))
    try:
        yield server
    finally:
        server.kill()

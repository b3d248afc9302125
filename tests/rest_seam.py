"""Envoy in front of a real gateway in front of real and scripted services: what the REST contract tests run against.

The gRPC servers live on a loop of their own in a thread, so that tests stay plain synchronous clients and can stop and start a
service; Envoy is the real process.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import structlog
from lease_peer import leases_of
from mesh import free_port, until
from rest_peers import MODELS, ScriptedScheduler

from gateway import envoy
from gateway import service as gateway
from haywain import rpc
from haywain.blobs import DirectoryBlobStore
from haywain.scheduler.v1 import scheduler_pb2_grpc
from haywain.settings import BatchesSettings, EnvoySettings, FilesSettings, GatewaySettings, Settings
from services.batches import service as batches_service
from services.batches.intake import MODELS_SECONDS
from services.files import service as files

__all__ = ["MAX_BODY_BYTES", "MAX_FILE_BYTES", "MAX_PART_BODY_BYTES", "MAX_PART_BYTES", "MAX_UPLOAD_BYTES", "RestMesh"]

MAX_FILE_BYTES, MAX_UPLOAD_BYTES, MAX_BODY_BYTES = 3_000_000, 4_000_000, 1_500_000
"""small limits, so that going over them is quick; bodies still larger than the buffers of a connection"""
MAX_PART_BYTES, MAX_PART_BODY_BYTES, MAX_WHOLE_BYTES = 2_000_000, 2_200_000, 5_000_000
KEEPALIVE_SECONDS = 1.0
DEFAULTS = BatchesSettings()

Serve = Callable[[Settings, asyncio.Event], Awaitable[None]]


class RestMesh:
    """The whole of it. Use as a context manager."""

    def __init__(self, batches: BatchesSettings = DEFAULTS) -> None:
        """Choose folder and port."""
        self.data = Path(tempfile.mkdtemp(prefix="hw", dir="/tmp"))
        self.settings = Settings(
            data_dir=str(self.data),
            envoy=EnvoySettings(
                port=free_port(),
                max_upload_bytes=MAX_UPLOAD_BYTES,
                max_part_bytes=MAX_PART_BODY_BYTES,
                max_body_bytes=MAX_BODY_BYTES,
            ),
            files=FilesSettings(max_file_bytes=MAX_FILE_BYTES, max_part_bytes=MAX_PART_BYTES, max_upload_bytes=MAX_WHOLE_BYTES),
            batches=batches,
            gateway=GatewaySettings(event_keepalive_seconds=KEEPALIVE_SECONDS),
        )
        self.address = f"127.0.0.1:{self.settings.envoy.port}"
        self.client = httpx.Client(base_url=f"http://{self.address}", timeout=30.0, trust_env=False)
        self.scheduler: ScriptedScheduler
        self._serves: dict[str, Serve] = {
            "files": files.serve, "batches": batches_service.serve, "scheduler": self._serve_scheduler, "gateway": gateway.serve
        }  # fmt: skip
        self._running: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rest-mesh")
        self._envoy: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RestMesh:
        """Start everything, wait until it answers."""
        self._log = (self.data / "services.log").open("w")
        # Not log.configure: it would keep a standard error that pytest replaces. The default draws every local of a traceback.
        self._log_before = structlog.get_config()
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
            logger_factory=structlog.PrintLoggerFactory(self._log),
        )
        self._thread.start()
        try:
            for name in self._serves:
                self.start(name)
            with (self.data / "envoy.log").open("wb") as output:
                self._envoy = subprocess.Popen(envoy.command(self.settings), stderr=output)
            until("Envoy answers", self._answers)
        except BaseException:  # the thread would keep the test run from ending
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything, remove the data."""
        if self._envoy is not None:
            self._envoy.terminate()
            self._envoy.wait(10)
        for name in reversed([*self._running]):
            self.stop(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self.client.close()
        structlog.configure(**self._log_before)
        self._log.close()
        shutil.rmtree(self.data)

    @contextlib.contextmanager
    def without_engines(self) -> Iterator[None]:
        """Let no model be served; what was heard of them before is forgotten when the block begins."""
        models, self.scheduler.models = self.scheduler.models, []
        forgotten = time.monotonic() + 2 * MODELS_SECONDS
        try:
            until("the models are forgotten", lambda: time.monotonic() > forgotten)
            yield
        finally:
            self.scheduler.models = models

    def start(self, name: str) -> None:
        """Start a service."""

        async def start() -> tuple[asyncio.Event, asyncio.Task[None]]:
            stopping = asyncio.Event()
            return stopping, asyncio.ensure_future(self._serves[name](self.settings, stopping))

        self._running[name] = self.on_loop(start())
        path = self.settings.run_dir / f"{name}.sock"
        until(f"{name} listens", lambda: path.exists() or self._running[name][1].done())

    def stop(self, name: str) -> None:
        """Stop a service, as SIGTERM does."""
        stopping, task = self._running.pop(name)

        async def stop() -> None:
            stopping.set()
            await asyncio.wait_for(task, 15)

        self.on_loop(stop())
        (self.settings.run_dir / f"{name}.sock").unlink(missing_ok=True)

    def on_loop(self, work: Any) -> Any:
        """Run a coroutine on the servers' loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _serve_scheduler(self, settings: Settings, stopping: asyncio.Event) -> None:
        async with leases_of(MODELS, self.data) as leases:
            self.scheduler = ScriptedScheduler(DirectoryBlobStore(self.data / "blobs"), leases)
            add = scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server
            service = (self.scheduler, add, "haywain.scheduler.v1.SchedulerService")
            async with rpc.serving(settings.address("scheduler"), [service], grace_seconds=0.2):
                await stopping.wait()

    def _answers(self) -> bool:
        assert self._envoy is not None
        assert self._envoy.poll() is None, (self.data / "envoy.log").read_text()
        try:
            return self.client.get("/health").status_code == 200
        except httpx.TransportError:
            return False

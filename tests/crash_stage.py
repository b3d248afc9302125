"""Where the kill matrix is played: a mesh whose processes die when they are told to, and what all its scenes have in common."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

from crash_cases import Case
from mesh import Mesh, until

__all__ = ["Scene", "Stage"]

TERMS = (
    "--engine", "echo", "--set", "engine.echo.slots=16", "--set", "engine.echo.ms_per_row=4",
    "--set", "engine.echo.fail_containing=please fail", "--set", "engine.echo.hang_containing=stand still",
    "--set", "batches.completion_windows=any", "--set", "scheduler.checkpoint_seconds=0.1",
)  # fmt: skip
LONG_AGO = 86_400.0 * 30


class Stage:
    """A mesh whose processes die when told to."""

    def __init__(self, haywain: Path, url: str, *more: str) -> None:
        """Start it, on SQLite without a `url`, with `more` words on its command line."""
        self.url = url
        self.one_journal = not more
        """A row is recorded as soon as its line is in the batch's journal."""
        self.mesh = Mesh(haywain)
        self.orders = self.mesh.data / "orders"
        self.runs = self.mesh.data / "runs"
        self.runs.touch()
        self.mesh.take_orders(self.orders)
        self.mesh.start(*TERMS, "--set", f"engine.echo.run_log={self.runs}", *(("--set", f"db.url={url}") if url else ()), *more)
        self.blobs = self.mesh.data / "blobs"

    def sql(self, service: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in a service's database."""
        return self.mesh.sql(service, statement, self.url)

    def blob(self, key: str) -> Path:
        """Tell where a blob is."""
        return self.blobs / hashlib.sha256(key.encode()).hexdigest()[:2] / key

    @staticmethod
    def age(path: Path) -> None:
        """Make a file old."""
        os.utime(path, (0, time.time() - LONG_AGO))


class Scene:
    """What is done while a process dies. Each scene is a method; it returns when all has come to its end."""

    def __init__(self, stage: Stage, case: Case) -> None:
        """Arm the point."""
        self.stage, self.case, self.mesh = stage, case, stage.mesh
        self.order = stage.orders / case.point
        self.name = case.name

    def arm(self, also: str = "") -> None:
        """Order the death, or one at another point, at its first passing."""
        scratch = self.stage.orders.with_suffix(".new")
        scratch.write_text("1" if also else str(self.case.passing))
        scratch.replace(self.stage.orders / also if also else self.order)

    def died(self) -> None:
        """Wait until the process has died."""
        until(f"something dies at {self.case.point}", lambda: not self.order.exists(), 20)

    def files(self) -> list[dict[str, Any]]:
        """List all files."""
        found: list[dict[str, Any]] = []
        while True:
            after = {"after": found[-1]["id"]} if found else {}
            page = self.mesh.ask("GET", "/v1/files", params={"limit": "10000"} | after).json()
            found += page["data"]
            if not page["has_more"]:
                return found

    def content(self, file_id: str) -> bytes | int:
        """Download a file; a status when there is none."""
        answer = self.mesh.ask("GET", f"/v1/files/{file_id}/content")
        return answer.content if answer.status_code == 200 else answer.status_code

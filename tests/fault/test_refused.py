"""What was answered 5xx did not happen, whoever died with the answer in its hands; what was answered 200 did, once."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from mesh import Mesh, chat_row, jsonl, until

from haywain.batches.v1 import batches_pb2, batches_pb2_grpc

KILLS = 4


def create(mesh: Mesh, file_id: str, name: str) -> httpx.Response | None:
    """Create a batch by that name, with a connection of its own; None when no answer came."""
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h", "metadata": {"name": name}}
    try:
        return httpx.post(f"http://127.0.0.1:{mesh.port}/v1/batches", json=body, timeout=90, trust_env=False)
    except httpx.TransportError:
        return None


def listed(mesh: Mesh) -> list[dict[str, Any]]:
    """Every batch there is."""
    batches: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": 100}
    while True:
        page = mesh.client.get("/v1/batches", params=query).raise_for_status().json()
        batches += page["data"]
        if not page["has_more"]:
            return batches
        query["after"] = page["last_id"]


def assert_nothing_ran_but(mesh: Mesh, batches: list[dict[str, Any]]) -> None:
    """Whatever has result lines is one of these batches."""
    ran = {path.stem for path in (mesh.data / "incremental").glob("*.jsonl")}
    assert ran <= {batch["id"] for batch in batches}


def intents(mesh: Mesh) -> int:
    """Count the creations that are under way."""
    with closing(sqlite3.connect(mesh.data / "batches.db")) as database:
        return int(database.execute("select count(*) from intents").fetchone()[0])


@contextmanager
def paused(mesh: Mesh, name: str) -> Iterator[int]:
    """Let a process stand still."""
    pid = mesh.pid(name)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("names", [("gateway",), ("batches",), ("gateway", "batches")], ids="+".join)
def test_creations_during_kills(haywain: Path, names: tuple[str, ...]) -> None:
    """Creations without a key, while those who carry their answers are killed: nothing of a 5xx is there, a 200 is there once."""
    with Mesh(haywain).start("--engine", "echo") as mesh:
        file_id = mesh.upload(jsonl([chat_row("one")]))["id"]
        answers: dict[str, int] = {}
        over = threading.Event()

        def creating(thread: int) -> None:
            while not over.is_set():
                name = f"{thread}-{len(answers)}"
                answer = create(mesh, file_id, name)
                answers[name] = 0 if answer is None else answer.status_code

        def good() -> int:
            return sum(status == 200 for status in [*answers.values()])

        with ThreadPoolExecutor(6) as pool:
            threads = [pool.submit(creating, number) for number in range(6)]
            for _ in range(KILLS):
                enough = good() + 8
                until("batches are created", lambda enough=enough: good() > enough)
                mesh.kill(*names)
            over.set()
            for thread in threads:
                thread.result()
        until("all is back", lambda: mesh.client.get("/v1/batches").status_code == 200)
        batches = listed(mesh)
        there = Counter(batch["metadata"]["name"] for batch in batches)
        statuses = Counter(answers.values())
        assert set(statuses) <= {0, 200, 503}, statuses
        assert not [name for name, count in there.items() if count > 1]
        assert not [name for name in there if answers[name] == 503], statuses
        assert not [name for name, status in answers.items() if status == 200 and name not in there]
        for batch in batches:
            assert mesh.wait(batch["id"])["status"] == "completed"
        assert_nothing_ran_but(mesh, batches)


def test_the_gateway_dies_with_the_answer(haywain: Path) -> None:
    """The batch is made, and the gateway dies before it can say so: 503, and there is no batch. A good answer begins it."""
    with Mesh(haywain).start("--engine", "echo") as mesh, ThreadPoolExecutor(1) as pool:
        file_id = mesh.upload(jsonl([chat_row("one")]))["id"]
        channel = grpc.insecure_channel(f"127.0.0.1:{mesh.port}")
        stub = batches_pb2_grpc.BatchesServiceStub(channel)  # past the gateway

        def names() -> list[str]:
            return [batch.metadata["name"] for batch in stub.ListBatches(batches_pb2.ListBatchesRequest()).batches]

        with paused(mesh, "files"):
            answer = pool.submit(create, mesh, file_id, "lost")
            until("batches has begun with it", lambda: intents(mesh))
            gateway = mesh.pid("gateway")
            os.kill(gateway, signal.SIGSTOP)
        until("it is made", lambda: names() == ["lost"])
        os.kill(gateway, signal.SIGKILL)
        lost = answer.result()
        assert lost is not None
        assert (lost.status_code, lost.json()["error"]["code"]) == (503, "service_unavailable")
        assert names() == []
        assert "batch.revoked" in (mesh.data / "logs" / "batches.log").read_text()
        until("the gateway is back", lambda: mesh.client.get("/v1/batches").status_code == 200)
        kept = create(mesh, file_id, "kept")
        assert kept is not None
        assert mesh.wait(kept.json()["id"], timeout=60)["status"] == "completed"
        assert names() == ["kept"]
        assert_nothing_ran_but(mesh, [kept.json()])
        channel.close()


def test_nobody_can_say_what_became_of_it(haywain: Path) -> None:
    """Batches stands still with the batch, and the gateway dies: the client is told that it isn't known, and it never runs."""
    patience = ("--set", "envoy.creation_patience_seconds=1")
    with Mesh(haywain).start("--engine", "echo", *patience) as mesh, ThreadPoolExecutor(1) as pool:
        file_id = mesh.upload(jsonl([chat_row("one")]))["id"]
        with paused(mesh, "files"):
            answer = pool.submit(create, mesh, file_id, "lost")
            until("batches has begun with it", lambda: intents(mesh))
            gateway = mesh.pid("gateway")
            os.kill(gateway, signal.SIGSTOP)
        made = "select batch_id from batches where held_until > 0"
        until("it is made", lambda: mesh.sql("batches", made))
        with paused(mesh, "batches"):
            os.kill(gateway, signal.SIGKILL)
            unknown = answer.result()
        assert unknown is not None
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "outcome_unknown")
        until("it is unmade", lambda: not mesh.sql("batches", "select batch_id from batches"))
        assert_nothing_ran_but(mesh, [])

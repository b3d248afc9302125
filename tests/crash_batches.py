"""Scenes of batches for the kill matrix. Each returns when its batch has come to its end, and the law was asserted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import pytest
from conservation import assert_conserved
from crash_stage import Scene
from mesh import chat_row, jsonl, until

from haywain.batches.v1 import batches_pb2, batches_pb2_grpc

__all__ = ["BatchScenes"]

ROWS, MANY = 120, 1_500


class BatchScenes(Scene):
    """Each public method named in crash_cases.py is a scene."""

    def rows(self, count: int, *, hang: bool = False) -> list[dict[str, Any]]:
        """Make rows, of which some fail."""
        texts = ["please fail" if n % 10 == 3 else "stand still" if hang and n % 10 == 7 else "hello" for n in range(count)]
        return [chat_row(f"{self.name}-{n}", f"{text} {self.name} {n}") for n, text in enumerate(texts)]

    def created(self, **body: Any) -> dict[str, Any]:
        """Create under a key."""
        answer = self.mesh.ask("POST", "/v1/batches", json=body, headers={"idempotency-key": self.name})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def create(self, rows: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
        """Upload and create."""
        form = {"data": {"purpose": "batch"}, "files": {"file": ("input.jsonl", jsonl(rows))}}
        file = self.mesh.ask("POST", "/v1/files", **form).json()["id"]
        return self.created(**{"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"} | body)

    def finish(self, batch_id: str, rows: list[dict[str, Any]], status: str = "completed") -> dict[str, int]:
        """Assert the law, and that no row ran again that was recorded when the process died; the error lines' codes."""
        self.died()
        kept, ran = self.recorded(batch_id), self.stage.runs.stat().st_size
        batch = self.mesh.wait(batch_id)
        assert batch["status"] == status
        self.mesh.ask("GET", "/v1/files")  # what died after the batch's end may still be starting
        _, failed = assert_conserved(self.mesh.client, batch, [row["custom_id"] for row in rows])
        hashes = [hashlib.sha256(json.dumps(row.get("body")).encode()).hexdigest()[:16].encode() for row in rows]
        again = {line[:16] for line in self.stage.runs.read_bytes()[ran:].splitlines()}
        assert not {hashes[row] for row in kept} & again, "a recorded row ran again"
        codes = [line["error"]["code"] for line in failed]
        return {code: codes.count(code) for code in codes}

    def recorded(self, batch_id: str) -> set[int]:
        """Read which rows are recorded: those with a whole line in the journal, or else those that are told to be."""
        journal = self.mesh.data / "incremental" / f"{batch_id}.jsonl"
        if not self.stage.one_journal:
            lines = self.mesh.ask("GET", f"/v1/batches/{batch_id}/results").content.splitlines(keepends=True)
        else:
            lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
        return {int(line[: line.index(b'",')].rpartition(b"_")[2], 16) for line in lines if line.endswith(b"\n")}

    def batch(self) -> None:
        """A batch from upload to the end."""
        rows = self.rows(ROWS)
        self.arm()
        assert self.finish(self.create(rows)["id"], rows) == {"engine_error": ROWS // 10}

    def large(self) -> None:
        """A batch that is validated by a process of its own, in shards, with several checkpoints."""
        rows = self.rows(MANY)
        self.arm()
        assert self.finish(self.create(rows)["id"], rows) == {"engine_error": MANY // 10}

    def recover(self) -> None:
        """A scheduler that was killed in mid-batch, and is killed again while it finds the batch."""
        rows = self.rows(MANY)
        batch_id = self.create(rows)["id"]
        until("some rows are recorded", lambda: len(self.recorded(batch_id)) > MANY // 20)
        self.arm()
        self.mesh.kill("scheduler")
        assert self.finish(batch_id, rows) == {"engine_error": MANY // 10}

    def inline(self) -> None:
        """A batch that brings its records along, one of them rejected."""
        rows = [*self.rows(ROWS), {"custom_id": f"{self.name}-bad"}]
        self.arm()
        codes = self.finish(self.created(requests=rows, invalid_rows="reject")["id"], rows)
        assert codes.pop("engine_error") == ROWS // 10
        assert sum(codes.values()) == 1

    def refused(self) -> None:
        """A creation that comes to nothing leaves nothing."""
        files = len(self.files())
        self.arm()
        body = {"requests": [{"custom_id": f"bad{number}"} for number in range(5)]}
        answer = self.mesh.ask("POST", "/v1/batches", json=body, headers={"idempotency-key": self.name})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_valid_records")
        self.died()
        assert len(self.files()) == files

    def unmade(self) -> None:
        """A creation whose answer is lost with the gateway, which is answered 5xx and must never be: neither are its files."""
        files = {file["id"] for file in self.files()}
        self.arm("gateway:created")
        self.arm()
        body = {"requests": [*self.rows(5), {"custom_id": "bad"}], "invalid_rows": "reject", "metadata": {"name": self.name}}
        answer = self.mesh.client.post("/v1/batches", json=body, timeout=90)  # Envoy waits up to 60 s for batches
        assert answer.status_code in (502, 503, 504), answer.text
        assert not (self.stage.orders / "gateway:created").exists()
        self.died()
        assert self.name not in [
            (batch["metadata"] or {}).get("name") for batch in self.mesh.ask("GET", "/v1/batches").json()["data"]
        ]
        until("its files are gone", lambda: {file["id"] for file in self.files()} == files)
        until("its intent is over", lambda: not self.stage.sql("batches", "select batch_id from intents where created_at = 0"))

    def together(self) -> None:
        """Creations that share a call: those that were answered well have a batch each, and those that weren't have none."""
        rows, count = self.rows(3), 12
        form = {"data": {"purpose": "batch"}, "files": {"file": ("input.jsonl", jsonl(rows))}}
        body = {"input_file_id": self.mesh.ask("POST", "/v1/files", **form).json()["id"], "endpoint": "/v1/chat/completions"}
        names = [f"{self.name}-{number}" for number in range(count)]
        self.arm()

        def create(name: str) -> httpx.Response:
            told = body | {"completion_window": "24h", "metadata": {"name": name}}
            return self.mesh.client.post("/v1/batches", json=told, timeout=90)

        with ThreadPoolExecutor(count) as pool:
            answers = list(pool.map(create, names))
        self.died()
        assert {answer.status_code for answer in answers} <= {200, 502, 503, 504}
        made = {answer.json()["id"]: name for name, answer in zip(names, answers, strict=True) if answer.status_code == 200}
        listed = self.mesh.ask("GET", "/v1/batches?limit=100").json()["data"]
        assert {
            batch["id"]: batch["metadata"]["name"] for batch in listed if (batch["metadata"] or {}).get("name") in names
        } == made
        for batch_id in made:
            assert_conserved(self.mesh.client, self.mesh.wait(batch_id), [row["custom_id"] for row in rows])

    def answered_late(self) -> None:
        """A batch whose good answer isn't told to the service in the life that made it.

        This plays the gateway: the real one gives up after three seconds, and has the batch unmade, where a restart takes longer.
        """
        rows = self.rows(ROWS)
        form = {"data": {"purpose": "batch"}, "files": {"file": ("input.jsonl", jsonl(rows))}}
        wanted = batches_pb2.CreateBatchRequest(
            request_id=f"create_{self.name}", held=True, tenant="default", completion_window="24h",
            endpoint="/v1/chat/completions", input_file_id=self.mesh.ask("POST", "/v1/files", **form).json()["id"],
        )  # fmt: skip
        self.arm("batches:created")
        self.arm()
        with grpc.insecure_channel(f"unix:{self.mesh.data}/run/batches.sock") as channel:
            service = batches_pb2_grpc.BatchesServiceStub(channel)
            with pytest.raises(grpc.RpcError):
                service.CreateBatch(wanted, wait_for_ready=True, timeout=60)

            def again() -> str:
                with contextlib.suppress(grpc.RpcError):  # a call on a connection that is being lost is lost with it
                    return str(service.CreateBatch(wanted, wait_for_ready=True, timeout=60).batch.batch_id)
                return ""

            batch_id = str(until("it is created again", again))
            told = batches_pb2.AnswerCreationRequest(request_id=wanted.request_id, tenant=wanted.tenant)
            with pytest.raises(grpc.RpcError):
                service.AnswerCreation(told, wait_for_ready=True, timeout=60)
        assert self.finish(batch_id, rows) == {"engine_error": ROWS // 10}

    def cancel(self) -> None:
        """A batch that is cancelled in mid-run: its rows that stand still didn't run."""
        rows = self.rows(ROWS, hang=True)
        batch_id = self.create(rows)["id"]
        until("some rows are recorded", lambda: len(self.recorded(batch_id)) > ROWS // 10)
        self.arm()
        answer = self.mesh.ask("POST", f"/v1/batches/{batch_id}/cancel")
        assert answer.json()["status"] in ("cancelling", "cancelled"), answer.text
        assert self.finish(batch_id, rows, "cancelled")["batch_cancelled"] >= ROWS // 10

    def cancel_early(self) -> None:
        """A batch that is cancelled before the scheduler has heard of it: each row gets its error line."""
        rows = self.rows(ROWS, hang=True)
        scheduler = self.mesh.pid("scheduler")
        os.kill(scheduler, signal.SIGSTOP)
        batch_id = self.create(rows)["id"]
        assert self.mesh.ask("POST", f"/v1/batches/{batch_id}/cancel").json()["status"] == "cancelling"
        self.arm()
        os.kill(scheduler, signal.SIGCONT)
        assert self.finish(batch_id, rows, "cancelled")["batch_cancelled"] >= ROWS // 10

    def leased(self) -> None:
        """A batch that is handed a lease of its model, without which it would wait: one lease is granted, and ends with it."""
        rows = self.rows(ROWS)
        self.arm()
        wish = {"json": {"model": "echo", "ttl_seconds": 600}, "headers": {"idempotency-key": self.name}}
        lease_id = self.mesh.ask("POST", "/v1/leases", **wish).json()["id"]
        batch_id = self.create(rows)["id"]
        assert self.mesh.ask("POST", f"/v1/batches/{batch_id}/lease", json={"lease_id": lease_id}).json()["id"] == batch_id
        self.finish(batch_id, rows)
        lease = self.mesh.ask("GET", f"/v1/leases/{lease_id}").json()
        assert (lease["status"], lease["batch_id"]) == ("released", batch_id)

    def expire(self) -> None:
        """A batch whose window ends in mid-run."""
        rows = self.rows(ROWS, hang=True)
        self.arm()
        batch = self.create(rows, completion_window="1s")
        assert self.finish(batch["id"], rows, "expired")["batch_expired"] >= ROWS // 10

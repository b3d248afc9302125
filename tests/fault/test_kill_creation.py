"""kill -9 while batches are created: a key makes one batch, an answer that came is true, what came to nothing leaves nothing."""

from __future__ import annotations

import concurrent.futures
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, until

ROUNDS = 4
BODY = {"requests": [*(chat_row(f"c{number}") for number in range(20)), {"custom_id": "bad"}], "invalid_rows": "reject"}
IDS = [*(f"c{number}" for number in range(20)), "bad"]


def create(mesh: Mesh, key: str, body: dict[str, Any]) -> httpx.Response | None:
    """Create under a key; None when the answer was lost."""
    try:
        answer = mesh.client.post("/v1/batches", json=body, headers={"idempotency-key": key})
    except httpx.TransportError:
        return None
    return answer if answer.status_code < 500 else None


@pytest.mark.parametrize("name", ["batches", "files", "gateway"])
def test_killed_while_creating(haywain: Path, name: str) -> None:
    """Whatever is killed whenever: repeated under its key until it is answered, a creation makes one batch with its files."""
    with Mesh(haywain).start("--engine", "echo") as mesh, concurrent.futures.ThreadPoolExecutor(1) as pool:
        made = []
        for number in range(ROUNDS):
            creating = pool.submit(create, mesh, f"key-{number}", BODY)
            time.sleep(0.006 * number)
            mesh.kill(name)
            first = creating.result()

            def answered(number: int = number) -> httpx.Response | None:
                answer = create(mesh, f"key-{number}", BODY)
                return answer if answer is not None and answer.status_code == 200 else None

            again = until("it is created", answered)
            if first is not None and first.status_code == 200:
                assert again.content == first.content
            made.append(again.json())
        until("files is back", lambda: mesh.client.get("/v1/files").status_code == 200)
        listed = mesh.client.get("/v1/batches?limit=100").json()["data"]
        assert {batch["id"] for batch in listed} == {batch["id"] for batch in made}
        for batch in made:
            done = mesh.wait(batch["id"])
            assert_conserved(mesh.client, done, IDS)
            assert mesh.client.get(f"/v1/files/{batch['input_file_id']}/content").content.count(b"\n") == 21
            assert mesh.client.get(f"/v1/files/{batch['rejected_records_file_id']}/content").content.count(b"\n") == 1
        files = mesh.client.get("/v1/files").json()["data"]
        assert len(files) == 4 * ROUNDS  # input, rejections, output, errors


def test_killed_before_a_refusal(haywain: Path) -> None:
    """Creations without a valid record leave no batch and no file, also when the service is killed in the midst of them."""
    body = {"requests": [{"custom_id": f"bad{number}"} for number in range(500)]}
    with Mesh(haywain).start("--engine", "echo") as mesh, concurrent.futures.ThreadPoolExecutor(1) as pool:
        for number in range(ROUNDS):
            creating = pool.submit(create, mesh, f"key-{number}", body)
            time.sleep(0.006 * number)
            mesh.kill("batches")
            creating.result()
            refused = until("it is refused", lambda number=number: create(mesh, f"key-{number}", body))
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "no_valid_records")
        assert mesh.client.get("/v1/batches").json()["data"] == []
        assert mesh.client.get("/v1/files").json()["data"] == []

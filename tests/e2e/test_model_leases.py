"""A model leased by the official client: its requests run, those of others and their batches wait, also over a restart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, jsonl, until
from openai.types.chat import ChatCompletionUserMessageParam

HELLO = ChatCompletionUserMessageParam(role="user", content="hello")


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with the echo engine."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo")


@contextlib.contextmanager
def client_of(mesh: Mesh, *, retries: int = 0, **more: Any) -> Iterator[openai.OpenAI]:
    """Make the official client."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{mesh.port}/v1", api_key="any", max_retries=retries, **more) as made:
        yield made


def lease(mesh: Mesh, **terms: Any) -> str:
    """Lease the model."""
    answer = mesh.ask("POST", "/v1/leases", json={"model": "echo"} | terms)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def waits(mesh: Mesh, batch_id: str) -> bool:
    """Tell whether a batch waits for somebody's lease."""
    return bool(mesh.batch(batch_id)["waiting_reason"] == "lease_unavailable")


def test_the_holder_s_client(mesh: Mesh) -> None:
    """Its header lets the holder's requests run; without it they are conflicts; batches wait, but the one that has the lease; and a
    scheduler that is killed meanwhile knows all that when it is back.
    """
    lease_id = lease(mesh, ttl_seconds=600, holder="nightly")
    names = [f"r{number}" for number in range(5)]
    mine, other = (
        mesh.ask("POST", "/v1/batches", json={"input_file_id": mesh.upload(jsonl(map(chat_row, names)))["id"]}).json()["id"]
        for _ in range(2)
    )
    for batch_id in (mine, other):
        until("the batch waits", lambda batch_id=batch_id: waits(mesh, batch_id))
    mesh.kill("scheduler")
    until("it knows the lease again", lambda: mesh.ask("GET", f"/v1/leases/{lease_id}").status_code == 200)
    until("its engine is back", lambda: mesh.client.get("/health").status_code == 200)
    with client_of(mesh, default_headers={"X-Haywain-Lease": lease_id}) as holder, client_of(mesh) as stranger:
        answer = holder.chat.completions.create(model="echo", messages=[HELLO])
        assert answer.choices[0].message.content == "hello"
        chunks = list(holder.chat.completions.create(model="echo", messages=[HELLO], stream=True))
        assert chunks[-1].choices[0].finish_reason == "stop"
        with pytest.raises(openai.ConflictError, match="is leased by 'nightly' until") as refused:
            stranger.chat.completions.create(model="echo", messages=[HELLO])
        assert refused.value.code == "lease_unavailable"
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 600
        assert mesh.ask("POST", f"/v1/batches/{mine}/lease", json={"lease_id": lease_id}).json()["id"] == mine
        assert_conserved(mesh.client, mesh.wait(mine), names)
        assert mesh.ask("GET", f"/v1/leases/{lease_id}").json()["status"] == "released"
        assert_conserved(mesh.client, mesh.wait(other), names)
        assert stranger.chat.completions.create(model="echo", messages=[HELLO]).choices
        with pytest.raises(openai.ConflictError) as over:
            holder.chat.completions.create(model="echo", messages=[HELLO])
        assert over.value.code == "lease_released"


def test_a_client_waits_for_a_lease_that_soon_ends(mesh: Mesh) -> None:
    """OpenAI's client asks again when `Retry-After` says, and then the model is free."""
    statuses: list[int] = []
    lease(mesh, ttl_seconds=4)
    hooks = {"response": [lambda response: statuses.append(response.status_code)]}
    with openai.DefaultHttpxClient(event_hooks=hooks) as http, client_of(mesh, retries=2, http_client=http) as patient:
        assert patient.chat.completions.create(model="echo", messages=[HELLO]).choices[0].message.content == "hello"
    assert (statuses[0], statuses[-1]) == (409, 200)


def test_a_batch_that_fails_validation_ends_its_lease(mesh: Mesh) -> None:
    """Whatever becomes of the batch: when it has ended, nobody waits for its lease."""
    lease_id = lease(mesh)
    source = mesh.upload(jsonl(chat_row(f"r{number}", model="nope" if number == 39_999 else "echo") for number in range(40_000)))[
        "id"
    ]

    def handed() -> str:
        """Hand it to a batch that is being validated; nothing when that was over before."""
        batch_id = mesh.ask("POST", "/v1/batches", json={"input_file_id": source}).json()["id"]
        answer = mesh.ask("POST", f"/v1/batches/{batch_id}/lease", json={"lease_id": lease_id})
        assert answer.status_code in (200, 409), answer.text
        return batch_id if answer.status_code == 200 else ""

    assert mesh.wait(until("it is handed", handed))["status"] == "failed"
    until("the lease is over", lambda: mesh.ask("GET", f"/v1/leases/{lease_id}").json()["status"] == "released")

"""The official openai client against gateway and Envoy: its types, its exceptions, its streams, its pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from rest_seam import RestMesh


@pytest.fixture
def client(rest_mesh: RestMesh) -> Iterator[openai.OpenAI]:
    """The client, retries off."""
    with openai.OpenAI(base_url=f"http://{rest_mesh.address}/v1", api_key="any", max_retries=0) as made:
        yield made


def _say(script: str) -> Any:
    return [{"role": "user", "content": script}]


def test_files(client: openai.OpenAI) -> None:
    """Files are created, read, and deleted; a missing one is NotFoundError with its request id."""
    file = client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    assert (file.bytes, file.purpose, file.status) == (3, "batch", "processed")
    assert file.expires_at == file.created_at + 3600
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == b"{}\n"
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError) as missing:
        client.files.retrieve("file-nope")
    assert missing.value.request_id


def test_pages(client: openai.OpenAI) -> None:
    """Iterating a list goes over all pages, and ends."""
    purpose: Any = "evals"
    made = [client.files.create(file=("a", b"x"), purpose=purpose).id for _ in range(5)]
    assert [file.id for file in client.files.list(purpose=purpose, limit=2, order="asc")] == made


def test_batches(client: openai.OpenAI) -> None:
    """Batches are created, read, listed and cancelled."""
    batch = client.batches.create(
        input_file_id="file-nope", endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
    )
    assert (batch.status, batch.metadata) == ("validating", {"a": "b"})
    assert client.batches.retrieve(batch.id).id == batch.id
    assert batch.id in [one.id for one in client.batches.list(limit=1)]
    with pytest.raises(openai.BadRequestError) as window:
        client.batches.create(input_file_id="x", endpoint="/v1/chat/completions", completion_window="1h")  # type: ignore[arg-type]
    assert (window.value.code, window.value.param) == ("invalid_value", "completion_window")


def test_models(client: openai.OpenAI) -> None:
    """Models are listed and found, with slashes in their ids."""
    assert "Qwen/Qwen3-0.6B" in [model.id for model in client.models.list()]
    assert client.models.retrieve("Qwen/Qwen3-0.6B").owned_by == "tests"


def test_streams(client: openai.OpenAI) -> None:
    """A stream ends after [DONE]; an error in it is raised; one before it has its own class."""
    with client.chat.completions.create(model="echo", messages=_say("say 3"), stream=True) as stream:
        assert [chunk.model_extra for chunk in stream] == [{"n": 0}, {"n": 1}, {"n": 2}]
    with client.chat.completions.create(model="echo", messages=_say("break 1"), stream=True) as stream:
        assert next(stream).model_extra == {"n": 0}
        with pytest.raises(openai.APIError, match="The engine broke"):
            next(stream)
    with pytest.raises(openai.RateLimitError) as busy:
        client.chat.completions.create(model="echo", messages=_say("busy"), stream=True)
    assert busy.value.response.headers["retry-after"] == "7"


def test_a_stream_that_waits(rest_mesh: RestMesh, client: openai.OpenAI) -> None:
    """While a stream has nothing to say it sends comments, which the client passes over; an error after one is an event."""
    with client.chat.completions.create(model="echo", messages=_say("late 2"), stream=True) as stream:
        assert [chunk.model_extra for chunk in stream] == [{"n": 0}, {"n": 1}]
    body = {"model": "echo", "messages": _say("late 1"), "stream": True}
    answer = rest_mesh.client.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.text.startswith(": waiting\n\ndata: {")
    body["stream"] = False
    assert rest_mesh.client.post("/v1/chat/completions", json=body).json()["object"] == "chat.completion"


@pytest.mark.parametrize(
    ("script", "raised"),
    [("refuse", openai.UnprocessableEntityError), ("busy", openai.RateLimitError), ("crash", openai.InternalServerError)],
)
def test_errors_have_their_class(client: openai.OpenAI, script: str, raised: type[openai.APIStatusError]) -> None:
    """Errors arrive as the client's own exceptions."""
    with pytest.raises(raised):
        client.chat.completions.create(model="echo", messages=_say(script))


def test_conflict_is_not_retried(rest_mesh: RestMesh, client: openai.OpenAI) -> None:
    """A 409 that a retry can't cure is not retried, retries or not."""
    batch = client.batches.create(input_file_id="file-nope", endpoint="/v1/chat/completions", completion_window="24h")
    while client.batches.retrieve(batch.id).status != "failed":
        pass
    requests: list[str] = []
    with openai.OpenAI(base_url=f"http://{rest_mesh.address}/v1", api_key="any", max_retries=3) as patient:
        patient._client.event_hooks = {"request": [lambda request: requests.append(request.url.path)]}
        with pytest.raises(openai.ConflictError):
            patient.batches.cancel(batch.id)
    assert len(requests) == 1

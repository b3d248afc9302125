"""Batches and chats through the whole mesh on NVIDIA's Triton server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, jsonl, until
from triton_fixture import TEMPLATE, TritonServer

from haywain import demo_model


def row(custom_id: str, text: str, **body: Any) -> dict[str, Any]:
    """Make an input line."""
    return chat_row(custom_id, text, **{"model": "vllm_mock", **body})


def arguments(triton: TritonServer, folder: Path, **more: Any) -> list[str]:
    """Give the command line that connects to the server."""
    template = folder / "template.jinja"
    template.write_text(TEMPLATE, "utf-8")
    settings = {"url": triton.url, "model": "vllm_mock", "template": template, **more}
    return ["--engine", "triton", *(word for key, value in settings.items() for word in ("--set", f"engine.triton.{key}={value}"))]


@pytest.fixture(scope="module")
def mesh(haywain: Path, triton: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Give a mesh whose engine is a mock in Triton."""
    with Mesh(haywain) as mesh:
        yield mesh.start(*arguments(triton, tmp_path_factory.mktemp("template"), slots=8))


def test_a_batch_completes_row_for_row(mesh: Mesh) -> None:
    """Sixty rows are answered once each, in order, as the model said them; what it refuses becomes that row's error."""
    rows = [row(f"row-{n}", f'row {n} says grüße 你好 🙂 \\ " and more', max_tokens=100) for n in range(60)]
    rows[7] = row("bad", "[fail=INVALID_ARG] x")
    rows[9] = row("cut", "one two three four", max_tokens=3)
    batch = mesh.wait(mesh.create(rows)["id"])
    assert batch["status"] == "completed"
    output, failed = assert_conserved(mesh.client, batch, [line["custom_id"] for line in rows])
    assert [(line["custom_id"], line["response"]["status_code"], line["error"]["code"]) for line in failed] == [
        ("bad", 400, "invalid_request")
    ]
    assert "café" in failed[0]["error"]["message"]
    body = output[0]["response"]["body"]
    assert body["choices"][0]["message"]["content"] == '<user> row 0 says grüße 你好 🙂 \\ " and more <assistant>'
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 12
    cut = next(line["response"]["body"] for line in output if line["custom_id"] == "cut")
    assert (cut["choices"][0]["message"]["content"], cut["choices"][0]["finish_reason"]) == ("<user> one two", "length")
    assert (cut["usage"]["prompt_tokens"], cut["usage"]["completion_tokens"]) == (6, 3)
    told = output[0]["response"]["x_provenance"]
    assert told["backend"] == "triton"
    assert told["model_digest"].startswith("triton:vllm_mock:1:")


def test_a_chat_streams_token_by_token(mesh: Mesh, triton: TritonServer) -> None:
    """A streamed chat has a chunk a token, and its usage at the end; the model was asked to stream, for a batch row it isn't."""
    body = row("", "alpha beta", stream=True, stream_options={"include_usage": True})["body"]
    with mesh.client.stream("POST", "/v1/chat/completions", json=body) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    deltas = [chunk["choices"][0]["delta"].get("content") for chunk in chunks if chunk["choices"]]
    assert [delta for delta in deltas if delta] == ["<user>", " alpha", " beta", " <assistant>"]
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert triton.requests("alpha beta")[0]["stream"] is True
    assert not any(asked.get("stream") for asked in triton.requests("says grüße"))


def test_cancelling_a_batch_reaches_triton(mesh: Mesh, triton: TritonServer) -> None:
    """Rows that run when their batch is cancelled are cancelled in the model."""
    rows = [row(f"row-{n}", f"[hang] gamma {n}") for n in range(12)]
    batch = mesh.create(rows)
    until("rows run", lambda: mesh.client.get("/v1/pool/status").json()["engines"][0]["active"] >= 8)
    mesh.client.post(f"/v1/batches/{batch['id']}/cancel")
    ended = mesh.wait(batch["id"])
    assert ended["status"] == "cancelled"
    assert_conserved(mesh.client, ended, [line["custom_id"] for line in rows])
    until("the model saw it", lambda: len(triton.requests("gamma")) == 8, 20)
    assert all(asked["outcome"].startswith("cancelled") for asked in triton.requests("gamma"))


def test_what_the_model_has_no_tensor_for_is_refused_by_name(mesh: Mesh) -> None:
    """A field without a tensor fails validation in a batch, and a synchronous request with 400, naming it."""
    uploaded = mesh.upload(jsonl([row("a", "hello", logit_bias={"1": 2})]))
    request = {"input_file_id": uploaded["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = mesh.wait(mesh.client.post("/v1/batches", json=request).json()["id"])
    assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "unsupported_parameter")
    assert "logit_bias" in batch["errors"]["data"][0]["message"]
    response = mesh.client.post("/v1/chat/completions", json=row("", "hello", max_context_length=9)["body"])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_context_length")


def test_a_server_that_is_killed_in_mid_batch_costs_no_row(haywain: Path, own_triton: TritonServer, tmp_path: Path) -> None:
    """A mesh that starts before its Triton says that it waits, and goes on when it comes.

    kill -9 of Triton while it works on a batch, and a start some seconds later: every row is answered once, none fails.
    """
    rows = [row(f"row-{n}", f"[ms=20] delta {n}") for n in range(120)]
    with ThreadPoolExecutor(1) as pool, Mesh(haywain) as mesh:
        starting = pool.submit(mesh.start, *arguments(own_triton, tmp_path, slots=8))
        until("up says that it waits", lambda: "the engine waits for what it wraps" in mesh.logs())
        own_triton.start("vllm_mock")
        starting.result()
        batch = mesh.create(rows)
        until("some rows are done", lambda: mesh.batch(batch["id"])["request_counts"]["completed"] >= 10)
        own_triton.kill()
        own_triton.start("vllm_mock")
        ended = mesh.wait(batch["id"])
        output, failed = assert_conserved(mesh.client, ended, [line["custom_id"] for line in rows])
        assert (len(output), failed) == (120, [])


@pytest.mark.timeout(600)
def test_a_real_model_in_triton_answers(haywain: Path, triton: TritonServer, tmp_path: Path) -> None:
    """SmolLM2 inside Triton says where Paris is, in a batch and streamed."""
    triton.load("smollm2")
    template = tmp_path / "tokenizer_config.json"
    chatml = (
        "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\\n' }}"
    )
    template.write_text(json.dumps({"chat_template": chatml, "eos_token": "<|im_end|>"}), "utf-8")
    options = arguments(triton, tmp_path, model="smollm2", template=template, served_as=demo_model.FILENAME, slots=2)
    question = {"model": demo_model.FILENAME, "max_tokens": 12, "temperature": 0}
    rows = [row(f"row-{n}", "What is the capital of France?", **question) for n in range(4)]
    with Mesh(haywain).start(*options) as mesh:
        batch = mesh.wait(mesh.create(rows)["id"], 300)
        output, failed = assert_conserved(mesh.client, batch, [line["custom_id"] for line in rows])
        assert not failed
        assert all("Paris" in line["response"]["body"]["choices"][0]["message"]["content"] for line in output)
        assert output[0]["response"]["body"]["usage"]["prompt_tokens"] > 10
        with mesh.client.stream("POST", "/v1/chat/completions", json=rows[0]["body"] | {"stream": True}, timeout=120) as response:
            events = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
        said = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events]
        assert "Paris" in "".join(said)
        assert len(said) > 4
    triton.unload("smollm2")


def test_a_wrong_model_name_ends_the_start_with_one_line(haywain: Path, triton: TritonServer, tmp_path: Path) -> None:
    """`haywain up` doesn't try again what can't be cured: it says what Triton has, and ends."""
    with Mesh(haywain) as mesh:
        done = subprocess.run(
            mesh.arguments(*arguments(triton, tmp_path, model="vllm-mock")), capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if "vllm-mock" in line]
    assert len(lines) == 1, done.stderr
    assert "'vllm-mock' is not in Triton" in lines[0]
    assert "vllm_mock (ready)" in lines[0]

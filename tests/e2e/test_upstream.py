"""Real servers behind the mesh: llama.cpp's own, and another Haywain."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import openai
import pytest
from conservation import assert_conserved
from llama_server import llama_server
from mesh import Mesh, chat_row, until

from haywain import demo_model

MODEL = "smol"


@pytest.mark.timeout(600)
def test_a_batch_and_a_stream_on_a_real_llama_server(haywain: Path) -> None:
    """A batch through llama-server ends with real answers and token counts; a prompt that is too long fails alone; chat streams."""
    question = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    rows = [chat_row(f"row-{number}", model=MODEL, messages=question, max_tokens=12, temperature=0) for number in range(6)]
    rows.append(chat_row("too-long", "word " * 2_000, model=MODEL))
    path = Path(os.environ.get("HAYWAIN_TEST_MODEL") or demo_model.cached())
    with llama_server(path, MODEL) as address, Mesh(haywain) as mesh:
        mesh.start("--engine", "upstream", "--set", f"engine.upstream.url={address}/v1", "--set", "engine.upstream.slots=4")
        assert [model["id"] for model in mesh.client.get("/v1/models").json()["data"]] == [MODEL]
        batch = mesh.wait(mesh.create(rows)["id"], timeout=300)
        output, failed = assert_conserved(mesh.client, batch, [row["custom_id"] for row in rows])
        assert [line["error"]["code"] for line in failed] == ["context_length_exceeded"]
        assert len(output) == 6
        for line in output:
            assert "Paris" in line["response"]["body"]["choices"][0]["message"]["content"]
            assert line["response"]["x_provenance"]["backend"] == "upstream"
            assert line["response"]["body"]["usage"]["completion_tokens"] <= 12
        assert batch["usage"]["output_tokens"] == sum(line["response"]["body"]["usage"]["completion_tokens"] for line in output)
        with openai.OpenAI(base_url=f"http://127.0.0.1:{mesh.port}/v1", api_key="none") as client:
            stream = client.chat.completions.create(model=MODEL, messages=question, max_tokens=12, temperature=0, stream=True)
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
        assert "Paris" in "".join(pieces)
        assert len(pieces) > 2


@pytest.mark.timeout(300)
def test_haywain_behind_haywain_may_die(haywain: Path) -> None:
    """A mesh whose upstream is another mesh keeps the rules of engines; its batch ends after that one was killed and came back."""
    rows = [chat_row(f"row-{number}") for number in range(200)]
    with Mesh(haywain) as behind, Mesh(haywain) as mesh:
        slow = ("--engine", "echo", "--set", "engine.echo.slots=8", "--set", "engine.echo.ms_per_row=40")
        behind.start(*slow)
        mesh.start("--engine", "upstream", "--set", f"engine.upstream.url=http://127.0.0.1:{behind.port}/v1")
        check = [str(haywain), "engines", "check", f"unix:{mesh.data}/run/engine.sock"]
        checked = subprocess.run(check, capture_output=True, text=True, timeout=120, check=False)
        assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout
        created = mesh.create(rows)
        until("a row has ended", lambda: mesh.batch(created["id"])["request_counts"]["completed"])
        behind.kill_everything()
        assert mesh.batch(created["id"])["status"] == "in_progress"
        behind.start(*slow)
        batch = mesh.wait(created["id"])
        output, failed = assert_conserved(mesh.client, batch, [row["custom_id"] for row in rows])
        assert (len(output), failed) == (200, [])


def test_a_wrong_upstream_is_told_in_one_line(haywain: Path) -> None:
    """`haywain up` with an upstream that doesn't serve the model ends by itself, and its words name the models that are there."""
    with Mesh(haywain) as behind, Mesh(haywain) as mesh:
        behind.start("--engine", "echo")
        url = f"http://127.0.0.1:{behind.port}/v1"
        with pytest.raises(AssertionError):
            mesh.start("--engine", "upstream", "--set", f"engine.upstream.url={url}", "--set", 'engine.upstream.models=["nope"]')
        words = (mesh.data / "up.log").read_text()
        assert f"engine.upstream.url {url} has no model nope (engine.upstream.models); it has: echo" in words

"""A real batch on the real model, through everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row

MODEL = "smollm2-135m-instruct"


@pytest.mark.timeout(600)
def test_eight_rows_on_the_demo_model(haywain: Path) -> None:
    """Eight chat rows on SmolLM2 complete with sensible answers, real token counts, and provenance; so does a direct chat."""
    questions = ["What is the capital of France?", "What is 2 + 2?", "Name a colour.", "Say hello.", "What is water?"]
    rows = [chat_row(f"row-{n}", questions[n % 5], model=MODEL, max_tokens=24, temperature=0) for n in range(7)]
    for row in rows:
        row["body"]["messages"].insert(0, {"role": "system", "content": "You are a helpful assistant."})
    rows.append(chat_row("too-long", "word " * 20_000, model=MODEL))
    with Mesh(haywain).start() as mesh:
        assert [model["id"] for model in mesh.client.get("/v1/models").json()["data"]] == [MODEL]
        batch = mesh.wait(mesh.create(rows)["id"], timeout=300)
        assert batch["status"] == "completed"
        output, failed = assert_conserved(mesh.client, batch, [row["custom_id"] for row in rows])
        assert len(output) == 7
        assert [line["error"]["code"] for line in failed] == ["context_length_exceeded"]
        answer = output[0]["response"]
        assert "Paris" in answer["body"]["choices"][0]["message"]["content"]
        assert answer["body"]["usage"]["prompt_tokens"] > 20
        assert answer["x_provenance"]["backend"] == "llamacpp"
        assert answer["x_provenance"]["model_digest"].startswith("sha256:")
        assert output[5]["response"]["body"]["choices"] == answer["body"]["choices"], "greedy: same question, same answer"
        assert batch["usage"]["output_tokens"] == sum(line["response"]["body"]["usage"]["completion_tokens"] for line in output)
        body = rows[0]["body"]
        direct = mesh.client.post("/v1/chat/completions", json=body, timeout=120).json()
        assert "Paris" in direct["choices"][0]["message"]["content"]

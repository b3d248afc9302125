"""Embeddings and tools of llama.cpp through the whole mesh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import minilm
import numpy as np
import openai
import tiny_gguf
from conservation import assert_conserved
from mesh import Mesh, chat_row

MODEL = "all-minilm-l6-v2"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["K\u00f6ln \u2600", "Paris"]}}, "required": ["city"]},
    },
}
TEMPLATE = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{# <tool_call> #}" + tiny_gguf.TEMPLATE


def embedding_row(custom_id: str, text: Any, **body: Any) -> dict[str, Any]:
    """Make an input line."""
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": {"model": MODEL, "input": text} | body}


def test_embeddings_at_once_and_in_a_batch(haywain: Path) -> None:
    """The official client gets the model's vectors, a batch gets the same ones; a chat with the model is refused both ways."""
    reference = minilm.Reference()
    texts = [f"Row {number}: {text}" for number in range(10) for text in ("a cat sat", "stock markets fell", "rain in Spain")]
    with Mesh(haywain).start("--engine", "llamacpp", "--model", str(minilm.minilm_gguf())) as mesh:
        client = openai.OpenAI(base_url=f"{mesh.client.base_url}/v1", api_key="any")
        answer = client.embeddings.create(model=MODEL, input=texts[:3])
        for entry, text in zip(answer.data, texts, strict=False):
            assert float(np.array(entry.embedding) @ reference.vector(text)) > 0.999
        rows = [embedding_row(f"row-{number}", text) for number, text in enumerate(texts)]
        rows.append(embedding_row("too-long", "word " * 600))
        batch = mesh.wait(mesh.create(rows, endpoint="/v1/embeddings")["id"])
        output, failed = assert_conserved(mesh.client, batch, [row["custom_id"] for row in rows])
        assert [line["error"]["code"] for line in failed] == ["context_length_exceeded"]
        for line, text in list(zip(output, texts, strict=True))[:6]:
            assert float(np.array(line["response"]["body"]["data"][0]["embedding"]) @ reference.vector(text)) > 0.999
        refused = mesh.client.post("/v1/chat/completions", json=chat_row("x", model=MODEL)["body"])
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_endpoint")
        chats = mesh.wait(mesh.create([chat_row("x", model=MODEL)])["id"])
        assert (chats["status"], chats["errors"]["data"][0]["code"]) == ("failed", "model_not_found")


def test_a_call_is_streamed_to_the_official_client(haywain: Path) -> None:
    """A required call comes over server-sent events, characters whole; in a batch it is the same. Content comes whole, too."""
    with Mesh(haywain).start("--engine", "llamacpp", "--model", str(tiny_gguf.tiny_gguf(template=TEMPLATE))) as mesh:
        (served,) = [model["id"] for model in mesh.client.get("/v1/models").json()["data"]]
        client = openai.OpenAI(base_url=f"{mesh.client.base_url}/v1", api_key="any")
        asked: dict[str, Any] = {"model": served, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}
        calling = asked | {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
        calls = [
            call.function
            for chunk in client.chat.completions.create(**calling, stream=True)
            for call in chunk.choices[0].delta.tool_calls or []
        ]
        assert [call.name for call in calls] == ["weather"]
        assert json.loads(calls[0].arguments)["city"] in ("K\u00f6ln \u2600", "Paris")
        batch = mesh.wait(mesh.create([chat_row("x", **calling)])["id"])
        ((line,), _) = assert_conserved(mesh.client, batch, ["x"])
        (choice,) = line["response"]["body"]["choices"]
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == calls[0].arguments
        assert choice["finish_reason"] == "tool_calls"
        text = "\u65e5\u672c\u8a9e \U0001f389 \u00df"
        shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [text]}}}
        said = [
            chunk.choices[0].delta.content for chunk in client.chat.completions.create(**asked, response_format=shape, stream=True)
        ]
        assert json.loads("".join(piece or "" for piece in said)) == text

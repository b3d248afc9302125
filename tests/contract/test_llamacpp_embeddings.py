"""Embeddings by llama.cpp: against the model computed by hand, packed and alone, and refused where they can't be."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import minilm
import numpy as np
import pytest
import tiny_gguf
from llamacpp_running import ENDPOINT, Running, settings, started

from engine.llamacpp.backend import create
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import SettingsError

EMBEDDINGS = "/v1/embeddings"
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "A fast auburn canine leaps above an idle hound!",
    "Wie sp\u00e4t ist es in K\u00f6ln?",
    "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059",
    "def f(x):\n    return x ** 2  # squared",
    "x",
    "[SEP] is written [CLS] here",
    "Batch inference runs many requests where nobody waits for a single one. " * 12,
]


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """Run the model: two decoders."""
    async with started(minilm.minilm_gguf(), slots=0) as running:
        yield running


async def embed(running: Running, texts: Any, **fields: Any) -> dict[str, Any]:
    """Ask for vectors; they must come."""
    result = await running.chat(..., endpoint=EMBEDDINGS, messages=..., max_tokens=..., input=texts, **fields)
    assert result.status_code == 200, result.body
    body: dict[str, Any] = json.loads(result.body)
    assert result.usage.input_tokens == body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"]
    assert result.usage.output_tokens == 0
    return body


def vectors(body: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Take the vectors out, in order."""
    assert [entry["index"] for entry in body["data"]] == list(range(len(body["data"])))
    return np.array([entry["embedding"] for entry in body["data"]])


async def test_vectors_are_those_of_the_model(running: Running) -> None:
    """A list of texts gives vectors of length 1 within a cosine of 0.999 of the model computed by hand, and its tokens."""
    assert [(model.endpoints, model.context_length) for model in running.models] == [([EMBEDDINGS], 512)]
    assert set(running.models[0].fields) == {"model", "input", "dimensions", "encoding_format", "user"}
    body = await embed(running, TEXTS)
    reference = minilm.Reference()
    wanted = np.array([reference.vector(text) for text in TEXTS if "[" not in text])
    found = vectors(body)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    plain = found[[place for place, text in enumerate(TEXTS) if "[" not in text]]
    assert ((plain * wanted).sum(axis=1) >= 0.999).all(), (plain * wanted).sum(axis=1)
    counts = [len(reference.tokens(text)) for text in TEXTS if "[" not in text]
    one = [await embed(running, text) for text in TEXTS if "[" not in text]
    assert [body["usage"]["prompt_tokens"] for body in one] == counts
    assert float(found[0] @ found[1]) > 0.5 > float(found[0] @ found[4])


async def test_what_shares_a_call_changes_last_bits_only() -> None:
    """Packed texts come out alike, to the noise of 16-bit weights, in any order and company; their token ids do too."""
    async with started(minilm.minilm_gguf(), slots=0, pack_tokens=192) as running:
        await packed_alike(running)


async def packed_alike(running: Running) -> None:
    """Embed in several companies."""
    together = vectors(await embed(running, TEXTS * 3, asked={"pack": True}))
    backwards = vectors(await embed(running, TEXTS[::-1], asked={"pack": True}))[::-1]
    alone = np.concatenate([vectors(await embed(running, text, lane=pb.LANE_INTERACTIVE)) for text in TEXTS])
    for other in (together[:8], together[8:16], together[16:], backwards):
        assert np.abs(other - alone).max() < 2e-4
        assert (other * alone).sum(axis=1).min() > 0.999999
    tokens = minilm.Reference().tokens(TEXTS[0])
    assert np.abs(vectors(await embed(running, tokens))[0] - alone[0]).max() < 1e-6
    assert np.abs(vectors(await embed(running, [tokens, tokens], asked={"pack": True}))[1] - alone[0]).max() < 2e-4


async def test_a_text_gives_the_same_bits_in_any_company(running: Running) -> None:
    """Unless its row may be packed each text has a call of its own, and its vector is the same to the last bit.

    So it is where a row must be deterministic, too, whatever else it may.
    """
    assert running.models[0].deterministic
    alone = [(await embed(running, text, lane=pb.LANE_INTERACTIVE))["data"][0]["embedding"] for text in TEXTS]
    ids = [
        running.begin(
            ...,
            endpoint=EMBEDDINGS,
            messages=...,
            max_tokens=...,
            input=[text, "other company"],
            user=str(number),
            asked={"pack": number != 1, "deterministic": number > 1},
        )
        for number in range(3)  # may be packed; may not; may, but must be deterministic
        for text in TEXTS
    ]
    ended = await running.ended(*ids)
    for text, result in zip(alone * 2, ended[len(TEXTS) :], strict=True):
        assert json.loads(result.body)["data"][0]["embedding"] == text


async def test_dimensions_and_base64(running: Running) -> None:
    """`base64` holds the same 32-bit floats; fewer `dimensions` are the first ones, of length 1 again."""
    plain = vectors(await embed(running, TEXTS[:2]))
    packed = await embed(running, TEXTS[:2], encoding_format="base64")
    for entry, vector in zip(packed["data"], plain, strict=True):
        assert np.abs(np.array(struct.unpack("<384f", base64.b64decode(entry["embedding"]))) - vector).max() < 1e-6
    short = vectors(await embed(running, TEXTS[:2], dimensions=8))
    assert short.shape == (2, 8)
    assert np.abs(short - plain[:, :8] / np.linalg.norm(plain[:, :8], axis=1, keepdims=True)).max() < 1e-6


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": "word " * 600}, "context_length_exceeded", "input"),
        ({"input": TEXTS[0], "dimensions": 385}, "invalid_value", "dimensions"),
        ({"input": [40_000]}, "invalid_value", "input"),
        ({"input": ["a", [1]]}, "invalid_value", "input"),
        ({"input": ""}, "invalid_value", "input"),
    ],
)
async def test_bad_input_is_refused(running: Running, fields: dict[str, Any], code: str, param: str) -> None:
    """What can't be embedded fails alone, with the limit and the measured value, and nothing is cut off."""
    result = await running.chat(..., endpoint=EMBEDDINGS, messages=..., max_tokens=..., **fields)
    assert (result.status_code, result.error.code, result.error.param) == (400, code, param)


async def test_a_chat_to_an_embedding_model_is_refused_and_the_reverse(running: Running) -> None:
    """Each model says which endpoint it doesn't serve."""
    result = await running.chat("hello", endpoint=ENDPOINT)
    assert (result.status_code, result.error.code) == (400, "unsupported_endpoint")
    async with started(tiny_gguf.tiny_gguf()) as generating:
        assert EMBEDDINGS not in generating.models[0].endpoints
        result = await generating.chat(..., endpoint=EMBEDDINGS, messages=..., max_tokens=..., input="hello")
        assert (result.status_code, result.error.code) == (400, "unsupported_endpoint")


async def test_a_generating_model_may_be_told_to_embed() -> None:
    """With `pooling` set, a model that would generate makes vectors: `last` of its last token, whatever is packed with it."""
    async with started(tiny_gguf.tiny_gguf(), pooling="last", pack_tokens=512) as running:
        alone = vectors(await embed(running, "hello there"))[0]
        many = vectors(await embed(running, ["some other text", "hello there", "x" * 200], asked={"pack": True}))
        assert len(alone) == 64
        assert np.abs(many[1] - alone).max() < 1e-4
        assert np.abs(many[0] - alone).max() > 1e-2


def test_a_bad_pooling_is_refused() -> None:
    """A pooling that isn't one is named with those that are."""
    with pytest.raises(SettingsError, match=r"engine\.llamacpp\.pooling is 'max'"):
        create(settings(minilm.minilm_gguf(), pooling="max"))

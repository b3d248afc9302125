"""Validation of lines: every code of the REST contract's §4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from batches_input import EMBED, SERVED, TEXT, Run, body, line, only, order, run
from msgspec.structs import replace

from services.batches.validate import Order

__all__ = ["order", "run"]

CASES: list[tuple[str, bytes, str, str]] = [
    ("no JSON", b"nope", "invalid_json_line", ""),
    ("an array", b"[]", "invalid_json_line", ""),
    ("a number", b"1", "invalid_json_line", ""),
    ("null", b"null", "invalid_json_line", ""),
    ("two values", line() + line(), "invalid_json_line", ""),
    ("cut off", line()[:-1], "invalid_json_line", ""),
    ("NaN", line(body=body(temperature=float("nan"))), "invalid_json_line", ""),
    ("Infinity", line(body=body(temperature=float("inf"))), "invalid_json_line", ""),
    ("a number out of range", line(body=body(temperature=1)).replace(b'e": 1', b'e": 1e400'), "invalid_json_line", ""),
    ("a lone surrogate", line("X").replace(b"X", b"\\ud800"), "invalid_json_line", ""),
    ("a lone low surrogate", line("X").replace(b"X", b"\\udc00"), "invalid_json_line", ""),
    ("invalid UTF-8", line("X").replace(b"X", b"\xff"), "invalid_json_line", ""),
    ("a surrogate in UTF-8", line("X").replace(b"X", b"\xed\xa0\x80"), "invalid_json_line", ""),
    ("duplicate keys", line().replace(b'"method"', b'"custom_id": "b", "method"'), "invalid_json_line", ""),
    ("duplicate keys inside", line().replace(b'"role"', b'"role": "x", "r\\u006fle"'), "invalid_json_line", ""),
    ("deep nesting", b'{"body":' + b"[" * 100_000, "invalid_json_line", ""),
    ("NUL", line("X").replace(b"X", b"\0"), "invalid_json_line", ""),
    ("a second byte order mark", b"\xef\xbb\xbf\xef\xbb\xbf" + line(), "invalid_json_line", ""),
    ("no custom_id", line(drop="custom_id"), "missing_required_parameter", "custom_id"),
    ("no method", line(drop="method"), "missing_required_parameter", "method"),
    ("no url", line(drop="url"), "missing_required_parameter", "url"),
    ("no body", line(drop="body"), "missing_required_parameter", "body"),
    ("an empty object", b"{}", "missing_required_parameter", "custom_id"),
    ("a null custom_id", line(None), "invalid_custom_id", "custom_id"),
    ("a numeric custom_id", line(7), "invalid_custom_id", "custom_id"),
    ("an empty custom_id", line(""), "invalid_custom_id", "custom_id"),
    ("a long custom_id", line("é" * 513), "invalid_custom_id", "custom_id"),
    ("a listed custom_id", line(["a"]), "invalid_custom_id", "custom_id"),
    ("method GET", line(method="GET"), "invalid_method", "method"),
    ("method post", line(method="post"), "invalid_method", "method"),
    ("method null", line(method=None), "invalid_method", "method"),
    ("another url", line(url=EMBED), "invalid_url", "url"),
    ("url null", line(url=None), "invalid_url", "url"),
    ("a null body", line().replace(b'"body": {', b'"body": null, "x": {'), "invalid_request", "body"),
    ("a listed body", line(body=[1]), "invalid_request", "body"),
    ("no model", line(body=body(model=None)), "invalid_request", "body.model"),
    ("an empty model", line(body=body(model="")), "invalid_request", "body.model"),
    ("a numeric model", line(body=body(model=5)), "invalid_request", "body.model"),
    ("a null model", line(body={"model": None, "messages": [1]}), "invalid_request", "body.model"),
    ("no messages", line(body=body(messages=None)), "invalid_request", "body.messages"),
    ("empty messages", line(body=body(messages=[])), "invalid_request", "body.messages"),
    ("messages as text", line(body=body(messages="hi")), "invalid_request", "body.messages"),
    ("stream", line(body=body(stream=True)), "streaming_unsupported", "body.stream"),
    ("stream 1", line(body=body(stream=1)), "streaming_unsupported", "body.stream"),
    ("a field nobody honours", line(body=body(top_p=1, zzz=1)), "unsupported_parameter", "body.top_p"),
    ("a model nobody serves", line(body=body(model="nope")), "model_not_found", "body.model"),
    ("a model of another endpoint", line(body=body(model="embedder")), "model_not_found", "body.model"),
]


@pytest.mark.parametrize(("data", "code", "param"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_bad_line(run: Run, order: Order, data: bytes, code: str, param: str) -> None:
    """The line gets its code and param, by its physical number, and no index is left."""
    fault = only(run(b"\n" + line("good") + b"\n" + data + b"\n") if not data.startswith(b"\xef") else run(data))
    assert (fault.code, fault.param) == (code, param)
    assert fault.line == (1 if data.startswith(b"\xef") else 3)
    assert not Path(order.index_path).exists()


def test_what_asks_for_nothing(run: Run) -> None:
    """Null in any field, and false in one that is known, pass though nobody honours them; the next line may ask for more."""
    nothing = {"tools": None, "whatever": None, "store": False}
    members = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
    rows = [members | nothing, members, members | nothing | {"tools": []}, members | {"whatever": False}]
    verdict = run(b"\n".join(line(f"c{number}", body=row) for number, row in enumerate(rows)))
    assert [(fault.line, fault.code, fault.param) for fault in verdict.faults] == [
        (3, "unsupported_parameter", "body.tools"), (4, "unsupported_parameter", "body.whatever"),
    ]  # fmt: skip


def test_the_batch_s_model_stands_in(run: Run) -> None:
    """A row without a model runs the batch's; one with a model keeps its own."""
    verdict = run(line("a", body=body(model=None)) + b"\n" + line("b"), default_model="parrot")
    assert verdict.faults == []
    assert verdict.model == "parrot"
    assert only(run(line(body=body(model=None)), default_model="nope")).code == "model_not_found"


def test_defaults_that_no_engine_honours(run: Run) -> None:
    """What the batch adds to rows must be honoured too, by the batch's name for it; nothing is ignored."""
    assert run(line(), members={"max_tokens": "max_decoding_length"}).faults == []
    fault = only(run(line(), members={"top_k": "top_k"}))
    assert (fault.code, fault.param, fault.line) == ("unsupported_parameter", "top_k", 0)


def test_a_promise_that_no_engine_can_give(run: Run) -> None:
    """`deterministic` is refused for a model whose engines can't promise it."""
    served = {"echo": replace(SERVED["echo"], deterministic=False)}
    assert run(line(), served=served).faults == []
    fault = only(run(line(), served=served, deterministic=True))
    assert (fault.code, fault.param) == ("unsupported_parameter", "deterministic")


@pytest.mark.parametrize(
    ("endpoint", "content", "good"),
    [
        (TEXT, {"prompt": "hi"}, True),
        (TEXT, {"prompt": ["a", "b"]}, True),
        (TEXT, {"prompt": [1, 2]}, True),
        (TEXT, {"prompt": [[1], [2]]}, True),
        (TEXT, {"prompt": []}, False),
        (TEXT, {"prompt": [1, "a"]}, False),
        (TEXT, {"prompt": [True]}, False),
        (TEXT, {"prompt": [[]]}, False),
        (TEXT, {"prompt": None}, False),
        (TEXT, {"messages": []}, False),
        (EMBED, {"input": "hi"}, True),
        (EMBED, {"input": ["a"]}, True),
        (EMBED, {"input": {}}, False),
        (EMBED, {"prompt": "hi"}, False),
    ],
)
def test_content_of_the_other_endpoints(run: Run, endpoint: str, content: dict[str, Any], good: bool) -> None:
    """Completions need a prompt and embeddings an input: text, tokens, or a list of either."""
    verdict = run(line(url=endpoint, body={"model": "echo"} | content), endpoint=endpoint)
    if good:
        assert verdict.faults == []
    else:
        name = "prompt" if endpoint == TEXT else "input"
        assert (only(verdict).code, only(verdict).param) == ("invalid_request", f"body.{name}")


def test_a_client_s_words_are_cut(run: Run) -> None:
    """Messages stay short whatever the client wrote."""
    verdict = run(line(url="u" * 100_000) + b"\n" + line("b", body=body(model="m" * 100_000)))
    assert all(len(fault.message) < 400 for fault in verdict.faults)

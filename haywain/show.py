"""`haywain show`: a results file for people: question, answer, tokens."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from haywain.errors import HaywainError

__all__ = ["command"]


class NotResults(HaywainError):
    """The file does not hold results."""


def command(requests: Path, results: Path, rows: int) -> int:
    """Print the first `rows` results beside what was asked, and the sums over all of them."""
    asked = {str(line["custom_id"]): line["body"] for line in _lines(requests)}
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    for line in islice(_lines(results), rows):
        body = (line.get("response") or {}).get("body") or {}
        usage = body.get("usage") or {}
        print(f"[{line['custom_id']}]")
        _print_indented("asked   ", _question(asked.get(line["custom_id"], {})), width)
        _print_indented("answered", _answer(body) or str(line.get("error")), width)
        print(f"  tokens   {usage.get('prompt_tokens', 0)} in, {usage.get('completion_tokens', 0)} out\n")
    _print_sums(results)
    return 0


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    yield json.loads(line)
    except (OSError, ValueError) as error:
        raise NotResults(f"{path}: {error}") from error


def _question(body: dict[str, Any]) -> str:
    messages = body.get("messages") or [{}]
    return str(messages[-1].get("content", body.get("prompt", "")))


def _answer(body: dict[str, Any]) -> str:
    choices = body.get("choices") or [{}]
    return str((choices[0].get("message") or {}).get("content") or choices[0].get("text") or "")


def _print_indented(label: str, text: str, width: int) -> None:
    lines = textwrap.wrap(" ".join(text.split()), width - 12) or [""]
    print(f"  {label} {lines[0]}")
    for more in lines[1:4]:
        print(f"           {more}")
    if len(lines) > 4:
        print(f"           … ({len(text)} characters)")


def _print_sums(results: Path) -> None:
    count = tokens_in = tokens_out = 0
    for line in _lines(results):
        usage = ((line.get("response") or {}).get("body") or {}).get("usage") or {}
        count += 1
        tokens_in += usage.get("prompt_tokens", 0)
        tokens_out += usage.get("completion_tokens", 0)
    print(f"{count} rows, {tokens_in} tokens in, {tokens_out} tokens out: {results}")

"""The chat template, from a file beside the model: Triton keeps none, and its models take text.

Rendering is engine/prompt.py's. Its vocabulary here is one of characters, so that the "tokens" it makes are the text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from engine.chat import ChatRequest
from engine.prompt import ChatTemplate
from haywain.errors import InvalidRequest, SettingsError

__all__ = ["TextTemplate"]

_FILES = ("tokenizer_config.json", "chat_template.jinja")
_BOS, _EOS = 0, 1


class _Characters:
    """A vocabulary whose tokens are characters."""

    bos = _BOS
    eos = _EOS
    adds_bos = False

    def __init__(self, chat_template: str, bos: str, eos: str) -> None:
        self.chat_template = chat_template
        self._texts = {_BOS: bos, _EOS: eos}

    def specials(self) -> list[Any]:
        return []

    def text(self, token: int) -> str:
        return self._texts[token]

    def tokenise(self, text: str, *, special: bool) -> list[Any]:
        return list(text)


class TextTemplate:
    """Makes a prompt's text of messages."""

    def __init__(self, path: Path, *, with_bos: bool = True) -> None:
        """Read and compile. Raises SettingsError."""
        if path.is_dir():
            path = next((path / name for name in _FILES if (path / name).exists()), path / _FILES[0])
        try:
            source = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SettingsError(f"engine.triton.template {path} can't be read: {reason}") from None
        told: dict[str, Any] = {}
        if path.suffix == ".json":
            told, source = _configuration(path, source)
        bos = _text(told.get("bos_token")) if with_bos else ""
        try:
            self._template = ChatTemplate(_Characters(source, bos, _text(told.get("eos_token"))))
        except SettingsError as error:
            raise SettingsError(f"engine.triton.template {path}: {error}") from None
        controls = sorted(_controls(told), key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, controls))) if controls else None

    def render(self, request: ChatRequest) -> str:
        """Make the prompt. Raises InvalidRequest: a message with a control token's text, too, since the model would obey it."""
        messages = request.for_template()
        if self._controls is not None:
            for index, message in enumerate(messages):
                if found := self._controls.search(message["content"]):
                    raise InvalidRequest(
                        f"messages[{index}] holds '{found[0]}', which this model takes for a control token.",
                        param=f"messages[{index}].content",
                    )
        characters: list[Any] = list(self._template.tokens(messages, request.chat_template_kwargs))
        return "".join(characters)


def _configuration(path: Path, source: str) -> tuple[dict[str, Any], str]:
    """Read a tokenizer_config.json; it, and the template in it, or in the file beside it."""
    try:
        told = msgspec.json.decode(source)
    except msgspec.DecodeError as error:
        raise SettingsError(f"engine.triton.template {path} is no JSON: {error}") from None
    template = told.get("chat_template") if isinstance(told, dict) else None
    if isinstance(template, list):  # named ones
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    beside = path.with_name(_FILES[1])
    if template is None and isinstance(told, dict) and beside.exists():
        template = beside.read_text("utf-8")
    if not isinstance(template, str):
        raise SettingsError(f"engine.triton.template {path} has no chat_template")
    return told, template


def _text(token: Any) -> str:
    """Give the text of a token as it is written in a configuration: a text, or an object with one."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _controls(told: dict[str, Any]) -> set[str]:
    """List the texts of control tokens."""
    added = told.get("added_tokens_decoder")
    tokens = [token for token in added.values() if token.get("special")] if isinstance(added, dict) else []
    tokens += [told.get("bos_token"), told.get("eos_token"), *(told.get("additional_special_tokens") or [])]
    return {text for token in tokens if (text := _text(token))}

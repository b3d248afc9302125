"""What a model says, told apart as it comes: reasoning, content, and calls of tools.

    start ── <think> ──▶ reasoning ── </think> ──▶ content ──▶ a call ──▶ content …

Models write calls in a few ways, their dialects. What looks like a call and can't be read is content, as it was written.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Literal, NamedTuple

__all__ = ["DIALECTS", "THINK", "THOUGHT", "Dialect", "Manner", "Part", "Speech", "dialect_of"]

THINK: Final = "<think>"
THOUGHT: Final = "</think>"


class Dialect(NamedTuple):
    """How calls are written."""

    name: str
    opening: str
    closing: str
    """empty: a call goes on to the end of the text"""
    arguments: str
    """member of a call's JSON that holds its arguments; `name` is the other one"""
    bare: bool = False
    """a text that begins with a brace is a call, too, if it names a tool"""


DIALECTS: Final = {
    "hermes": Dialect("hermes", "<tool_call>", "</tool_call>", "arguments"),
    "mistral": Dialect("mistral", "[TOOL_CALLS]", "", "arguments"),
    "llama": Dialect("llama", "<|python_tag|>", "", "parameters", bare=True),
}
"""Hermes and Qwen; Mistral; Llama 3.1 to 3.3"""


def dialect_of(template: str) -> Dialect | None:
    """Tell a model's dialect by its chat template, None when it is none that is known."""
    signs = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama": '"parameters"'}
    return next((DIALECTS[name] for name, sign in signs.items() if sign in template), None)


class Manner(NamedTuple):
    """What to tell apart in the answer to a request."""

    dialect: Dialect | None = None
    """None: calls are not looked for"""
    names: frozenset[str] = frozenset()
    """of the tools"""
    most_calls: int = 0
    """0: any number"""
    thinks: bool = False
    """whether it may begin with reasoning"""
    opened: bool = False
    """whether the prompt opened it already"""

    @property
    def closings(self) -> list[str]:
        """What ends a call, if anything does."""
        return [self.dialect.closing] if self.dialect is not None and self.dialect.closing else []


class Part(NamedTuple):
    """A piece of what was said."""

    kind: Literal["content", "reasoning", "call"]
    text: str
    """of a call, its arguments as JSON"""
    name: str = ""


class Speech:
    """One answer, taken in as it comes."""

    def __init__(self, manner: Manner) -> None:
        """Begin before its first character."""
        self._manner = manner
        self._text = ""
        """not told yet"""
        self._state = "reasoning" if manner.thinks and manner.opened else "start"
        self._fresh = True
        """whether nothing was told since this state began"""
        self._said = False
        """whether content was told"""
        self._calls = 0
        self._opening = ""
        """how the call at hand began"""

    def add(self, text: str) -> list[Part]:
        """Take more; give what is certain now."""
        self._text += text
        parts: list[Part] = []
        while self._go(parts):
            pass
        return parts

    def close(self) -> list[Part]:
        """Give what is left, after the end."""
        parts = self.add("")
        text, self._text = self._text, ""
        if self._state == "call":
            parts += self._read(text, "")
        elif text:
            self._tell(parts, "reasoning" if self._state == "reasoning" else "content", text)
        return parts

    def _go(self, parts: list[Part]) -> bool:
        """Go as far as one state lasts; True when another one began."""
        match self._state:
            case "start":
                return self._start()
            case "reasoning":
                return self._until(parts, "reasoning", THOUGHT)
            case "content":
                return self._content(parts)
        closing = self._manner.dialect.closing if self._manner.dialect else ""
        end = self._text.find(closing) if closing else -1
        if end < 0:
            return False
        written, self._text = self._text[:end], self._text[end + len(closing) :]
        parts += self._read(written, closing)
        self._enter("content")
        return True

    def _start(self) -> bool:
        begun = self._text.lstrip()
        if self._manner.thinks:
            if begun.startswith(THINK):
                self._text = begun[len(THINK) :]
                self._enter("reasoning")
                return True
            if THINK.startswith(begun):
                return False
        self._enter("content")
        return True

    def _enter(self, state: str, opening: str = "") -> None:
        self._state, self._opening, self._fresh = state, opening, True

    def _content(self, parts: list[Part]) -> bool:
        dialect = self._manner.dialect
        if dialect is None:
            text, self._text = self._text, ""
            self._tell(parts, "content", text)
            return False
        if dialect.bare and not self._said and not self._calls:
            begun = self._text.lstrip()
            if not begun:
                return False
            if begun[0] == "{":
                self._enter("call")
                return True
        return self._until(parts, "content", dialect.opening)

    def _until(self, parts: list[Part], kind: Literal["content", "reasoning"], mark: str) -> bool:
        """Tell what is before a mark; while it hasn't come, all that can't be its beginning, nor white space before it."""
        end = self._text.find(mark)
        if end >= 0:
            self._tell(parts, kind, self._text[:end].rstrip())
            self._text = self._text[end + len(mark) :]
            if kind == "content":
                self._enter("call", mark)
            else:
                self._enter("content")
            return True
        held = next((size for size in range(min(len(mark) - 1, len(self._text)), 0, -1) if self._text.endswith(mark[:size])), 0)
        sure = len(self._text[: len(self._text) - held].rstrip())
        self._tell(parts, kind, self._text[:sure])
        self._text = self._text[sure:]
        return False

    def _tell(self, parts: list[Part], kind: Literal["content", "reasoning"], text: str) -> None:
        if self._fresh and (kind == "reasoning" or self._manner.thinks or self._calls):
            text = text.lstrip()
        if text:
            self._fresh = False
            self._said = self._said or kind == "content"
            parts.append(Part(kind, text))

    def _read(self, written: str, closing: str) -> list[Part]:
        """Read calls; what can't be read is content."""
        manner = self._manner
        found = _calls(written, manner.dialect.arguments) if manner.dialect is not None else []
        if not found or (not self._opening and not all(name in manner.names for name, _ in found)):
            self._said = True
            return [Part("content", f"{self._opening}{written}{closing}")]
        if manner.most_calls:
            found = found[: max(0, manner.most_calls - self._calls)]
        self._calls += len(found)
        return [Part("call", arguments, name) for name, arguments in found]


_NAMED = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*(?=\{)")
_BETWEEN = re.compile(r"[\s,;]*")
_decoder = json.JSONDecoder()


def _calls(written: str, member: str) -> list[tuple[str, str]]:
    """Read (name, arguments as JSON) of each call; none when anything is amiss.

    Calls are JSON objects, one after another or in a list; newer Mistral models write a name and then the arguments.
    """
    found: list[Any] = []
    place = _skip(written, 0)
    try:
        while place < len(written):
            if named := _NAMED.match(written, place):
                arguments, place = _decoder.raw_decode(written, named.end())
                found.append({"name": named[1], member: arguments})
            else:
                value, place = _decoder.raw_decode(written, place)
                found += value if isinstance(value, list) else [value]
            place = _skip(written, place)
        return [_call(value, member) for value in found]
    except (ValueError, RecursionError):
        return []


def _skip(written: str, place: int) -> int:
    found = _BETWEEN.match(written, place)
    return found.end() if found else place


def _call(value: Any, member: str) -> tuple[str, str]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("a call is an object with a name")
    arguments = value.get(member, value.get("arguments", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    return value["name"], json.dumps(arguments, ensure_ascii=False)

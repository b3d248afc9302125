"""From messages to prompt tokens, by the model's own chat template.

What a caller writes never becomes a control token: a message that holds `<|im_start|>` is tokenised as those characters. Before
rendering, every control token's text inside the caller's strings is broken by a mark, a noncharacter that the strings don't
hold; after rendering, unbroken control texts are the template's own and become tokens, and the marks are taken out of what
lies between. Texts that turn into a control token only where the template puts them next to its own characters are not found.
"""

from __future__ import annotations

import datetime
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, Protocol

import jinja2
import jinja2.ext
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from haywain.errors import InvalidRequest, SettingsError

__all__ = ["ChatTemplate", "Special", "Vocabulary"]

_RESERVED = frozenset({"messages", "bos_token", "eos_token", "raise_exception", "strftime_now", "tools", "documents"})
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class Special(Protocol):
    """A control token."""

    token: int
    text: str
    left: bool
    """swallows white space before it"""
    right: bool
    """swallows white space behind it"""


class Vocabulary(Protocol):
    """What a template needs of a vocabulary."""

    @property
    def bos(self) -> int:
        """The token that begins a text, -1 for none."""

    @property
    def eos(self) -> int:
        """The token that ends a text, -1 for none."""

    @property
    def adds_bos(self) -> bool:
        """Whether every prompt begins with `bos`."""

    @property
    def chat_template(self) -> str:
        """The Jinja source, empty for none."""

    def specials(self) -> list[Any]:
        """List the control tokens, the ones with the longest text first."""

    def text(self, token: int) -> str:
        """Tell how a token is written, empty for none."""

    def tokenise(self, text: str, *, special: bool) -> list[int]:
        """Make tokens; with `special`, control texts become control tokens."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's part for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> Any:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A model's chat template with its vocabulary. Not for two threads at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Compile. Raises SettingsError when the model has none, or one that is no Jinja."""
        self._vocabulary = vocabulary
        if not vocabulary.chat_template:
            raise SettingsError("the model has no chat template, so it can't answer /v1/chat/completions")
        # As transformers does: https://huggingface.co/docs/transformers/chat_templating
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        try:
            self._template = environment.from_string(vocabulary.chat_template)
        except jinja2.TemplateError as error:
            raise SettingsError(f"the model's chat template can't be compiled: {error}") from None
        self._bos = vocabulary.text(vocabulary.bos)
        self._eos = vocabulary.text(vocabulary.eos)
        self._specials = {special.text: special for special in vocabulary.specials()}
        texts = [re.escape(text) for text in self._specials]
        self._whole = re.compile("|".join(texts)) if texts else None
        # Looks ahead, so that overlapping ones are all found.
        self._anywhere = re.compile(f"(?=(?:{'|'.join(texts)}))") if texts else None

    def shows_tools(self) -> bool:
        """Tell whether the template tells the model of its tools."""
        name = "haywain_probe"
        function = {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}}
        tools = [{"type": "function", "function": function}]
        try:
            return name in self._render([{"role": "user", "content": "hello"}], {"tools": tools})
        except InvalidRequest:
            return False

    def tokens(
        self,
        messages: list[dict[str, Any]],
        variables: Mapping[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> list[int]:
        """Make the prompt of a conversation, up to where the assistant speaks.

        `variables` (chat_template_kwargs) and `tools` are seen by the template. Raises InvalidRequest when it refuses the messages.
        """
        variables = dict(variables or {})
        reserved = sorted(_RESERVED & variables.keys())
        if reserved:
            raise InvalidRequest(f"chat_template_kwargs can't set '{reserved[0]}'.", param=f"chat_template_kwargs.{reserved[0]}")
        if tools:
            variables["tools"] = tools
        if not self._forged((messages, variables)):
            return self._begun(self._vocabulary.tokenise(self._render(messages, variables), special=True))
        mark = self._mark((messages, variables))
        broken = self._broken((messages, variables), mark)
        return self._begun(self._tokenise(self._render(*broken), mark))

    def _render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        names = {"add_generation_prompt": True, "tools": None, "documents": None, **variables}
        try:
            return self._template.render(messages=messages, bos_token=self._bos, eos_token=self._eos, **names)
        except Exception as error:  # noqa: BLE001 - a template is a program of the model's maker and may fail in any way
            reason = f"{error}" if isinstance(error, _RefusedByTemplateError) else f"{type(error).__name__}: {error}"
            message = f"The model's chat template can't render these messages: {reason[:500]}"
            raise InvalidRequest(message, code="invalid_request", param="messages") from None

    def _begun(self, tokens: list[int]) -> list[int]:
        """Put `bos` in front where the model wants it and the template didn't."""
        bos = self._vocabulary.bos
        if self._vocabulary.adds_bos and tokens[:1] != [bos]:
            return [bos, *tokens]
        return tokens

    def _forged(self, value: Any) -> bool:
        """Tell whether any of the caller's strings holds the text of a control token."""
        whole = self._whole
        return whole is not None and any(whole.search(text) for text in _strings(value))

    def _mark(self, value: Any) -> str:
        used = {mark for text in _strings(value) for mark in _MARKS if mark in text}
        free = next((mark for mark in _MARKS if mark not in used), None)
        if free is None:
            raise InvalidRequest("The messages hold texts of control tokens and every noncharacter of Unicode.", param="messages")
        return free

    def _broken(self, value: Any, mark: str) -> Any:
        """Copy a value with a mark behind the first character of each control text in its strings."""
        if isinstance(value, str):
            if self._anywhere is None:
                return value
            edges = [0, *(found.start() + 1 for found in self._anywhere.finditer(value)), len(value)]
            return mark.join(value[start:end] for start, end in itertools.pairwise(edges))
        if isinstance(value, Mapping):
            return {self._broken(key, mark): self._broken(member, mark) for key, member in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._broken(member, mark) for member in value)
        return value

    def _tokenise(self, text: str, mark: str) -> list[int]:
        """Tokenise as the library does with `special`, but leave broken control texts as characters."""
        tokens: list[int] = []
        start, strip = 0, False
        for special, begin, end in self._found(text, mark):
            plain = text[start:begin]
            plain = plain.lstrip() if strip else plain
            plain = plain.rstrip() if special.left else plain
            tokens += self._plain(plain, mark)
            tokens.append(special.token)
            start, strip = end, special.right
        return tokens + self._plain(text[start:].lstrip() if strip else text[start:], mark)

    def _plain(self, text: str, mark: str) -> list[int]:
        text = text.replace(mark, "")
        return self._vocabulary.tokenise(text, special=False) if text else []

    def _found(self, text: str, mark: str) -> Iterator[tuple[Special, int, int]]:
        for found in self._whole.finditer(text) if self._whole else ():
            # A control text of one character can't be broken inside; its mark stands behind it.
            if len(found[0]) > 1 or text[found.end() : found.end() + 1] != mark:
                yield self._specials[found[0]], found.start(), found.end()


class _RefusedByTemplateError(Exception):
    """The template called raise_exception."""


def _raise_exception(message: str) -> NoReturn:
    raise _RefusedByTemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)


def _tojson(value: Any, **options: Any) -> str:
    """Encode as transformers does: characters as they are, nothing escaped for HTML."""
    options.setdefault("ensure_ascii", False)
    return json.dumps(value, **options)


def _strings(value: Any) -> Iterator[str]:
    """Give every string in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from _strings(key)
            yield from _strings(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _strings(member)

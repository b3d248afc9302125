"""Chat templates of 22 families, rendered as transformers renders them."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest
from chat_templates import TEMPLATES, Published
from transformers.utils.chat_template_utils import render_jinja_template

from engine.prompt import ChatTemplate
from engine.speech import dialect_of
from haywain.errors import InvalidRequest

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Tell the weather \u2013 <now> & "here".',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": "K\u00f6ln"}}}
SYSTEM = {"role": "system", "content": " Be brief.\n"}
ASK = {"role": "user", "content": "  What's up, \u4e16\u754c? <b>&amp;</b>\n{{ 7 * 7 }} {% raw %} "}
SAY = {"role": "assistant", "content": "Not much.\n"}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nNot much."}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "question": [ASK],
    "with system": [SYSTEM, ASK],
    "turns": [ASK, SAY, {"role": "user", "content": "Sure?"}, SAY, ASK],
    "turns with system": [SYSTEM, ASK, SAY, ASK],
    "out of order": [ASK, ASK],
    "reasoned": [ASK, THOUGHT, ASK],
    "call": [ASK, {"role": "assistant", "content": "", "tool_calls": [CALL]},
             {"role": "tool", "content": "\u2600 21", "tool_call_id": "abcdefghi"}],
}  # fmt: skip


class Characters:
    """A vocabulary whose tokens are characters; it has a beginning and an end, and no control tokens."""

    adds_bos = False
    bos, eos = -2, -3

    def __init__(self, published: Published) -> None:
        self.chat_template = published.source
        self._names = {self.bos: published.bos, self.eos: published.eos}

    def specials(self) -> list[Any]:
        """List none."""
        return []

    def text(self, token: int) -> str:
        """Tell a name."""
        return self._names[token]

    def tokenise(self, text: str, *, special: bool) -> list[int]:
        """Take characters."""
        return list(map(ord, text))


@pytest.mark.parametrize("family", list(TEMPLATES))
@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["", "tools"])
def test_a_template_renders_as_transformers_does(family: str, tools: list[dict[str, Any]] | None) -> None:
    """To the character, with and without tools and variables; what it refuses there is refused here."""
    published = TEMPLATES[family]
    template = ChatTemplate(Characters(published))
    rendered = 0
    for messages in CONVERSATIONS.values():
        for variables in ({}, {"enable_thinking": False, "date_string": "1 May 2026"}):
            names = {"bos_token": published.bos, "eos_token": published.eos, **variables}
            try:
                ((wanted,), _) = render_jinja_template(
                    [messages], tools=tools, chat_template=published.source, add_generation_prompt=True, **names
                )
            except (jinja2.TemplateError, TypeError):
                with pytest.raises(InvalidRequest, match="chat template can't render"):
                    template.tokens(messages, variables, tools)
                continue
            assert "".join(map(chr, template.tokens(messages, variables, tools))) == wanted
            rendered += 1
    assert rendered >= 4


def test_templates_show_what_their_models_can_do() -> None:
    """Those that list tools are found, with their dialects; those that don't are not."""
    shown = {family for family, published in TEMPLATES.items() if ChatTemplate(Characters(published)).shows_tools()}
    assert shown == {"Llama 3.1", "Mistral 0.3", "Qwen 2.5"}
    dialects = {family: dialect_of(TEMPLATES[family].source) for family in shown}
    assert {family: dialect.name for family, dialect in dialects.items() if dialect} == {
        "Llama 3.1": "llama", "Mistral 0.3": "mistral", "Qwen 2.5": "hermes",
    }  # fmt: skip
    assert {family for family, published in TEMPLATES.items() if "</think>" in published.source} == {"Qwen 3", "DeepSeek R1"}

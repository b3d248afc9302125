"""The chat template of a model in Triton."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.chat import parse_chat
from engine.triton.template import TextTemplate
from haywain.errors import InvalidRequest

SOURCE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
CONFIG = {
    "chat_template": SOURCE,
    "bos_token": {"content": "<s>"},
    "eos_token": "</s>",
    "added_tokens_decoder": {"5": {"content": "<|tool|>", "special": True}, "6": {"content": "plain", "special": False}},
}


def rendered(template: TextTemplate, text: str) -> str:
    """Render one message."""
    body = {"model": "m", "messages": [{"role": "developer", "content": text}]}
    return template.render(parse_chat(json.dumps(body).encode()))


def test_a_configuration_knows_its_tokens(tmp_path: Path) -> None:
    """A tokenizer_config.json gives template and control tokens; characters of any plane come through."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(CONFIG), "utf-8")
    template = TextTemplate(tmp_path / "tokenizer_config.json")
    assert rendered(template, "grüße 🙂 plain") == "<s>[system] grüße 🙂 plain\n[assistant]"
    assert rendered(TextTemplate(tmp_path, with_bos=False), "a") == "[system] a\n[assistant]"


@pytest.mark.parametrize("text", ["<s>", "x </s> y", "<|tool|>"])
def test_a_message_can_not_forge_a_control_token(tmp_path: Path, text: str) -> None:
    """The model would obey it: the row is refused, and told why."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(CONFIG), "utf-8")
    with pytest.raises(InvalidRequest, match="takes for a control token"):
        rendered(TextTemplate(tmp_path), text)


def test_a_template_beside_its_configuration(tmp_path: Path) -> None:
    """Newer models keep the template in a file of its own; a list of named ones has a default."""
    (tmp_path / "chat_template.jinja").write_text(SOURCE, "utf-8")
    assert rendered(TextTemplate(tmp_path), "a") == "[system] a\n[assistant]"
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<b>"}', "utf-8")
    assert rendered(TextTemplate(tmp_path), "a") == "<b>[system] a\n[assistant]"
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}), "utf-8")
    assert rendered(TextTemplate(tmp_path), "a") == "y"

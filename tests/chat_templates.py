"""Chat templates in the forms that well-known families of models publish, with what begins and ends a text for them.

Each is a file of `tests/chat_templates/`, byte for byte as it is rendered.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["TEMPLATES", "Published"]

_FOLDER: Final = Path(__file__).parent / "chat_templates"


class Published(NamedTuple):
    """A template and the tokens that it may name."""

    source: str
    bos: str = "<s>"
    eos: str = "</s>"


_TOKENS: Final = {
    "ChatML": ("", "<|im_end|>"),
    "SmolLM2": ("<|im_start|>", "<|im_end|>"),
    "Llama 2": ("<s>", "</s>"),
    "Llama 3": ("<|begin_of_text|>", "<|eot_id|>"),
    "Llama 3.1": ("<|begin_of_text|>", "<|eot_id|>"),
    "Mistral 0.1": ("<s>", "</s>"),
    "Mistral 0.3": ("<s>", "</s>"),
    "Gemma": ("<bos>", "<eos>"),
    "Phi 3": ("<s>", "<|endoftext|>"),
    "Phi 4": ("<|endoftext|>", "<|im_end|>"),
    "Qwen 2.5": ("", "<|im_end|>"),
    "Qwen 3": ("", "<|im_end|>"),
    "DeepSeek R1": ("<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    "DeepSeek Coder": ("<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<|EOT|>"),
    "Zephyr": ("<s>", "</s>"),
    "Vicuna": ("<s>", "</s>"),
    "Command R": ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "OpenChat": ("<s>", "<|end_of_turn|>"),
    "Solar": ("<s>", "</s>"),
    "Alpaca": ("<s>", "</s>"),
    "Granite": ("", "<|end_of_text|>"),
    "with generation tags": ("<s>", "</s>"),
}
"""By the name of a family: what begins a text, what ends it."""


def _published(name: str, bos: str, eos: str) -> Published:
    file = _FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.jinja"
    return Published(file.read_bytes().decode(), bos, eos)


TEMPLATES: Final = {name: _published(name, *tokens) for name, tokens in _TOKENS.items()}

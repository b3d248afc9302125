"""An answer in the shape of its endpoint: text, whole or in chunks, with log-probabilities where wanted; or vectors.

A chat's is made in chat_reply.py.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from engine import answers
from engine.chances import Chance, shown, text_chances
from engine.llamacpp.messages import Ended
from haywain import openai

__all__ = ["Choice", "EmbeddingReply", "Reply", "TextReply"]


class Choice:
    """What one run has said so far."""

    def __init__(self, echo: str, wants_chances: bool) -> None:
        """`echo` stands before its text."""
        self.echo = echo
        self.wants_chances = wants_chances
        self.texts: list[str] = []
        self.chances: list[Chance] = []
        self.characters = len(echo)
        """of the tokens whose chances were told"""
        self.end: Ended | None = None

    @property
    def text(self) -> str:
        """All of it."""
        return self.echo + "".join(self.texts)

    @property
    def finish(self) -> str:
        """Why it ended."""
        return self.end.finish if self.end is not None else ""


class Reply(Protocol):
    """What tells an answer."""

    def opening(self, index: int, choice: Choice) -> bytes:
        """Encode a choice's first chunk, empty for none."""

    def piece(self, index: int, choice: Choice, text: str, chances: Sequence[Chance]) -> list[bytes]:
        """Encode more of a choice."""

    def closing(self, index: int, choice: Choice) -> list[bytes]:
        """Encode a choice's last chunks."""

    def usage(self, usage: openai.CompletionUsage) -> bytes:
        """Encode the last chunk."""

    def reasoning_tokens(self, choice: Choice) -> int:
        """Count the tokens of a choice that were reasoning."""

    def whole(self, choices: Sequence[Choice], usage: openai.CompletionUsage) -> bytes:
        """Encode all of it."""


class TextReply:
    """An answer of /v1/completions."""

    def __init__(self, model: str, fingerprint: str) -> None:
        """`model` as the caller named it."""
        self._answer = answers.TextAnswer(model, fingerprint=fingerprint)

    def opening(self, index: int, choice: Choice) -> bytes:
        """Encode the echo of a prompt, empty for none."""
        return self._answer.chunk(choice.echo, index) if choice.echo else b""

    def piece(self, index: int, choice: Choice, text: str, chances: Sequence[Chance]) -> list[bytes]:
        """Encode more of a choice."""
        told = None
        if choice.wants_chances:
            told = text_chances(chances, choice.characters)
            choice.characters += sum(len(shown(chance.piece)) for chance in chances)
        return [self._answer.chunk(text, index, logprobs=told)]

    def closing(self, index: int, choice: Choice) -> list[bytes]:
        """Encode a choice's last chunk."""
        return [self._answer.chunk("", index, finish_reason=choice.finish)]

    def reasoning_tokens(self, choice: Choice) -> int:
        """Count none: a text is what it is."""
        return 0

    def usage(self, usage: openai.CompletionUsage) -> bytes:
        """Encode the last chunk."""
        return self._answer.whole([], usage)

    def whole(self, choices: Sequence[Choice], usage: openai.CompletionUsage) -> bytes:
        """Encode all of it."""
        made = [
            openai.TextChoice(
                index=index,
                text=choice.text,
                finish_reason=choice.finish,
                logprobs=text_chances(choice.chances, len(choice.echo)) if choice.wants_chances else None,
            )
            for index, choice in enumerate(choices)
        ]
        return self._answer.whole(made, usage)


class EmbeddingReply:
    """An answer of /v1/embeddings; there are no chunks of it."""

    def __init__(self, dimensions: int, encoding_format: str, model: str, fingerprint: str) -> None:
        """`dimensions` are told of each vector, made of length 1 again."""
        self._dimensions = dimensions
        self._base64 = encoding_format == "base64"
        self._model = model

    def opening(self, index: int, choice: Choice) -> bytes:
        """Encode nothing."""
        return b""

    def piece(self, index: int, choice: Choice, text: str, chances: Sequence[Chance]) -> list[bytes]:
        """Encode nothing."""
        return []

    def closing(self, index: int, choice: Choice) -> list[bytes]:
        """Encode nothing."""
        return []

    def reasoning_tokens(self, choice: Choice) -> int:
        """Count none."""
        return 0

    def usage(self, usage: openai.CompletionUsage) -> bytes:
        """Encode nothing."""
        return b""

    def whole(self, choices: Sequence[Choice], usage: openai.CompletionUsage) -> bytes:
        """Encode all of it."""
        return openai.encode(
            openai.EmbeddingList(
                data=[openai.Embedding(index=index, embedding=self._vector(choice)) for index, choice in enumerate(choices)],
                model=self._model,
                usage=openai.EmbeddingUsage(usage.prompt_tokens, usage.prompt_tokens),
            )
        )

    def _vector(self, choice: Choice) -> list[float] | str:
        vector = np.frombuffer(choice.end.vector if choice.end is not None else b"", "<f4")
        if self._dimensions < len(vector):
            cut = vector[: self._dimensions].astype(np.float64)
            length = float(np.sqrt((cut * cut).sum()))
            vector = (cut / length if length > 0 else cut).astype("<f4")
        if self._base64:
            return base64.b64encode(vector.tobytes()).decode()
        numbers: list[float] = vector.tolist()
        return numbers

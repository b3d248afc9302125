"""An answer of /v1/chat/completions: reasoning, content and tool calls told apart, whole or in chunks."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from typing import Final

from engine import answers
from engine.chances import Chance, chat_chances
from engine.llamacpp.reply import Choice
from engine.speech import Manner, Part, Speech
from haywain import openai

__all__ = ["ChatReply"]

_LETTERS: Final = string.ascii_letters + string.digits


class _Telling:
    """How far a choice was told in chunks."""

    def __init__(self, manner: Manner) -> None:
        self.speech = Speech(manner)
        self.calls = 0
        self.chances: list[Chance] = []
        """of what is not told yet"""


class _Said:
    """A choice's parts, put together."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.content = "".join(part.text for part in parts if part.kind == "content")
        self.reasoning = "".join(part.text for part in parts if part.kind == "reasoning")
        self.calls = [openai.FunctionCall(part.name, part.text) for part in parts if part.kind == "call"]


class ChatReply:
    """An answer of /v1/chat/completions."""

    def __init__(self, manner: Manner, model: str, fingerprint: str) -> None:
        """`model` as the caller named it."""
        self._manner = manner
        self._plain = manner == Manner()
        self._answer = answers.ChatAnswer(model, fingerprint=fingerprint)
        self._told: dict[int, _Telling] = {}
        self._said: dict[int, _Said] = {}
        self._ids: dict[tuple[int, int], str] = {}

    def opening(self, index: int, choice: Choice) -> bytes:
        """Encode a choice's first chunk."""
        return self._answer.role_chunk(index)

    def piece(self, index: int, choice: Choice, text: str, chances: Sequence[Chance]) -> list[bytes]:
        """Encode more of a choice; what may still become a call is held back."""
        if self._plain:
            return [self._content(index, choice, text, chances)]
        telling = self._told.setdefault(index, _Telling(self._manner))
        telling.chances += chances
        return self._chunks(index, choice, telling, telling.speech.add(text))

    def closing(self, index: int, choice: Choice) -> list[bytes]:
        """Encode what was held back, and a choice's last chunk."""
        chunks = []
        finish = choice.finish
        if not self._plain:
            telling = self._told.setdefault(index, _Telling(self._manner))
            chunks = self._chunks(index, choice, telling, telling.speech.close())
            if telling.chances:
                chunks.append(self._content(index, choice, "", telling.chances))
            finish = _finish(finish, telling.calls)
        return [*chunks, self._answer.final_chunk(finish, index)]

    def usage(self, usage: openai.CompletionUsage) -> bytes:
        """Encode the last chunk."""
        return self._answer.usage_chunk(usage)

    def reasoning_tokens(self, choice: Choice) -> int:
        """Count the tokens of a choice that were reasoning: all, when it never came to an end."""
        end = choice.end
        if not self._manner.thinks or end is None or not self._parts(choice).reasoning:
            return 0
        return end.output_tokens if end.marked < 0 else end.marked

    def whole(self, choices: Sequence[Choice], usage: openai.CompletionUsage) -> bytes:
        """Encode all of it."""
        made = [
            openai.ChatChoice(
                index=index,
                message=self._message(index, choice),
                finish_reason=_finish(choice.finish, 0 if self._plain else len(self._parts(choice).calls)),
                logprobs=chat_chances(choice.chances) if choice.wants_chances else None,
            )
            for index, choice in enumerate(choices)
        ]
        return self._answer.whole(made, usage)

    def _message(self, index: int, choice: Choice) -> openai.ChatMessage:
        if self._plain:
            return openai.ChatMessage(content=choice.text)
        said = self._parts(choice)
        message = openai.ChatMessage(content=said.content or None, reasoning_content=said.reasoning or None)
        if said.calls:
            message.tool_calls = [
                openai.ToolCall(id=self._id(index, place), function=call) for place, call in enumerate(said.calls)
            ]
        elif message.content is None:
            message.content = ""
        return message

    def _parts(self, choice: Choice) -> _Said:
        said = self._said.get(id(choice))
        if said is None:
            speech = Speech(self._manner)
            said = self._said[id(choice)] = _Said([*speech.add(choice.text), *speech.close()])
        return said

    def _chunks(self, index: int, choice: Choice, telling: _Telling, parts: Sequence[Part]) -> list[bytes]:
        chunks = []
        for part in parts:
            if part.kind == "call":
                call = openai.ToolCallDelta(
                    index=telling.calls, id=self._id(index, telling.calls), function=openai.FunctionCall(part.name, part.text)
                )
                telling.calls += 1
                chunks.append(self._answer.call_chunk(call, index))
                continue
            chances, telling.chances = telling.chances, []
            chunks.append(self._content(index, choice, part.text, chances, reasoning=part.kind == "reasoning"))
        return chunks

    def _content(self, index: int, choice: Choice, text: str, chances: Sequence[Chance], *, reasoning: bool = False) -> bytes:
        logprobs = chat_chances(chances) if choice.wants_chances else None
        return self._answer.content_chunk(text, index, reasoning=reasoning, logprobs=logprobs)

    def _id(self, index: int, place: int) -> str:
        """Give a call's id, nine letters: some templates take no others."""
        return self._ids.setdefault((index, place), "".join(secrets.choice(_LETTERS) for _ in range(9)))


def _finish(finish: str, calls: int) -> str:
    return "tool_calls" if calls and finish == "stop" else finish

"""What is checked: an engine, one of its models, and small requests that any such model answers."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from engine.check.caller import Caller, calling
from haywain import openai
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["CHAT", "COMPLETIONS", "EMBEDDINGS", "MOST_SEQUENCES", "SHORT_TOKENS", "Restart", "Target", "piece_text", "text"]

CHAT, COMPLETIONS, EMBEDDINGS = openai.ENDPOINTS
MOST_SEQUENCES = 64
"""that a check has at the engine at a time: others work with it, too"""
Restart = Callable[[], Awaitable[None]]
_LONG_WORDS = 50
_LONG_TOKENS = 200
SHORT_TOKENS = 4


class Target:
    """The engine at the other end of a channel, and the model that the rules ask."""

    restart: Restart | None = None
    """restarts the engine, where it is known how"""

    def __init__(
        self, channel: Any, stub: Any, engine: pb.Engine, model: pb.ModelDescription, endpoint: str, patience: float
    ) -> None:
        """`endpoint` is the one that the rules use; `patience` how long, in seconds, anything may take that the engine owes."""
        self.channel = channel
        self.stub = stub
        self.engine = engine
        self.model = model
        self.endpoint = endpoint
        self.patience = patience
        self._ids = itertools.count(1)

    def calling(self) -> contextlib.AbstractAsyncContextManager[Caller]:
        """Open a stream for a block."""
        return calling(self.stub, self.patience)

    @property
    def chats(self) -> bool:
        """Tell whether the model writes text, piece by piece if asked."""
        return self.endpoint != EMBEDDINGS

    def honours(self, field: str) -> bool:
        """Tell whether the model says so."""
        return not self.model.fields or field in self.model.fields

    def short(self, said: str = "Say hello.", **given: Any) -> pb.Sequence:
        """Make a sequence that is soon done. `more` goes into its body, `body` is the whole of it; its deadline is in `seconds`."""
        return self._sequence(said, SHORT_TOKENS, **given)

    def long(self, rule: str, **given: Any) -> pb.Sequence:
        """Make one that takes a model as long as its `max_tokens` allow, and anything that repeats its prompt long, too.

        No two are the same: an engine may answer what it is asked twice at once.
        """
        return self._sequence(f"{rule} {next(self._ids)}: {'a ' * _LONG_WORDS}", _LONG_TOKENS, **given)

    def _sequence(self, said: str, tokens: int, *, body: bytes | None = None, **given: Any) -> pb.Sequence:
        endpoint = given.pop("endpoint", self.endpoint)
        more, seconds = given.pop("more", {}), given.pop("seconds", None)
        made = pb.Sequence(endpoint=endpoint, attempt=1, **{"model": self.model.model, "lane": pb.LANE_STANDARD, **given})
        if not made.sequence_id:
            made.sequence_id = next(self._ids)
        if seconds is not None:
            made.deadline.FromMilliseconds(int((time.time() + seconds) * 1_000))
        if made.stream:
            more = {"stream": True, **more}
        made.request = json.dumps(self._body(said, endpoint, tokens) | more).encode() if body is None else body
        return made

    def _body(self, said: str, endpoint: str, tokens: int) -> dict[str, Any]:
        if endpoint == EMBEDDINGS:
            return {"model": self.model.model, "input": said}
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": said}]} if endpoint == CHAT else {"prompt": said}
        limit = next((field for field in ("max_tokens", "max_completion_tokens") if self.honours(field)), None)
        return {"model": self.model.model, **asked, **({limit: tokens} if limit else {})}


def text(body: bytes) -> str:
    """Read the text of an answer; empty where there is none. Raises ValueError when it is no JSON."""
    return _text(json.loads(body), "message")


def piece_text(body: bytes) -> str:
    """Read the text of a piece of an answer. Raises ValueError when it is no JSON."""
    return _text(json.loads(body), "delta")


def _text(answer: Any, member: str) -> str:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    said = ""
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict):
            part = choice.get(member) or {}
            said += str(choice.get("text") or (part.get("content") if isinstance(part, dict) else "") or "")
    return said

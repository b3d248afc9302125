"""Log-probabilities as Triton's vLLM backend tells them: for each token an object of candidates by id, the chosen one first.

[{"42":{"logprob":-0.1,"rank":1,"decoded_token":" a"},"7":{"logprob":-2.5,"rank":2,"decoded_token":" the"}}, …]
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import msgspec

from engine.chances import Chance, chat_chances, shown, text_chances

__all__ = ["Chances"]


_LEAST: Final = -9999.0


class _Candidate(msgspec.Struct):
    logprob: float | None = None
    rank: int | None = None
    decoded_token: str | None = None

    @property
    def pair(self) -> tuple[bytes, float]:
        logprob = _LEAST if self.logprob is None or not math.isfinite(self.logprob) else self.logprob
        return (self.decoded_token or "").encode(), logprob


_Positions = list[dict[str, _Candidate]] | None
_decoder = msgspec.json.Decoder(_Positions)


def _decoded(told: bytes) -> Any:
    try:
        return _decoder.decode(told)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if b"Infinity" not in told and b"NaN" not in told:
            raise
        return msgspec.convert(json.loads(told), _Positions)  # Python wrote it, and reads it


class Chances:
    """Those of one choice, told with its text: of what a stop string cut off none are."""

    def __init__(self, count: int) -> None:
        """`count` of the likeliest are told beside the chosen one."""
        self._count = count
        self._chances: list[Chance] = []
        self._shown = 0
        """how many of them were told"""
        self._characters = 0
        """of the tokens that were told"""
        self._text = 0
        """characters of text that was told"""

    def forget(self) -> None:
        """Begin again."""
        self._chances.clear()
        self._shown = self._characters = self._text = 0

    def add(self, told: bytes) -> None:
        """Take those of a response; an empty text for none. Raises ValueError for what can't be read."""
        try:
            positions = _decoded(told) if told else None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"log-probabilities: {error}") from None
        for candidates in positions or []:
            if not candidates:
                continue
            piece, logprob = next(iter(candidates.values())).pair
            ranked = sorted((one for one in candidates.values() if one.rank), key=lambda one: one.rank or 0)
            self._chances.append(Chance(piece, logprob, [one.pair for one in ranked[: self._count]]))

    def of(self, text: str, *, chat: bool) -> dict[str, Any]:
        """Tell those of more text: of tokens that begin in it, and of any behind that have no text."""
        start, first = self._characters, self._shown
        self._text += len(text)
        for chance in self._chances[first:]:
            if self._characters >= self._text and chance.piece:
                break
            self._characters += len(shown(chance.piece))
            self._shown += 1
        taken = self._chances[first : self._shown]
        return chat_chances(taken) if chat else text_chances(taken, start)

    def whole(self, text: str, *, chat: bool) -> dict[str, Any]:
        """Tell those of the whole text, of which pieces may have been told."""
        self.of(text[self._text :], chat=chat)
        taken = self._chances[: self._shown]
        return chat_chances(taken) if chat else text_chances(taken, 0)

"""A grammar that a sequence's text must follow, token by token.

Looking at one token costs microseconds, at all of them milliseconds, and the model's first choice nearly always fits: so callers
ask about that one first. A token that doesn't fit must never be accepted, for which the library ends the process; `accept` looks
before it does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.llamacpp.native import complaints, library
from engine.llamacpp.vocabulary import Vocabulary

__all__ = ["BadGrammarError", "Grammar"]

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data"""


class BadGrammarError(ValueError):
    """The library refuses this grammar."""


class Grammar:
    """A grammar and how far a text has come in it. Not for two threads at a time."""

    def __init__(self, vocabulary: Vocabulary, gbnf: str) -> None:
        """Compile; the rule `root` is where it begins. Raises BadGrammarError. The vocabulary must outlive it."""
        complaints()
        self._native: Any = library.llama_sampler_init_grammar(vocabulary.handle, gbnf.encode(), b"root")
        if not self._native:
            raise BadGrammarError(complaints())
        self._size = vocabulary.size

    def permits(self, token: int) -> bool:
        """Tell whether a token may come next."""
        return bool(self.permitted(np.array([token])).size)

    def permitted(self, tokens: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Give those of `tokens` that may come next, in their order."""
        if not len(tokens) or not 0 <= int(tokens.min()) <= int(tokens.max()) < self._size:
            raise ValueError(f"tokens are of 0 to {self._size}")
        candidates = np.zeros(len(tokens), _CANDIDATE)
        candidates["id"] = tokens
        data = candidates.ctypes.data_as(library.llama_token_data_p)
        several = library.llama_token_data_array(data=data, size=len(tokens), selected=-1, sorted=False)
        library.llama_sampler_apply(self._native, several)
        fitting: npt.NDArray[np.int64] = candidates["id"][np.isfinite(candidates["logit"])].astype(np.int64)
        return fitting

    def accept(self, token: int) -> None:
        """Go on by a token. Raises ValueError for one that doesn't fit."""
        if not self.permits(token):
            raise ValueError(f"token {token} does not fit the grammar")
        library.llama_sampler_accept(self._native, token)

    def close(self) -> None:
        """Free it; may be called again."""
        native, self._native = self._native, None
        if native:
            library.llama_sampler_free(native)

    def __del__(self) -> None:
        """Free it, where `close` wasn't called."""
        if getattr(self, "_native", None):
            self.close()

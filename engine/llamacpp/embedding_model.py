"""A model that makes a vector of a text, and a context in which several texts are evaluated at once.

Texts of one call are sequences of their own: no token looks at another text's. How many share a call changes a vector's last bits
only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.llamacpp.model import Batch, DecodeFailed, Tokens, load
from engine.llamacpp.native import complaints, library
from engine.llamacpp.vocabulary import Vocabulary
from haywain.errors import SettingsError

__all__ = ["POOLING", "EmbeddingModel", "Vector"]

POOLING: Final = {"mean": 1, "cls": 2, "last": 3}
"""llama_pooling_type by name: the mean of a text's tokens, its first, or its last one"""
_STEP: Final = 256

Vector = npt.NDArray[np.float32]


class EmbeddingModel:
    """Weights and a context for `slots` texts at a time, of `context_length` tokens at most each. For one thread."""

    def __init__(self, path: Path, *, slots: int, context_length: int, threads: int, pooling: str, gpu_layers: int = 0) -> None:
        """Load. Raises SettingsError in one clear line."""
        self.slots = slots
        self.context_length = context_length
        with contextlib.ExitStack() as undo:
            model = load(path, gpu_layers)
            undo.callback(library.llama_model_free, model)
            self.vocabulary = Vocabulary(model)
            # A text is evaluated at once or not at all: its tokens look in both directions.
            self._batch = Batch(context_length)
            undo.callback(self._batch.close)
            self._context = library.llama_init_from_model(model, self._parameters(threads, pooling))
            if not self._context:
                raise SettingsError(f"model {path} has no room to run: {complaints()}")
            undo.callback(library.llama_free, self._context)
            self._memory = library.llama_get_memory(self._context)
            self._width: int = library.llama_model_n_embd_out(model)
            self._undo = undo.pop_all()

    def _parameters(self, threads: int, pooling: str) -> Any:
        parameters = library.llama_context_default_params()
        parameters.n_ctx = -(-self.context_length // _STEP) * _STEP
        parameters.n_seq_max = self.slots
        parameters.n_batch = parameters.n_ubatch = self.context_length
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.kv_unified = True
        parameters.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.embeddings = True
        parameters.pooling_type = POOLING[pooling]
        parameters.no_perf = True
        return parameters

    def warm_up(self) -> None:
        """Embed something, so that what can't run here ends the process now and not with a caller's request."""
        self.embed([np.zeros(min(8, self.context_length), np.int32)])

    def embed(self, texts: Sequence[Tokens]) -> list[Vector]:
        """Make a vector of each text, of length 1; together they have at most `context_length` tokens.

        Raises DecodeFailed, and ValueError for texts that make no sense.
        """
        batch = self._batch
        if not 0 < len(texts) <= self.slots:
            raise ValueError(f"{len(texts)} texts don't fit {self.slots} slots")
        batch.clear()
        for slot, tokens in enumerate(texts):
            batch.add(slot, tokens, 0, logits=True)
        batch.want_all()
        if not batch.tokens_within(self.vocabulary.size):
            raise ValueError("all tokens are of the vocabulary")
        if self._memory:
            library.llama_memory_clear(self._memory, False)
        # Without a KV cache this is llama_encode.
        status = library.llama_decode(self._context, batch.native())
        if status != 0:
            raise DecodeFailed(f"llama_decode answered {status} for {batch.size} tokens of {len(texts)} texts: {complaints()}")
        return [self._vector(slot) for slot in range(len(texts))]

    def _vector(self, slot: int) -> Vector:
        numbers = library.llama_get_embeddings_seq(self._context, slot)
        if not numbers:
            raise DecodeFailed(f"there is no vector for text {slot}")
        vector = np.ctypeslib.as_array(numbers, (self._width,)).astype(np.float64)
        length = float(np.sqrt((vector * vector).sum()))
        return (vector / length if length > 0 else vector).astype(np.float32)

    def close(self) -> None:
        """Free everything."""
        self._undo.close()

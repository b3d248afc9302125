"""A model with its weights and one context of many slots.

Every argument is checked here before it goes to the library, which answers some bad ones by ending the process. Each slot is a
sequence of llama.cpp, as a rule with a KV stream of its own: what one holds never moves because of another. With fewer cells than
all slots could fill, they share them.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.llamacpp import policy
from engine.llamacpp.cells import Cells
from engine.llamacpp.native import amx_is_compiled_in, complaints, library, loaded
from engine.llamacpp.policy import Layout
from engine.llamacpp.vocabulary import Vocabulary
from haywain.errors import HaywainError, SettingsError

__all__ = ["MAX_SLOTS", "Batch", "Cache", "DecodeFailed", "KvFull", "Model", "Tokens", "load"]

MAX_SLOTS: Final = 256
"""llama.cpp's LLAMA_MAX_SEQ"""
_FULL: Final = 1
"""llama_decode's status for a KV cache without room"""
_STEP: Final = 256
"""a stream's length is rounded up to this"""

Tokens = npt.NDArray[np.int32]


class DecodeFailed(HaywainError):
    """llama.cpp could not evaluate a batch."""


class KvFull(DecodeFailed):
    """The KV cache has no room for a batch; it is as it was before."""


class Batch:
    """A llama_batch that is filled in place; one sequence id a token."""

    def __init__(self, capacity: int) -> None:
        """Make room for `capacity` tokens."""
        self.capacity = capacity
        self.size = 0
        self.outputs = 0
        self._native = library.llama_batch_init(capacity, 0, 1)
        self._tokens = np.ctypeslib.as_array(self._native.token, (capacity,))
        self._positions = np.ctypeslib.as_array(self._native.pos, (capacity,))
        self._logits = np.ctypeslib.as_array(self._native.logits, (capacity,))
        np.ctypeslib.as_array(self._native.n_seq_id, (capacity,))[:] = 1
        # One flat array in place of an allocation a token.
        self._slots: Tokens = np.zeros(capacity, np.int32)
        pointers = ctypes.cast(self._native.seq_id, ctypes.POINTER(ctypes.c_void_p))
        self._allocated = [pointers[place] for place in range(capacity)]
        for place in range(capacity):
            pointers[place] = self._slots.ctypes.data + self._slots.itemsize * place

    def clear(self) -> None:
        """Empty the batch."""
        self.size = self.outputs = 0

    def add(self, slot: int, tokens: Tokens | int, position: int, *, logits: bool) -> None:
        """Append tokens of a slot from `position` on; with `logits`, the last one's are wanted."""
        count = 1 if isinstance(tokens, int) else len(tokens)
        if count < 1 or self.size + count > self.capacity:
            raise ValueError(f"{count} tokens don't fit behind {self.size} of {self.capacity}")
        end = self.size + count
        self._tokens[self.size : end] = tokens
        self._positions[self.size : end] = np.arange(position, position + count, dtype=np.int32)
        self._slots[self.size : end] = slot
        self._logits[self.size : end] = 0
        if logits:
            self._logits[end - 1] = 1
            self.outputs += 1
        self.size = end

    def want_all(self) -> None:
        """Ask for what comes of every token, as pooling needs it."""
        self._logits[: self.size] = 1
        self.outputs = self.size

    def native(self) -> Any:
        """Give the llama_batch."""
        self._native.n_tokens = self.size
        return self._native

    def tokens_within(self, limit: int) -> bool:
        """Tell whether every token is in [0, limit)."""
        used = self._tokens[: self.size]
        return bool((used >= 0).all() and (used < limit).all())

    def runs(self) -> Iterable[tuple[int, int, int]]:
        """Give (slot, first position, position after the last) of each run of one slot's tokens."""
        start = 0
        for place in range(1, self.size + 1):
            if place == self.size or self._slots[place] != self._slots[start]:
                yield int(self._slots[start]), int(self._positions[start]), int(self._positions[place - 1]) + 1
                start = place

    def close(self) -> None:
        """Free it."""
        pointers = ctypes.cast(self._native.seq_id, ctypes.POINTER(ctypes.c_void_p))
        for place, pointer in enumerate(self._allocated):
            pointers[place] = pointer
        library.llama_batch_free(self._native)


def load(path: Path, gpu_layers: int = 0) -> Any:
    """Load a llama_model with its weights, those of its last `gpu_layers` into a GPU. Raises SettingsError."""
    parameters = library.llama_model_default_params()
    parameters.use_extra_bufts = not amx_is_compiled_in()
    return loaded(path, parameters, gpu_layers)


class Cache(NamedTuple):
    """The KV cache of a model."""

    cells: int = 0
    """tokens that all slots share; 0: as many as fill them all"""
    kind: str = policy.F16
    """of policy.KV_TYPES"""
    gpu_layers: int = 0
    """the model's last layers, which a GPU holds: their weights, and their part of this cache"""


USUAL: Final = Cache()


class Model:
    """Weights and a context of `slots` sequences, `context_length` tokens each. For one thread."""

    def __init__(
        self, path: Path, *, slots: int, context_length: int, batch_tokens: int, threads: int, cache: Cache = USUAL
    ) -> None:
        """Load. Raises SettingsError in one clear line."""
        if not 1 <= slots <= MAX_SLOTS:
            raise SettingsError(f"engine.llamacpp.slots must be 1 to {MAX_SLOTS}, not {slots}")
        self.slots = slots
        self.context_length = context_length
        cells = cache.cells
        self._cache = cache
        self.overcommitted = 0 < cells < slots * context_length
        """whether the slots can't all be full at the same time"""
        self.cells = max(cells, context_length) if self.overcommitted else slots * context_length
        self.layout = Layout(flash=False, unified=True) if self.overcommitted else Layout()
        self.chosen_from = 0
        """rows of logits that were given so far: as many tokens as were generated"""
        self.seconds = 0.0
        """in which the library evaluated, so far"""
        self.has_one_layout = self.overcommitted or cache.kind != policy.F16
        self._threads = threads
        self._context: Any = None
        with contextlib.ExitStack() as undo:
            self._model = load(path, cache.gpu_layers)
            undo.callback(library.llama_model_free, self._model)
            self.vocabulary = Vocabulary(self._model)
            self.batch = Batch(batch_tokens)
            undo.callback(self.batch.close)
            undo.callback(self._free_context)
            if not self.lay_out(self.layout):
                size = self.vocabulary.kv_bytes_per_token(policy.KV_TYPES[cache.kind]) * self._all_cells() / 2**20
                reason = f"{slots} slots of {context_length} tokens need {size:.0f} MiB of KV cache"
                raise SettingsError(f"model {path} has no room to run: {reason}; {complaints()}")
            self._undo = undo.pop_all()

    def lay_out(self, layout: Layout) -> bool:
        """Empty every slot and compute in another way from now on; False when there is no memory for it, and nothing runs then."""
        if self.overcommitted and not layout.unified:
            raise ValueError("slots that share their cells need a unified KV cache")
        if self._cache.kind != policy.F16 and not layout.flash:
            raise ValueError("a KV cache of smaller numbers needs flash attention")
        self._free_context()
        self._lengths = [0] * self.slots
        self._cells = Cells(self.cells, self.slots)
        self.layout = layout
        self._context = library.llama_init_from_model(self._model, self._parameters(layout))
        if not self._context:
            return False
        self._memory = library.llama_get_memory(self._context)
        return True

    def _free_context(self) -> None:
        context, self._context = self._context, None
        if context:
            library.llama_free(context)

    def _parameters(self, layout: Layout) -> Any:
        parameters = library.llama_context_default_params()
        parameters.n_ctx = self._all_cells()
        parameters.n_seq_max = self.slots
        # Alike, so that no chunk is cut into one with a single token at its end, which would be computed in another way.
        parameters.n_batch = parameters.n_ubatch = self.batch.capacity
        parameters.n_threads = parameters.n_threads_batch = self._threads
        parameters.kv_unified = layout.unified
        parameters.flash_attn_type = (
            library.LLAMA_FLASH_ATTN_TYPE_ENABLED if layout.flash else library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        parameters.type_k = parameters.type_v = getattr(library, f"GGML_TYPE_{self._cache.kind.upper()}")
        parameters.no_perf = True
        return parameters

    def _all_cells(self) -> int:
        if self.overcommitted:
            return -(-self.cells // _STEP) * _STEP
        return -(-self.context_length // _STEP) * _STEP * self.slots

    def warm_up(self) -> None:
        """Evaluate a few tokens, so that what can't run here ends the process now and not with a caller's request."""
        self.batch.clear()
        self.batch.add(0, np.zeros(min(8, self.batch.capacity, self.context_length), np.int32), 0, logits=True)
        self.decode(self.batch)
        self.forget(0)

    def length(self, slot: int) -> int:
        """Tell how many tokens of a slot are in the KV cache."""
        return self._lengths[slot]

    @property
    def free_cells(self) -> int:
        """How many cells nobody holds; enough, where slots don't share them."""
        return self._cells.free if self.overcommitted else self.cells

    def used_by(self, slots: Iterable[int]) -> int:
        """Count the cells that these slots hold."""
        return self._cells.used_by(slots)

    def decode(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Evaluate; give the logits wanted, in the order of the batch: a view, valid until the next call.

        Raises KvFull; DecodeFailed, after which nothing in the KV cache can be relied on; ValueError for a batch without sense.
        """
        lengths = self._followed(batch)
        if batch.size > self.free_cells:
            raise KvFull(f"{batch.size} tokens don't fit {self.free_cells} free cells of the KV cache")
        began = time.monotonic()
        status = library.llama_decode(self._context, batch.native())
        self.seconds += time.monotonic() - began
        if status == _FULL:
            raise KvFull(f"the KV cache has no room for {batch.size} tokens")
        self._lengths = lengths
        if self.overcommitted:
            for slot, start, end in batch.runs():
                self._cells.grow(slot, end - start)
        if status != 0:
            raise DecodeFailed(f"llama_decode answered {status} for {batch.size} tokens: {complaints()}")
        self.chosen_from += batch.outputs
        if not batch.outputs:
            return np.empty((0, self.vocabulary.size), np.float32)
        return np.ctypeslib.as_array(library.llama_get_logits(self._context), (batch.outputs, self.vocabulary.size))

    def _followed(self, batch: Batch) -> list[int]:
        """Tell how many tokens slots hold once a batch is evaluated. Raises ValueError when it makes no sense."""
        if not batch.size or not batch.tokens_within(self.vocabulary.size):
            raise ValueError("a batch has tokens, all of them of the vocabulary")
        lengths = self._lengths.copy()
        for slot, start, end in batch.runs():
            if not 0 <= slot < self.slots:
                raise ValueError(f"a batch names slot {slot}, but there are {self.slots} slots")
            if start != lengths[slot] or end > self.context_length:
                held = f"slot {slot} holds {lengths[slot]} of {self.context_length} tokens"
                raise ValueError(f"{held}; {start} to {end} can't follow")
            lengths[slot] = end
        return lengths

    def forget(self, slot: int, keep: int = 0) -> None:
        """Drop a slot's tokens from `keep` on."""
        if not 0 <= slot < self.slots or not 0 <= keep <= self._lengths[slot]:
            raise ValueError(f"slot {slot} of {self.slots} can't be cut to {keep} tokens")
        library.llama_memory_seq_rm(self._memory, slot, keep or -1, -1)
        self._lengths[slot] = keep
        if self.overcommitted:
            self._cells.cut(slot, keep)

    def copy(self, source: int, target: int, keep: int) -> None:
        """Make a slot hold the first `keep` tokens of another one, in place of what it held."""
        if not 0 <= source < self.slots or source == target or not 0 < keep <= self._lengths[source]:
            raise ValueError(f"slot {source} of {self.slots} has no {keep} tokens to copy to slot {target}")
        self.forget(target)
        # From one stream to another all is copied or nothing; a part ends the process.
        end = keep if self.layout.unified else -1
        library.llama_memory_seq_cp(self._memory, source, target, 0 if self.layout.unified else -1, end)
        self._lengths[target] = self._lengths[source]
        if self.overcommitted:
            self._cells.share(source, target, self._lengths[source])
        self.forget(target, keep)

    def close(self) -> None:
        """Free everything."""
        self._undo.close()

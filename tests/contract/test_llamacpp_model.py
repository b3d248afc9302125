"""The door to the library: what would end the process is refused before the call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny_gguf

from engine.llamacpp.model import Batch, Model
from haywain.errors import SettingsError

SLOTS = 6


@pytest.fixture
def model() -> Iterator[Model]:
    """Give a model with six slots."""
    model = Model(tiny_gguf.tiny_gguf(), slots=SLOTS, context_length=tiny_gguf.CONTEXT, batch_tokens=192, threads=1)
    yield model
    model.close()


def fill(model: Model, slot: int, count: int) -> None:
    """Evaluate so many tokens in a slot."""
    model.batch.clear()
    model.batch.add(slot, np.full(count, 65, np.int32), 0, logits=False)
    model.decode(model.batch)
    assert model.length(slot) == count


def test_copies_that_make_no_sense_never_reach_the_library(model: Model) -> None:
    """A part of a stream, a missing slot or more than is held would end the process: they are refused before the call."""
    fill(model, 0, 18)
    for source, target, keep in ((0, 0, 3), (0, SLOTS, 3), (SLOTS, 0, 3), (1, 0, 3), (0, 1, 100), (0, 1, 0), (-1, 1, 3)):
        with pytest.raises(ValueError, match="slot"):
            model.copy(source, target, keep)
    model.copy(0, 1, 5)
    assert (model.length(0), model.length(1)) == (18, 5)


def test_a_batch_that_makes_no_sense_never_reaches_the_library(model: Model) -> None:
    """Wrong tokens, slots, positions and sizes are refused before the call, some of which would end the process."""
    cases = [(0, 10**6, 0), (0, -1, 0), (SLOTS, 1, 0), (0, 1, 5), (0, 1, -1)]
    for slot, token, position in cases:
        model.batch.clear()
        model.batch.add(slot, token, position, logits=True)
        with pytest.raises(ValueError, match=r"batch|slot"):
            model.decode(model.batch)
    model.batch.clear()
    with pytest.raises(ValueError, match="batch"):
        model.decode(model.batch)
    with pytest.raises(ValueError, match="fit"):
        model.batch.add(0, np.zeros(model.batch.capacity + 1, np.int32), 0, logits=False)
    for slot, keep in ((SLOTS, 0), (-1, 0), (0, 1)):
        with pytest.raises(ValueError, match="slot"):
            model.forget(slot, keep)
    fill(model, 1, 3)


def test_a_batch_is_freed_with_its_own_pointers() -> None:
    """Making and freeing batches again and again doesn't disturb the allocator."""
    for size in (1, 2, 64, 511):
        Batch(size).close()


def test_what_cannot_be_loaded_is_told_in_one_line(tmp_path: Any) -> None:
    """A truncated file and one that is all wrong give a SettingsError with the library's reason."""
    whole = tiny_gguf.tiny_gguf().read_bytes()
    cases = {"half.gguf": whole[: len(whole) // 2], "header.gguf": whole[:300], "magic.gguf": b"GGUF" + bytes(100)}
    for name, content in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(SettingsError, match="can't be loaded") as raised:
            Model(path, slots=1, context_length=256, batch_tokens=192, threads=1)
        assert "\n" not in raised.value.message
        assert name in raised.value.message


def test_too_many_slots_are_refused_before_the_library_sees_them() -> None:
    """llama.cpp knows 256 sequences; more are a settings error."""
    with pytest.raises(SettingsError, match="1 to 256, not 257"):
        Model(tiny_gguf.tiny_gguf(), slots=257, context_length=256, batch_tokens=300, threads=1)

"""What can't work is told before, or when, the backend starts; what isn't set has sensible defaults."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tiny_gguf
from llamacpp_running import Results, decoders, settings, started

from engine.llamacpp import memory
from engine.llamacpp.backend import create, wanted
from engine.llamacpp.vocabulary import Vocabulary
from haywain.errors import SettingsError
from haywain.settings import EngineSettings


def test_settings_that_cannot_work_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """A missing file, another format, a context the model doesn't have, too many slots: one line each."""
    other = tmp_path / "other.gguf"
    other.write_bytes(b"not a model at all")
    tiny = tiny_gguf.tiny_gguf()
    cases: list[tuple[EngineSettings, str]] = [
        (settings(""), "model_path is not set"),
        (settings(tmp_path / "missing.gguf"), "No such file"),
        (settings(other), "not a GGUF"),
        (settings(tiny, context_length=1_000), "1000, but the model's is 512"),
        (settings(tiny, slots=257), "slots is 257"),
    ]
    for chosen, reason in cases:
        with pytest.raises(SettingsError, match=reason) as raised:
            create(chosen)
        assert "\n" not in raised.value.message


async def test_a_truncated_model_is_a_settings_error_at_start(tmp_path: Path) -> None:
    """A file whose weights are cut off is refused when it is loaded, in one line, and no process is left."""
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_gguf.tiny_gguf().read_bytes()[:-100_000])
    with pytest.raises(SettingsError, match="can't be loaded") as raised:
        await create(settings(path)).start(Results())
    assert "\n" not in raised.value.message
    assert not decoders()


async def test_what_does_not_fit_is_refused_before_anything_starts() -> None:
    """More decoders than any machine has memory for: one line with what they need, and no process was started."""
    backend = create(settings(tiny_gguf.tiny_gguf(), workers=100_000))
    with pytest.raises(
        SettingsError, match=r"needs \d+ MiB of memory .*, but \d+ MiB are available: lower engine\.llamacpp"
    ) as raised:
        await backend.start(Results())
    assert "\n" not in raised.value.message
    assert not decoders()
    await backend.close()


async def test_what_is_stated_covers_what_is_taken() -> None:
    """Decoders that were full have no more memory to themselves than was counted before they started."""
    async with started(slots=16) as running:
        results = await running.ended(*(running.begin(f"{number} " * 100, max_tokens=100, temperature=1.0) for number in range(40)))
        assert {result.status_code for result in results} == {200}
        taken = sum(decoder.memory_full_info().uss for decoder in decoders())
    path = tiny_gguf.tiny_gguf()
    vocabulary = Vocabulary.load(path)
    need = memory.need(wanted(settings(path, slots=16).llamacpp, path, vocabulary, 2), vocabulary, 2)
    vocabulary.close()
    assert 0 < taken <= need.total


def test_slots_and_context_have_sensible_defaults() -> None:
    """Without settings there is a decoder a core, with 16 slots of the model's whole (small) context."""
    backend = create(settings(tiny_gguf.tiny_gguf(), workers=0, slots=0))
    assert backend.slots == 16 * len(os.sched_getaffinity(0))

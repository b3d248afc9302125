"""Running a model as a copy with 16-bit weights."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
import tiny_gguf
from llamacpp_running import Results, started

from engine.llamacpp import transcode, weights
from engine.llamacpp.backend import create
from engine.llamacpp.native import library
from engine.llamacpp.vocabulary import Vocabulary
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import SettingsError
from haywain.settings import EngineSettings, LlamaCppSettings

Q4_1 = 3


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder in which copies are kept, in a cache of the test's own."""
    monkeypatch.setenv("HAYWAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "transcoded"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Give the tiny model in Q4_1."""
    path = tmp_path / "tiny.Q4_1.gguf"
    parameters = library.llama_model_quantize_default_params()
    parameters.ftype = Q4_1
    assert library.llama_model_quantize(str(tiny_gguf.tiny_gguf()).encode(), str(path).encode(), parameters) == 0
    return path


async def test_a_slow_format_runs_as_a_copy(cache: Path, small: Path) -> None:
    """The copy is made once, named by the original's digest; the model keeps that digest, marked, and answers."""
    digest, answers, made = weights.digest(small), [], set()
    for _ in range(2):
        async with started(small) as running:
            (model,) = running.models
            answers.append(json.loads((await running.chat("hello")).body))
            (copy,) = cache.iterdir()
            made.add(copy.stat().st_mtime_ns)
            assert model.digest == f"{digest}+f16"
            assert copy.name == f"{digest.removeprefix('sha256:')}-f16.gguf"
            assert answers[-1]["system_fingerprint"].endswith("_f16")
    assert len(made) == 1
    assert answers[0]["choices"] == answers[1]["choices"]
    copied = Vocabulary.load(copy)
    assert copied.metadata("general.file_type") == "1"
    copied.close()


async def test_off_runs_the_file_itself(cache: Path, small: Path) -> None:
    """Nothing is made, and the digest is bare."""
    async with started(small, transcode="off") as running:
        (model,) = running.models
        assert model.digest == weights.digest(small)
        assert (await running.chat()).status_code == 200
    assert not cache.exists()


async def test_a_deterministic_engine_says_the_same_beside_anything(cache: Path, small: Path) -> None:
    """It promises so, has the slots that were asked for, and 24 rows, sampled ones too, are alone what they are together."""
    async with started(small, deterministic=True) as running:
        assert running.models[0].deterministic
        assert running.backend.slots == 6

        def begin(n: int, lane: pb.Lane = pb.LANE_STANDARD) -> int:
            return running.begin(f"{'shared ' * (n % 3) * 20}row {n}", lane=lane, temperature=n % 2, seed=n, max_tokens=24)

        together = [json.loads(result.body)["choices"] for result in await running.ended(*map(begin, range(24)))]
        for n in range(24):
            (result,) = await running.ended(begin(n, pb.LANE_INTERACTIVE))
            assert json.loads(result.body)["choices"] == together[n]


def test_only_slow_formats_and_not_too_large_ones_are_copied(small: Path) -> None:
    """A file of another format never is; a large one only when asked for; a wrong mode is a settings error."""
    slow, fast = Vocabulary.load(small), Vocabulary.load(tiny_gguf.tiny_gguf())
    assert transcode.wanted("auto", small, slow)
    assert not transcode.wanted("off", small, slow)
    assert not transcode.wanted("on", tiny_gguf.tiny_gguf(), fast)
    with small.open("ab") as file:
        file.truncate(400 * 2**20)
    assert not transcode.wanted("auto", small, slow)
    assert transcode.wanted("on", small, slow)
    with pytest.raises(SettingsError, match="transcode"):
        transcode.wanted("always", small, slow)
    slow.close()
    fast.close()


async def test_a_copy_that_cannot_be_made_is_done_without(cache: Path, small: Path) -> None:
    """No folder for it, or a file that is broken: the original runs, and nothing half made is left."""
    cache.parent.write_text("a file where the cache should be")
    async with started(small) as running:
        assert running.models[0].digest == weights.digest(small)
    cache.parent.unlink()
    broken = small.with_name("broken.gguf")
    broken.write_bytes(small.read_bytes()[:-1_000])
    assert await transcode.copied(broken, "sha256:aa") is None
    assert list(cache.iterdir()) == []


async def test_what_was_left_behind_is_removed(cache: Path, small: Path) -> None:
    """Parts of an hour ago go; younger ones may be somebody's, and be gone any moment; cancelling ends the process that writes."""
    cache.mkdir(parents=True)
    (cache / "gone.gguf.3.part").symlink_to(cache / "nowhere")  # is listed, and isn't there when it is looked at
    old, young = cache / "a.gguf.1.part", cache / "b.gguf.2.part"
    for part in (old, young):
        part.write_bytes(b"half")
    os.utime(old, (time.time() - 7_200,) * 2)
    making = asyncio.create_task(transcode.copied(small, "sha256:bb"))
    await asyncio.sleep(0)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert await transcode.copied(small, "sha256:cc") == cache / "cc-f16.gguf"
    assert (old.exists(), young.exists()) == (False, True)


def test_wrong_settings_are_refused(small: Path) -> None:
    """A layout that isn't one, in one line."""
    with pytest.raises(SettingsError, match="layout is 'flat', expected one of: auto, flash, plain, unified"):
        create(EngineSettings(llamacpp=LlamaCppSettings(model_path=str(small), layout="flat")))


async def test_a_model_that_does_not_fit_is_refused_at_start(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any decoder starts, with the numbers."""
    monkeypatch.setattr("engine.llamacpp.memory.available", lambda: 50 * 2**20)
    backend = create(EngineSettings(llamacpp=LlamaCppSettings(model_path=str(small), transcode="off")))
    with pytest.raises(SettingsError, match=r"needs \d+ MiB .*but 50 MiB"):
        await backend.start(Results())
    assert backend.decoder_pids == []
    await backend.close()

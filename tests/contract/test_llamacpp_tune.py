"""`haywain engine tune`: a table, a file, and the next start."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import minilm
import msgspec
import pytest
import tiny_gguf

from engine import tuned
from engine.llamacpp import policy
from engine.llamacpp.tune import Tuning, tune
from haywain.errors import SettingsError
from haywain.settings import EngineSettings, LlamaCppSettings, Settings


def chosen(data: Path, **llamacpp: object) -> Settings:
    """Make settings of an engine with the tiny model."""
    made = LlamaCppSettings(**({"model_path": str(tiny_gguf.tiny_gguf())} | llamacpp))  # type: ignore[arg-type]
    return Settings(data_dir=str(data), engine=EngineSettings(llamacpp=made))


def test_tuning_writes_what_the_next_start_uses(data_dir: Path) -> None:
    """The command prints what it measured and writes a file for this model; a setting that somebody chose isn't touched."""
    command = [sys.executable, "-m", "haywain", "engine", "tune", "--data", str(data_dir), "--seconds", "1"]
    command += ["--model", str(tiny_gguf.tiny_gguf()), "--set", "engine.llamacpp.slots=3"]
    command += ["--set", "engine.llamacpp.layout=plain"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "as they are" in done.stdout
    assert "written to" in done.stdout
    assert "batch_tokens 384" in done.stdout
    assert not any(word in done.stdout for word in ("slots", "layout", "transcode"))
    found = msgspec.json.decode(tuned.path(chosen(data_dir)).read_bytes(), type=tuned.Tuned)
    assert found.cores == len(os.sched_getaffinity(0))
    assert set(found.chosen) <= {"workers", "threads", "batch_tokens"}
    assert found.tokens_per_second > 0


def test_what_was_found_is_used_where_it_fits(data_dir: Path) -> None:
    """Defaults are replaced for that model file and machine, with no GPU if it had none; not what is set, not when it is broken."""
    model = shutil.copy(tiny_gguf.tiny_gguf(), data_dir / "model.gguf")
    settings = chosen(data_dir, model_path=str(model))
    assert tuned.applied(settings) is settings.engine
    status = model.stat()
    measured = tuned.Tuned(
        model_path=str(model),
        model_size=status.st_size,
        model_mtime_ns=status.st_mtime_ns,
        cores=len(os.sched_getaffinity(0)),
        chosen={"workers": 1, "threads": 2, "slots": 8, "layout": "plain", "context_length": 7},
        tokens_per_second=1.0,
    )
    tuned.write(settings, measured)
    used = tuned.applied(settings).llamacpp
    assert (used.workers, used.threads, used.slots, used.layout) == (1, 2, 8, "plain")
    assert used.context_length == 0
    used = tuned.applied(chosen(data_dir, model_path=str(model), slots=5)).llamacpp
    assert (used.workers, used.threads, used.slots) == (1, 2, 5)
    tuned.write(settings, msgspec.structs.replace(measured, cores=4_096))
    assert tuned.applied(settings) is settings.engine
    tuned.write(settings, msgspec.structs.replace(measured, gpu=True))
    assert tuned.applied(settings) is settings.engine
    tuned.write(settings, msgspec.structs.replace(measured, model_size=1))
    assert tuned.applied(settings) is settings.engine
    tuned.path(settings).write_text("{")
    assert tuned.applied(settings) is settings.engine


def test_what_has_no_choice_is_not_tried(data_dir: Path) -> None:
    """Layouts are tried, but not where slots share their cells, which leaves one; models that embed have none, nor steps."""

    def tried(**llamacpp: object) -> set[str]:
        with contextlib.closing(Tuning(chosen(data_dir, **llamacpp).engine.llamacpp, print, offered=False)) as tuning:
            return {name for group in tuning.groups() for changes in group.tries for name in changes} - {"workers", "threads"}

    assert tried(slots=2) == {"transcode", "batch_tokens", "layout"}
    assert tried(kv_tokens=600) == {"slots", "transcode", "batch_tokens"}
    assert tried(deterministic=True) == {"slots", "transcode", "batch_tokens"}
    assert tried(model_path=str(minilm.minilm_gguf())) == {"slots", "transcode"}


def test_a_gpu_has_one_decoder(data_dir: Path) -> None:
    """Where layers are offloaded, other numbers of decoders and threads aren't tried; with none of them, all is as ever."""

    def tried(**llamacpp: object) -> set[str]:
        given = chosen(data_dir, **llamacpp).engine.llamacpp
        with contextlib.closing(Tuning(given, print, offered=True)) as tuning:
            return {name for group in tuning.groups() for changes in group.tries for name in changes}

    assert tried() == {"slots", "transcode", "batch_tokens", "layout"}
    assert tried(gpu_layers=0) - tried() == ({"workers", "threads"} if len(os.sched_getaffinity(0)) > 1 else set())


async def test_embedding_models_are_tuned_by_texts(data_dir: Path) -> None:
    """A model that embeds is measured by texts; what can't start is told."""
    lines: list[str] = []
    settings = chosen(data_dir, model_path=str(minilm.minilm_gguf()), slots=4)
    found = await tune(settings, 0.7, lines.append)
    assert found.tokens_per_second > 0
    divisions = policy.divisions(len(os.sched_getaffinity(0)))
    assert sum(line.startswith(("as they are", "workers")) for line in lines) == len(divisions)
    with pytest.raises(SettingsError):
        await tune(chosen(data_dir, model_path="/nowhere.gguf"), 1.0, lines.append)


@pytest.mark.parametrize(
    ("cores", "divisions"),
    [(1, [(1, 1)]), (2, [(2, 1), (1, 2)]), (6, [(6, 1), (3, 2), (1, 6)]), (8, [(8, 1), (4, 2), (2, 4), (1, 8)])],
)
def test_cores_are_divided(cores: int, divisions: list[tuple[int, int]]) -> None:
    """Every division uses all of them, and one decoder a core is the first."""
    assert policy.divisions(cores) == divisions

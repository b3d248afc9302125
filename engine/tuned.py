"""What `haywain engine tune` found out: a file in the data folder, and the settings of the next start.

It holds for the model file and the machine's cores that it was measured with, with a GPU or without as it was then, and for
settings that nobody chose: one that isn't the default stays as it is.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from haywain import durable, log
from haywain.settings import EngineSettings, LlamaCppSettings, Settings

__all__ = ["NAMES", "Tuned", "applied", "path", "write"]

NAMES: Final = ("workers", "threads", "slots", "transcode", "batch_tokens", "layout")
"""of `engine.llamacpp`, what is measured"""
_log = log.get()


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """Settings, and what they were measured with."""

    model_path: str
    model_size: int
    model_mtime_ns: int
    cores: int
    gpu: bool = False
    """whether a GPU held layers of it"""
    chosen: dict[str, int | str]
    """by name; those of `NAMES` that nobody had set"""
    tokens_per_second: float
    """generated, of the rows that it was measured with"""

    def fits(self, settings: LlamaCppSettings) -> bool:
        """Tell whether it was measured with this model, as it is now, on as many cores, with a GPU or without."""
        try:
            status = Path(settings.model_path).stat()
        except OSError:
            return False
        model = (status.st_size, status.st_mtime_ns, len(os.sched_getaffinity(0)), _offloads(settings))
        return model == (self.model_size, self.model_mtime_ns, self.cores, self.gpu)


def _offloads(settings: LlamaCppSettings) -> bool:
    """Tell whether a GPU takes part now. Raises SettingsError."""
    try:
        gpu: Any = importlib.import_module("engine.llamacpp.gpu")  # not for other backends: llama.cpp may not be installed
    except ModuleNotFoundError:
        return False  # the registry says what is missing
    return bool(gpu.offloads(settings.gpu_layers, offered=gpu.offered()))


def path(settings: Settings) -> Path:
    """Tell where the file is."""
    return settings.data / "engine-tuned.json"


def write(settings: Settings, tuned: Tuned) -> None:
    """Put the file in place, whole."""
    target = path(settings)
    durable.make_folder(target.parent)
    durable.replace(target, msgspec.json.format(msgspec.json.encode(tuned)) + b"\n")


def applied(settings: Settings) -> EngineSettings:
    """Give the engine's settings, with what was found out in place of defaults."""
    engine = settings.engine
    if engine.backend != "llamacpp":
        return engine
    try:
        tuned = msgspec.json.decode(path(settings).read_bytes(), type=Tuned)
    except FileNotFoundError:
        return engine
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("engine.tuning_unread", reason=str(error))
        return engine
    if not tuned.fits(engine.llamacpp):
        _log.info("engine.tuning_passed_over", reason="it was measured with another model or machine")
        return engine
    defaults = LlamaCppSettings()
    changes: dict[str, Any] = {
        name: value
        for name, value in tuned.chosen.items()
        if name in NAMES and getattr(engine.llamacpp, name) == getattr(defaults, name)
    }
    _log.info("engine.tuned", **changes)
    return msgspec.structs.replace(engine, llamacpp=msgspec.structs.replace(engine.llamacpp, **changes))

"""Which backends there are. A backend's module, and what it needs to be installed, is imported only when it is chosen."""

from __future__ import annotations

import importlib
from typing import Final, cast

from engine.backend import Backend
from haywain.errors import SettingsError
from haywain.settings import EngineSettings

__all__ = ["BACKENDS", "create"]

BACKENDS: Final = {
    "echo": "engine.echo",
    "llamacpp": "engine.llamacpp.backend",
    "triton": "engine.triton.backend",
    "upstream": "engine.upstream.backend",
}
"""name: module, which has `create(settings: EngineSettings) -> Backend`"""


def create(settings: EngineSettings) -> Backend:
    """Make the backend that `settings.backend` names. Raises SettingsError when there is none or its extra isn't installed."""
    module = BACKENDS.get(settings.backend)
    if module is None:
        raise SettingsError(f"engine.backend is {settings.backend!r}, expected one of: {', '.join(BACKENDS)}")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in {"engine", "haywain"}:
            raise
        extra = f'pip install "haywain[{settings.backend}]"'
        raise SettingsError(f"engine.backend {settings.backend} needs the Python package {error.name}: {extra}") from error
    return cast(Backend, loaded.create(settings))

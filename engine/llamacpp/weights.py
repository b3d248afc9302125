"""A GGUF file as seen from outside: is it one, which ids name it, what is its digest."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from haywain.errors import SettingsError

__all__ = ["Version", "check", "digest", "model_ids", "version"]

Version = tuple[int, int, int]

_MAGIC = b"GGUF"
_QUANTISATION = re.compile(r"[-._](?:i?q\d\w*|tq\d\w*|mxfp4\w*|b?f16|f32)$", re.IGNORECASE)
_NOT_IN_IDS = re.compile(r"[^a-z0-9._-]+")


def check(path: Path) -> None:
    """Look at what can be told without loading. Raises SettingsError in one clear line."""
    if not str(path.name):
        raise SettingsError("engine.llamacpp.model_path is not set: it names the GGUF file to serve")
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise SettingsError(f"model file {path}: {error.strerror or error}") from None
    if magic != _MAGIC:
        raise SettingsError(f"model file {path} is not a GGUF file: it begins with {magic!r}, not {_MAGIC!r}")


def version(path: Path) -> Version | None:
    """Tell what changes when the file is written or replaced; None when it is gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def digest(path: Path) -> str:
    """Compute `sha256:…` of the file; reads all of it."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def model_ids(path: Path, general_name: str) -> tuple[str, list[str]]:
    """Tell the id that a model goes by when none is set, and its other names.

    The id is the file's name without its quantisation, lower case: SmolLM2-135M-Instruct.Q4_1.gguf is served as
    `smollm2-135m-instruct`. Other names: the file's stem with and without the quantisation, and the slug of `general.name`, which
    is often of the training run rather than of the model and therefore not the id.
    """
    stem = path.name.removesuffix(".gguf")
    plain = _QUANTISATION.sub("", stem) or stem
    model = slug(plain) or "model"
    return model, [name for name in dict.fromkeys((stem, plain, slug(general_name))) if name and name != model]


def slug(text: str) -> str:
    """Make a readable id: lower case, only letters, digits, dots, underlines and hyphens."""
    return _NOT_IN_IDS.sub("-", text.lower()).strip("-._")

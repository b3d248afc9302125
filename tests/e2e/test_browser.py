"""The web page in a real browser, used as a person does.

Chromium comes with an npm package, see tests/npm.py; tests/e2e/browser/page.mjs is the person. Set HAYWAIN_SCREENSHOTS to a folder
to keep what it saw.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mesh import Mesh
from npm import NODE, environment, installed

SCRIPTS = Path(__file__).parent / "browser"
SCRIPT_NAME, IMAGE_NAME = "<script>window.xssRan=true<script>.jsonl", '<img src=x onerror="window.xssRan=true">.jsonl'
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>
"""
"""this Chromium ends when it finds no font, and a machine may have none"""
_UNPACK = "import('@sparticuz/chromium').then((module) => module.default.executablePath())"


def _unpack(folder: Path) -> None:
    """Unpack the browser that the package holds, with the libraries that the machine may lack, into `browser`."""
    (folder / "browser").mkdir()
    told = {"TMPDIR": str(folder / "browser"), "AWS_EXECUTION_ENV": "AWS_Lambda_nodejs22.x"}
    run = [str(NODE), "--input-type=module", "--eval", _UNPACK]
    done = subprocess.run(run, cwd=folder, env=environment() | told, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "browser" / "chromium").exists()


@pytest.fixture(scope="session")
def browser() -> Path:
    """Install Chromium and what drives it; the folder of both."""
    return installed(SCRIPTS, _unpack)


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with a slow echo engine that fails on demand: there is time to watch, and to cancel."""
    slow = ("--set", "engine.echo.ms_per_row=200", "--set", "engine.echo.slots=16")
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo", *slow, "--set", "engine.echo.fail_containing=please fail")


@pytest.fixture(scope="module")
def seen(mesh: Mesh, browser: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the person saw."""
    folder = tmp_path_factory.mktemp("browser")
    shutil.copy(SCRIPTS / "page.mjs", folder)
    (folder / "node_modules").symlink_to(browser / "node_modules")
    scratch = folder / "scratch"
    scratch.mkdir()
    unpacked = browser / "browser"
    (folder / "fonts.conf").write_text(FONTS.format(fonts=unpacked / "fonts", cache=folder / "fonts"))
    told = {"LD_LIBRARY_PATH": str(unpacked / "al2023" / "lib"), "FONTCONFIG_PATH": str(folder), "HOME": str(scratch)}
    words = [str(NODE), str(folder / "page.mjs"), f"http://127.0.0.1:{mesh.port}", str(unpacked / "chromium"), str(scratch)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False, env=environment() | told)
    if kept := os.environ.get("HAYWAIN_SCREENSHOTS"):
        for picture in scratch.glob("*.png"):
            shutil.copy(picture, kept)
    assert done.returncode == 0, done.stderr + mesh.logs()
    return dict(json.loads(done.stdout))


def test_an_empty_mesh(seen: dict[str, Any]) -> None:
    """The page says that all is well, what there is, and that there are no batches."""
    assert seen["empty"] == {
        "health": "Healthy",
        "batches": "No batches yet. Drop a file above.",
        "engine": "engine-0",
        "model": "echo",
    }


def test_a_file_becomes_a_batch_that_completes(seen: dict[str, Any]) -> None:
    """Its progress is shown as it goes, then its figures, links to both files, and the news for those who can't see it."""
    assert len(seen["steps"]) > 2
    assert seen["steps"] == sorted(seen["steps"])
    assert "399 of 400 rows completed · 1 failed · took" in seen["figures"]
    assert seen["links"] == [f"Output of {SCRIPT_NAME}", f"Errors of {SCRIPT_NAME}"]
    assert seen["news"] == f"{SCRIPT_NAME}: Completed, 400 rows, 399 completed"


def test_the_output_is_downloaded(seen: dict[str, Any]) -> None:
    """The link downloads the output file, in order."""
    assert seen["output"] == [f"row-{n}" for n in range(400) if n != 7]


def test_cancel_asks_first(seen: dict[str, Any]) -> None:
    """The question names the batch and its focus is on the harmless answer; Escape keeps the batch, the other answer cancels it."""
    assert seen["dialog"] == {"asks": IMAGE_NAME, "focus": "Keep it running"}
    assert seen["kept"] == "Running"
    assert seen["cancelled"] == {"focus": IMAGE_NAME, "button": True}


def test_bad_lines_have_their_numbers(seen: dict[str, Any]) -> None:
    """A failed batch shows its first bad lines, the rest on demand; a file that isn't taken shows why."""
    assert [line for line, _, _ in seen["bad"][:10]] == [str(n) for n in range(2, 12)]
    assert seen["bad"][0][1] == "invalid_url"
    assert "/v1/<b>nothing</b>" in seen["bad"][0][2]
    assert "Must be .jsonl" in seen["notTaken"]


def test_a_batch_is_created_before_it_is_listed(seen: dict[str, Any]) -> None:
    """A list that can't be had just now makes nobody believe that the upload has to be done again."""
    assert seen["unlisted"] == ["done", "Batch created"]


def test_every_page(seen: dict[str, Any]) -> None:
    """More than a hundred batches are there, each on one page, and the way back leads to the first."""
    assert seen["pages"] == 5
    assert len(seen["titles"]) == len(set(seen["titles"])) == 109
    assert seen["back"] == "Page 1"
    assert seen["mostKept"] <= 26, "what was shown before is kept"


def test_nothing_of_users_becomes_html(seen: dict[str, Any]) -> None:
    """Names that are scripts are names."""
    assert seen["xssRan"] is False


def test_nothing_goes_wrong_in_the_browser(mesh: Mesh, seen: dict[str, Any]) -> None:
    """No other host is asked, and nothing is in the console but the one refusal that was asked for."""
    assert seen["hosts"] == [f"127.0.0.1:{mesh.port}"]
    assert seen["refused"].count("400 /v1/files") == 1
    # A machine under load may be too slow for a health check.
    assert set(seen["refused"]) <= {"400 /v1/files", "404 /v1/files/file-nope", "503 /health"}
    assert all("Failed to load resource" in one for one in seen["console"]), seen["console"]


def test_usable_by_all(seen: dict[str, Any]) -> None:
    """axe-core finds no fault in light, dark and on a phone, where nothing is wider than the screen."""
    assert seen["axe"] == {"light": [], "dark": [], "phone": []}
    assert seen["overflow"] <= 0


def test_the_server_is_away(seen: dict[str, Any]) -> None:
    """The page says that it is, keeps what it showed, and goes on when it is back."""
    assert seen["away"] == {"health": "The server can\u2019t be reached.", "updated": "What is shown may be old.", "batches": 25}


def test_nothing_flickers(seen: dict[str, Any]) -> None:
    """While nothing changes, refreshing changes no element but the times."""
    assert seen["mutations"] == []
